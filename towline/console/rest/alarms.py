"""Routes: alarm rules, present alarms, and notices."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from towline.alarms.rule import REASON_MAX, SILENCE_MAX_S, AlarmRule, What
from towline.alarms.watch import Alarm
from towline.console.rest.client_pool import Mq
from towline.console.rest.models import Count, Strict, time
from towline.model import EMAILS_MAX

__all__ = ["router"]

router = APIRouter(tags=["alarms"])

RuleName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,49}$", description="The name of the rule.")]
Pattern = Annotated[str, Field(pattern=r"^([A-Za-z0-9~][A-Za-z0-9._-]{0,49}\*?|\*)$")]
Emails = Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=EMAILS_MAX)]
Webhooks = Annotated[list[Annotated[str, Field(pattern=r"^https?://[!-~…]{1,490}$")]], Field(max_length=EMAILS_MAX)]


class Rule(Strict):
    """What is watched, from which value on it is an alarm (`disk`: below which), and who is told."""

    what: What
    threshold: Annotated[float, Field(ge=0)]
    topic: Pattern = "*"
    group: Pattern = "*"
    emails: Emails = Field(default_factory=list)
    webhooks: Webhooks = Field(
        default_factory=list, description="Only their host is ever shown; what is given back as it was shown stays."
    )
    topic_emails: bool = Field(True, description="Also the alarm e-mails of the topic are told.")
    for_s: Annotated[float, Field(ge=0, le=86400)] = 0
    repeat_s: Annotated[float, Field(ge=60, le=30 * 86400)] = 4 * 3600
    enabled: bool = True


class NamedRule(Rule):
    name: str


class Silence(Strict):
    """For how long, or until when; and why."""

    for_s: Annotated[float, Field(gt=0, le=SILENCE_MAX_S)] | None = None
    until: datetime | None = None
    reason: Annotated[str, Field(min_length=1, max_length=REASON_MAX)]


class Silenced(BaseModel):
    rule: str
    until: datetime | None
    reason: str


class Rules(BaseModel):
    """`silences` are those that are not over; `mail` says whether the broker knows a mail server."""

    rules: list[NamedRule]
    silences: list[Silenced]
    mail: bool


class ActiveAlarm(BaseModel):
    """A rule that is broken in one place; topic and group are empty if it is about the broker itself."""

    rule: str
    topic: str
    group: str
    value: float
    since: datetime | None
    told_at: datetime | None
    silenced_until: datetime | None = Field(description="Nobody is told of it until then.")
    silence_reason: str


class Active(BaseModel):
    alarms: list[ActiveAlarm]


class Notice(BaseModel):
    at: datetime | None
    subject: str
    to: list[str]
    error: str


class Notices(BaseModel):
    notices: list[Notice]


@router.get("/alarms", summary="The alarm rules")
async def rules(mq: Mq) -> Rules:
    found = await mq.alarms()
    return Rules(
        rules=[_named(one) for one in found.rules],
        silences=[
            Silenced(rule=one.name, until=time(one.silenced_until_us), reason=one.silence_reason)
            for one in found.rules
            if one.silenced_until_us
        ],
        mail=found.mail,
    )


@router.get("/alarms/active", summary="What is an alarm now")
async def active(mq: Mq) -> Active:
    found = await mq.alarms()
    rules = {rule.name: rule for rule in found.rules}
    return Active(alarms=[_active(one, rules.get(one.rule)) for one in found.active])


@router.get("/alarms/notices", summary="What people were told last, and what could not be told")
async def notices(mq: Mq) -> Notices:
    """The newest first."""
    told = (await mq.alarms()).told
    return Notices(
        notices=[Notice(at=time(one.at_us), subject=one.subject, to=one.to, error=one.error) for one in told]
    )


@router.put("/alarms/{name}", summary="Make an alarm rule, or replace it")
async def put(name: RuleName, rule: Rule, mq: Mq) -> Count:
    given = rule.model_dump() | {"name": name}
    given |= {field: tuple(given[field]) for field in ("emails", "webhooks")}
    await mq.put_alarm(AlarmRule(**given))
    return Count(count=1)


@router.delete("/alarms/{name}", summary="Drop an alarm rule")
async def drop(name: RuleName, mq: Mq) -> Count:
    await mq.drop_alarm(name)
    return Count(count=1)


@router.post("/alarms/{name}/silence", summary="Tell nobody of a rule for a while")
async def silence(name: RuleName, wanted: Silence, mq: Mq) -> Count:
    """It is still listed; and if it still is an alarm when the silence is over, it is told then."""
    await mq.silence_alarm(name, wanted.reason, for_s=wanted.for_s, until=wanted.until)
    return Count(count=1)


@router.delete("/alarms/{name}/silence", summary="Tell of a rule again, before its silence is over")
async def unsilence(name: RuleName, mq: Mq) -> Count:
    await mq.unsilence_alarm(name)
    return Count(count=1)


@router.post("/alarms/{name}/test", summary="Send a test notice to all that a rule names")
async def test(name: RuleName, mq: Mq) -> Count:
    """It answers once the notice was taken; else it says what went wrong."""
    await mq.test_alarm(name)
    return Count(count=1)


def _named(rule: AlarmRule) -> NamedRule:
    return NamedRule(**{name: value for name, value in msgspec.to_builtins(rule).items() if "silence" not in name})


def _active(one: Alarm, rule: AlarmRule | None) -> ActiveAlarm:
    return ActiveAlarm(
        rule=one.rule,
        topic=one.topic,
        group=one.group,
        value=one.value,
        since=time(one.since_us),
        told_at=time(one.told_at_us),
        silenced_until=time(rule.silenced_until_us) if rule is not None else None,
        silence_reason=rule.silence_reason if rule is not None else "",
    )
