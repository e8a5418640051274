"""The messages of one pull."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self, overload

from towline.client.consume.lease import Lease
from towline.client.consume.message import Message
from towline.client.consume.outcome import Reject, Retry, as_reason, check_delay, describe, settle
from towline.client.consume.subscription import Subscription
from towline.client.link.flow import Flow
from towline.protocol.consume import ACK, NACK
from towline.protocol.messages import Act

__all__ = ["Batch"]


class Batch:
    """The messages of one pull, possibly none: then it is false. The blocking and the asyncio `Batch` add `ack` and
    `nack` for all of them at once.

    As a context manager it settles what is not settled by then, as a message does: acked in the end, or nacked with the
    exception as the reason; `Retry` and `Reject` say more. The acts are sent with the next pull; nothing is waited for.
    """

    def __init__(self, subscription: Subscription, lease: Lease | None) -> None:
        self._subscription = subscription
        self._lease = lease
        if lease is not None:
            lease.handed_out = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} messages{', lost' if self.lost else ''}>"

    def __len__(self) -> int:
        return 0 if self._lease is None else len(self._lease)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease = self._lease
        if lease is None or lease.lost or not lease.open_count:
            return
        if error is None:
            lease.ack_all()
        elif isinstance(error, Retry | Reject):
            settle(self.messages, error)
        elif isinstance(error, Exception):
            lease.nack_all(describe(error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self.messages[index]

    @property
    def messages(self) -> list[Message]:
        return [] if self._lease is None else self._lease.messages()

    def bodies(self) -> list[bytes]:
        """All bodies, without an object for each message: the quickest way."""
        return [] if self._lease is None else self._lease.bodies()

    @property
    def lost(self) -> bool:
        """The lease is gone: stop working on these messages."""
        return self._lease is not None and self._lease.lost

    @property
    def lease(self) -> Lease:
        return Lease.none() if self._lease is None else self._lease

    @property
    def topic(self) -> str:
        return self._subscription.topic

    def _ack_flow(self, up_to: bool) -> Flow[None]:
        if self._lease is not None:
            yield from self._subscription.settle_now(self._lease, Act(ACK, self._lease.pull, [], up_to))

    def _nack_flow(self, reason: str, delay: float | None) -> Flow[None]:
        if self._lease is not None:
            check_delay(delay)
            act = Act(NACK, self._lease.pull, [], False, delay, as_reason(reason))
            yield from self._subscription.settle_now(self._lease, act)
