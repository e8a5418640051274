"""The end of an event loop, or of the process, for a consumer of it that nobody closed: by then nothing can be told any
more."""

from __future__ import annotations

import warnings

from towline.client.consume.subscription import Subscription
from towline.client.link.blocking import MADE_BEFORE_FORK

__all__ = ["ConsumerEnd"]


class ConsumerEnd:
    _subscription: Subscription
    _why_closed: str
    _closed = True  # until it is made

    def __del__(self) -> None:
        self.end(0.0, final=True)

    def end(self, timeout_s: float, *, final: bool) -> None:
        """Keep on the disk what was not told, or say what is lost."""
        subscription = self._subscription
        if self._closed or not final:
            return
        self._closed = True
        owed = subscription.owed
        if subscription.spool is not None:
            for _ in subscription.start_settles():
                pass  # there is no connection to start them on
            subscription.spool.keep(subscription.unkept(ready=False))
            subscription.spool.close()
        elif owed:
            warnings.warn(
                subscription.left_open(owed, "its event loop ended"), RuntimeWarning, stacklevel=2, source=self
            )

    def forked(self) -> None:
        self._closed, self._why_closed = True, MADE_BEFORE_FORK.format("consumer")
