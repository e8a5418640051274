"""Models of JSON requests and answers."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from towline.client.consume.message import DeadLetter, Message
from towline.errors import BadRequest
from towline.model import Receipt

__all__ = [
    "Acked",
    "Body",
    "Count",
    "Created",
    "Delay",
    "Encoding",
    "GroupName",
    "Lane",
    "Letter",
    "MessageId",
    "Outgoing",
    "Page",
    "Problem",
    "Pulled",
    "Sent",
    "Shown",
    "TopicName",
    "body_of",
    "letter",
    "sent",
    "shown",
    "text_or_base64",
    "time",
]

TOPIC = r"^[a-z0-9][a-z0-9._-]{0,49}$"
GROUP = r"^~?[A-Za-z0-9][A-Za-z0-9._-]{0,49}$"
MESSAGE = r"^[a-z0-9][a-z0-9._-]{0,49}/(high|middle|low|delay|[0-9]{1,4})/[0-9]{1,18}(@[A-Za-z0-9._:-]{1,100})?$"
DAYS_100_YEARS = 36_525

TopicName = Annotated[str, Path(pattern=TOPIC, description="The topic.")]
GroupName = Annotated[str, Path(pattern=GROUP, description="The group; `~NAME` is the consumer NAME without a group.")]
Lane = Annotated[
    str, Query(pattern=r"^(high|middle|low|[0-9]{1,4})$", description="A priority, or the number of a shard.")
]
MessageId = Annotated[
    str,
    Query(
        pattern=MESSAGE,
        description="The id of a message, such as `orders/middle/42`; or the one that it got when it was delayed, "
        "`orders/delay/17`, once it is in its lane.",
    ),
]
Encoding = Literal["utf-8", "base64"]
Delay = Annotated[float, Field(ge=0, le=DAYS_100_YEARS * 86400)]
Seconds = Annotated[float, Field(ge=0, le=253_402_300_799)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings", allow_inf_nan=False)


class Problem(BaseModel):
    """What went wrong. The code is one of the names in docs/rest.md; the message is for people."""

    error: str
    message: str


class Body(Strict):
    body: str = Field(description="The message: text, or base64 if the encoding says so.")
    encoding: Encoding = "utf-8"


class Outgoing(Body):
    """A message to be sent."""

    key: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    priority: Literal["high", "middle", "low"] = "middle"
    headers: Annotated[dict[str, str], Field(max_length=100)] | None = None
    dedup_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    delay: Delay | None = Field(None, description="Deliver it this many seconds later.")
    deliver_at: datetime | None = Field(None, description="Deliver it at this time, which has a time zone.")
    delay_level: Annotated[int, Field(ge=1, le=999)] | None = None
    shard_key: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    ttl: Annotated[float, Field(gt=0, le=DAYS_100_YEARS * 86400)] | None = None
    timeout: Annotated[float, Field(gt=0, le=86400)] | None = Field(
        None, description="A handler that works on it for longer than so many seconds is interrupted."
    )
    attempts: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="How often it is tried in all; without it, as the group's retry policy says."
    )

    def options(self) -> dict[str, Any]:
        given = self.model_dump(exclude={"body", "encoding", "topic"}, exclude_none=True)
        if self.deliver_at is not None and self.deliver_at.tzinfo is None:
            raise BadRequest(f"deliver_at {self.deliver_at.isoformat()} has no time zone: write 2026-05-01T12:00:00Z")
        return given


class Sent(BaseModel):
    """Where a message is: by its id it can be found for as long as it is kept."""

    id: str
    topic: str
    lane: str
    seq: int
    appended_at: datetime | None


class Created(BaseModel):
    """It is there now."""

    created: str


class Count(BaseModel):
    count: int


class Shown(BaseModel):
    """A message, and all that is known of it."""

    id: str
    topic: str
    lane: str
    seq: int
    attempt: int
    key: str | None
    headers: dict[str, str]
    appended_at: datetime
    produced_at: datetime
    source: str
    token: str
    encoding: Encoding
    body: str


class Pulled(Shown):
    receipt: str = Field(description="By this it is acknowledged, until its lease ends.")


class Letter(BaseModel):
    """A dead letter."""

    number: int
    origin: str
    attempt: int
    reason: str
    died_at: datetime | None
    resent: bool
    key: str | None
    headers: dict[str, str]
    encoding: Encoding
    body: str


class Page(BaseModel):
    """`next` is the `first` to go on with; what can be read goes from `start` up to, but not including, `end`."""

    messages: list[Shown]
    next: int
    start: int
    end: int


class Acked(BaseModel):
    """`lost` lists the receipts that are not good any more: their lease ended, and the messages come again."""

    settled: int
    lost: list[str]


def body_of(given: Body) -> bytes:
    if given.encoding == "utf-8":
        try:
            return given.body.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"the body is no text that UTF-8 could write: {error.reason}") from None
    try:
        return base64.b64decode(given.body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"the body is not base64: {error}") from None


def text_or_base64(body: bytes) -> tuple[str, Encoding]:
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def time(at_us: int) -> datetime | None:
    return datetime.fromtimestamp(at_us / 1e6, UTC) if at_us else None


def sent(receipt: Receipt) -> Sent:
    return Sent(
        id=receipt.id,
        topic=receipt.topic,
        lane=receipt.lane,
        seq=receipt.seq,
        appended_at=time(receipt.appended_at_us),
    )


def facts(message: Message) -> dict[str, Any]:
    body, encoding = text_or_base64(message.body)
    return {
        "id": message.id,
        "topic": message.topic,
        "lane": message.lane,
        "seq": message.seq,
        "attempt": message.attempt,
        "key": message.key,
        "headers": message.headers,
        "appended_at": message.appended_at,
        "produced_at": message.produced_at,
        "source": message.source,
        "token": message.token,
        "encoding": encoding,
        "body": body,
    }


def shown(message: Message) -> Shown:
    return Shown(**facts(message))


def letter(one: DeadLetter) -> Letter:
    body, encoding = text_or_base64(one.body)
    return Letter(
        number=one.number,
        origin=one.origin,
        attempt=one.attempt,
        reason=one.reason,
        died_at=time(one.died_at_us),
        resent=one.resent,
        key=one.key,
        headers=one.headers,
        encoding=encoding,
        body=body,
    )
