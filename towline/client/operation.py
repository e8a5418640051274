"""Operations at one broker, a named one, or all of them, written once for both clients.

An errand is a generator, as a flow is (see `flow`), one level above: it yields the flow to run and its broker, and is
sent the outcome, or has its error thrown in.

    Here          at the broker that the client is connected to
    There         in a cluster: at the broker that is named, or else at the one that is right for the topic
    Everywhere    in a cluster: at each broker, with a flow for each of them; gives an `Outcome` for each

A method with `@offered` is written as an errand, with one signature and one docstring. A client that blocks (`Now`) has
it as a method that returns the result, an asyncio client (`Later`) as a coroutine function, for type checkers and at
run time alike.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, overload

from towline.client.link.flow import Flow, drive, drive_later

__all__ = ["Errand", "Everywhere", "Here", "Later", "Now", "Place", "There", "offered"]

P = ParamSpec("P")
T = TypeVar("T")


class Here(NamedTuple):
    flow: Flow[Any]


class There(NamedTuple):
    topic: str
    flow: Flow[Any]
    broker: str = ""
    served: list[str] | None = None
    """The brokers that answered are added."""
    if_alive: bool = False
    """Not to be waited for if the broker is away, or goes away meanwhile."""


class Everywhere(NamedTuple):
    make_flow: Callable[[str], Flow[Any]]
    """Given the id of a broker."""


Place = Here | There | Everywhere
Errand = Generator[Place, Any, T]


class Now:
    """Runs errands, and waits for them."""

    def _carry_out(self, place: Place) -> Any:
        raise NotImplementedError


class Later:
    """Runs errands as coroutines."""

    async def _carry_out(self, place: Place) -> Any:
        raise NotImplementedError


class offered(Generic[P, T]):  # noqa: N801 - a decorator
    def __init__(self, make: Callable[Concatenate[Any, P], Errand[T]]) -> None:
        # What callers are given, for `help` and the like.
        make.__annotations__["return"] = str(make.__annotations__["return"]).removeprefix("Errand[").removesuffix("]")

        @wraps(make)
        def now(client: Now, *args: P.args, **kwargs: P.kwargs) -> T:
            return drive(make(client, *args, **kwargs), client._carry_out)

        @wraps(make)
        async def later(client: Later, *args: P.args, **kwargs: P.kwargs) -> T:
            return await drive_later(make(client, *args, **kwargs), client._carry_out)

        self._now, self._later = now, later

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...

    @overload
    def __get__(self, client: Now, owner: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: Later, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Now | Later | None, owner: type) -> Callable[..., Any]:
        function: Any = self._later if issubclass(owner, Later) else self._now
        return function if client is None else function.__get__(client)  # type: ignore[no-any-return]
