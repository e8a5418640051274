"""Alarms: rules, what is an alarm now, and silences."""

from __future__ import annotations

from datetime import datetime

from towline.alarms.rule import REASON_MAX, AlarmRule
from towline.client.admin._async.router import Noun
from towline.client.admin.alarms import end_of_silence
from towline.client.cluster import merge
from towline.client.link.flow import ask
from towline.errors import BadRequest
from towline.protocol.messages import Done
from towline.protocol.monitor import Alarms as Told
from towline.protocol.monitor import DropAlarm, ListAlarms, PutAlarm, SilenceAlarm, TestAlarm

__all__ = ["Alarms"]


class Alarms(Noun):
    async def alarms(self) -> Told:
        """The rules, the present alarms, and the last notices."""
        if self._router.fleet is None:
            return await self._router.here(ask(ListAlarms(), Told))
        return merge.join_alarms(await self._router.outcomes(lambda: ask(ListAlarms(), Told)))

    async def put_alarm(self, rule: AlarmRule) -> None:
        """Make an alarm rule, or change it. A broker of a cluster that is away gets it when it returns."""
        await self._router.tell("", lambda: ask(PutAlarm(rule), Done), f"making alarm {rule.name}", catch_up=True)

    async def drop_alarm(self, name: str) -> None:
        """Delete an alarm rule. A broker of a cluster that is away hears of it when it returns."""
        await self._router.tell("", lambda: ask(DropAlarm(name[:100]), Done), f"dropping alarm {name}", catch_up=True)

    async def silence_alarm(
        self, name: str, reason: str, *, for_s: float | None = None, until: datetime | float | None = None
    ) -> None:
        """Send no notices of an alarm for so many seconds, or until a time, with the reason. It is still listed; and if
        it is still an alarm when that is over, a notice is sent then."""
        until_us = end_of_silence(name, for_s, until)
        if len(reason) > REASON_MAX:
            raise BadRequest(f"alarm {name}: the reason has more than {REASON_MAX} characters")
        request = SilenceAlarm(name[:100], until_us, reason)
        await self._router.tell("", lambda: ask(request, Done), f"silencing alarm {name}", catch_up=True)

    async def unsilence_alarm(self, name: str) -> None:
        """End the silence of an alarm."""
        request = SilenceAlarm(name[:100], 0, "")
        await self._router.tell("", lambda: ask(request, Done), f"ending the silence of alarm {name}", catch_up=True)

    async def test_alarm(self, name: str) -> None:
        """Send a test notice to all that a rule names; raises what went wrong."""
        await self._router.here(ask(TestAlarm(name[:100]), Done))
