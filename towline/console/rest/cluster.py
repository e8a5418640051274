"""Routes: the broker itself, its figures, and prepared transactions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from towline.console.rest.client_pool import Mq
from towline.console.rest.models import Count, Strict, time
from towline.errors import Refused
from towline.protocol.cluster import BrokerState
from towline.protocol.transactions import TransactionState

__all__ = ["router"]

router = APIRouter(tags=["cluster"])

Address = Annotated[str, Path(pattern=r"^[!-.0-~]{1,300}$", description="As `GET /clients` tells it.")]
TopicFilter = Annotated[str, Query(pattern=r"^([a-z0-9][a-z0-9._-]{0,49})?$")]
GroupFilter = Annotated[str, Query(pattern=r"^(~?[A-Za-z0-9][A-Za-z0-9._-]{0,49})?$")]
TransactionId = Annotated[str, Path(min_length=1, max_length=50, pattern=r"^[A-Za-z0-9._-]{1,50}$")]


class Broker(BaseModel):
    """A broker of the cluster. Figures are those of the one that this process is connected to, for those who may
    describe it; the others tell theirs when they are asked themselves."""

    id: str
    name: str
    address: str
    state: str
    store: str
    tls: bool
    topics: int
    connections: int
    uptime_s: float
    last_seen_s: float
    software: str
    protocol: int
    format: int
    connected: bool
    figures: dict[str, Any]


class Brokers(BaseModel):
    brokers: list[Broker]


class Client(BaseModel):
    """A consumer on a connection, or a connection without one."""

    address: str
    role: str
    token: str
    software: str
    connected_s: float
    last_seen_s: float
    sends: int
    topic: str
    group: str
    consumer: str
    rank: int
    total: int
    in_flight: int
    waiting: bool
    broker: str


class Clients(BaseModel):
    clients: list[Client]


class Measured(BaseModel):
    """What the broker's metrics tell: of itself, its topics and its groups."""

    at: datetime | None
    broker: dict[str, Any]
    topics: list[dict[str, Any]]
    groups: list[dict[str, Any]]


class Transaction(BaseModel):
    id: str
    state: str
    producer_group: str
    name: str
    token: str
    prepared_at: datetime | None
    messages: int
    size_bytes: int
    topics: list[str]
    checks: int
    reason: str


class Transactions(BaseModel):
    transactions: list[Transaction]


class Verdict(Strict):
    verdict: Literal["commit", "rollback"]
    reason: Annotated[str, Field(max_length=200)] = ""


@router.get("/brokers", summary="The brokers, and their figures")
async def brokers(mq: Mq) -> Brokers:
    try:
        figures = await mq.stat()
    except Refused:
        figures = {}
    found = await mq.brokers()
    return Brokers(brokers=[_broker(one, figures, first=place == 0) for place, one in enumerate(found)])


@router.get("/clients", summary="Who is connected")
async def clients(mq: Mq, topic: TopicFilter = "", group: GroupFilter = "") -> Clients:
    return Clients(clients=[Client(**_fields(one)) for one in await mq.clients(topic, group)])


@router.delete("/clients/{address}", summary="Close the connections from an address")
async def close_connection(address: Address, mq: Mq) -> Count:
    await mq.close_connection(address)
    return Count(count=1)


@router.get("/measure", summary="Figures of the broker, its topics and its groups")
async def measure(mq: Mq, topic: TopicFilter = "") -> Measured:
    found = await mq.measure(topic)
    return Measured(
        at=time(found.at_us),
        broker=found.broker,
        topics=[_fields(one) for one in found.topics],
        groups=[_fields(one) for one in found.groups],
    )


def _fields(one: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


@router.get("/transactions", summary="Transactions that wait to be decided", tags=["transactions"])
async def transactions(
    mq: Mq, parked: bool = False, limit: Annotated[int, Query(ge=1, le=1_000)] = 100
) -> Transactions:
    return Transactions(transactions=[_transaction(one) for one in await mq.transactions(parked=parked, limit=limit)])


@router.get("/transactions/{id}", summary="One transaction, decided or not", tags=["transactions"])
async def transaction(id: TransactionId, mq: Mq) -> Transaction:  # noqa: A002 - it is what it is
    return _transaction(await mq.find_transaction(id))


@router.post("/transactions/{id}/resolve", summary="Decide a transaction by hand", tags=["transactions"])
async def resolve(id: TransactionId, given: Verdict, mq: Mq) -> Count:  # noqa: A002 - it is what it is
    await mq.resolve_transaction(id, given.verdict, reason=given.reason)
    return Count(count=1)


def _broker(one: BrokerState, figures: dict[str, Any], *, first: bool) -> Broker:
    shown = {name: getattr(one, name) for name in Broker.model_fields if name not in ("figures", "connected")}
    return Broker(**shown, connected=first, figures=figures if first else {})


def _transaction(one: TransactionState) -> Transaction:
    return Transaction(
        id=one.transaction,
        state=one.state,
        producer_group=one.producer_group,
        name=one.name,
        token=one.token,
        prepared_at=time(one.prepared_at_us),
        messages=one.messages,
        size_bytes=one.size_bytes,
        topics=one.topics,
        checks=one.checks,
        reason=one.reason,
    )
