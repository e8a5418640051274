"""The end of the process for a consumer that nobody closed: what was settled is told."""

from __future__ import annotations

import logging

from towline.client import process_end
from towline.client.consume.subscription import Subscription
from towline.client.link.blocking import MADE_BEFORE_FORK, Link
from towline.errors import TowlineError

__all__ = ["ConsumerEnd"]

log = logging.getLogger("towline.client")


class ConsumerEnd:
    _link: Link
    _subscription: Subscription
    _why_closed: str
    _closed: bool

    def _keep(self, *, ready: bool) -> None:
        raise NotImplementedError

    def end(self, timeout_s: float, *, final: bool) -> None:
        """Tell what was settled. What was not is taken away by the broker, because we are gone."""
        owed = 0 if self._closed else self._subscription.owed
        if not owed:
            return
        before, self._link.timeout_s = self._link.timeout_s, timeout_s
        try:
            self._link.run(self._subscription.flush())
        except TowlineError as error:
            process_end.forget(self)
            self._keep(ready=False)
            if self._subscription.spool is None:
                log.error("%s", self._subscription.left_open(owed, error))
        finally:
            self._link.timeout_s = before

    def forked(self) -> None:
        self._closed, self._why_closed = True, MADE_BEFORE_FORK.format("consumer")
