"""Alarms at work: rules on file, readings from the statistics, notices by mail and webhook.

Rules are evaluated in the broker, because the figures are there and because nobody has to look at a console for it.
Each broker evaluates what it holds itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from towline.alarms.book import Changed, RuleBook, no_rule
from towline.alarms.notice import as_json, subject, text
from towline.alarms.rule import ALL, OF_BROKER, SILENCE_MAX_S, AlarmRule
from towline.alarms.watch import Alarm, Change, Look, Notice, Reading, Watch, hold_back
from towline.broker.access.rules import May
from towline.broker.fair_executor import FairExecutor
from towline.broker.monitor.disk import Room
from towline.broker.monitor.mail import send_mail
from towline.broker.monitor.stats import Stats
from towline.broker.monitor.webhooks import Webhooks, masked
from towline.broker.retention.overdue_messages import OverdueMessages
from towline.clock import SECOND_US, Clock, in_slices
from towline.errors import BadRequest, Conflict, Refused, TowlineError, Unavailable
from towline.model import PRIVATE
from towline.protocol.monitor import BOOK_PART, AlarmBook, Alarms, AskAlarmBook, Told
from towline.settings import BrokerSettings
from towline.store import Store
from towline.store.document import ConfigFile, DataVersion

__all__ = ["AlarmMonitor"]

log = logging.getLogger("towline.alarms")

FILE: Final = "alarms.json"
NOTICES_MAX: Final = 1_000
TOLD_MAX: Final = 100
LOOK_UP_S: Final = 2.0
LOOK_UPS: Final = 2
"""Host names that are looked up at a time, when rules are made."""
SENDING: Final = 4
"""Recipients that are sent to at a time."""
ADDRESSEES_MAX: Final = 100
"""Recipients of notices under way; they wait for each other no longer than it takes to try once."""
WAITING_MAX: Final = 100
"""Notices that wait for the same recipients; the oldest is dropped."""
TRIES_S: Final = (5.0, 30.0, 120.0, 600.0)


class _Document(msgspec.Struct):
    version: DataVersion = msgspec.field(name="dataVersion", default=DataVersion())
    rules: list[AlarmRule] = []
    active: list[Alarm] = []
    changes: dict[str, Changed] = {}


def _may_see_all(rule: AlarmRule, may: May | None) -> bool:
    places = () if rule.what in OF_BROKER else (("topic", rule.topic), ("group", rule.group))
    return may is None or all(may("describe", kind, name) for kind, name in places)


_Addressees = tuple[tuple[str, ...], tuple[str, ...]]
"""E-mail addresses, and webhooks."""


class AlarmMonitor:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: BrokerSettings,
        stats: Stats,
        *,
        room: Callable[[], Room],
        overdue: OverdueMessages,
    ) -> None:
        self._store = store
        self._file = ConfigFile(store, FILE, _Document)
        self._clock = clock
        self._settings = settings
        self._stats = stats
        self._room = room
        self._webhooks = Webhooks(settings.webhook_allow)
        self._overdue = overdue
        self._version = DataVersion()
        self._watch = Watch()
        self._book = RuleBook()
        self._saved: list[Alarm] = []
        self._waiting: list[Notice] = []
        self._due_s = 0.0
        self._held = 0
        self._notices: deque[Notice] = deque(maxlen=NOTICES_MAX)
        self._under_way: dict[_Addressees, deque[Notice]] = {}
        self._more = asyncio.Event()
        self._look_ups = FairExecutor(LOOK_UPS)
        self._sending = FairExecutor(SENDING)
        self._testing = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._told: deque[tuple[Told, frozenset[tuple[str, str]]]] = deque(maxlen=TOLD_MAX)
        """With the topics and groups that it concerns."""

    async def load(self) -> None:
        document = await self._file.load() or _Document()
        self._version = document.version
        self._book = RuleBook(document.rules, document.changes)
        self._watch = Watch(document.active)

    @property
    def rules(self) -> dict[str, AlarmRule]:
        return self._book.rules

    @property
    def digest(self) -> str:
        """By this, other brokers see whether they have the same rules."""
        return self._book.digest

    async def adopt(self, rules: dict[str, AlarmRule]) -> None:
        """Use the rules that brokers on one database share."""
        if rules == self.rules:
            return
        self._book = RuleBook(rules.values())
        await self._changed()

    def told_to_others(self, request: AskAlarmBook) -> AlarmBook:
        """The rules as they are, for another broker."""
        some, more = self._book.part(request.after, BOOK_PART)
        return AlarmBook(list(some.rules.values()), some.changes, more)

    async def merge(self, theirs: AlarmBook) -> bool:
        """Take over changes that were made at another broker while we were apart."""
        if not self._book.merge(RuleBook(theirs.rules, theirs.changes)):
            return False
        await self._changed()
        return True

    async def _changed(self) -> None:
        for key in [key for key in self._watch.active if key[0] not in self.rules]:
            del self._watch.active[key]
        await self.save()

    # Requests

    async def told(self, may: May | None) -> Alarms:
        return self.listed(may)

    def listed(self, may: May | None = None) -> Alarms:
        """Rules, alarms and notices of topics and groups that `may` allows to describe; without it, all."""

        def sees(topic: str, group: str) -> bool:
            places = (("topic", topic), ("group", group))
            return may is None or all(name in ("", ALL) or may("describe", kind, name) for kind, name in places)

        now_us = self._clock.now_us()
        rules = [
            msgspec.structs.replace(
                rule,
                webhooks=tuple(map(masked, rule.webhooks)),
                silenced_until_us=rule.silenced_until_us if rule.silenced(now_us) else 0,
                silence_reason=rule.silence_reason if rule.silenced(now_us) else "",
            )
            for rule in sorted(self.rules.values(), key=lambda rule: rule.name)
            if sees(rule.topic, rule.group)
        ]
        active = [one for one in self._watch.firing(self.rules) if sees(one.topic, one.group)]
        told = [one for one, places in reversed(self._told) if all(sees(*place) for place in places)]
        return Alarms(rules, active, told, bool(self._settings.smtp))

    async def put(self, rule: AlarmRule, may: May | None = None) -> None:
        """With `may`, only about what one may describe: notices name it, and go wherever the rule sends them."""
        old = self.rules.get(rule.name)
        for one in (rule, old):
            if one is not None and not _may_see_all(one, may):
                raise Refused(
                    f"you may not describe all of topic {one.topic} and group {one.group}, of which alarm {rule.name} "
                    "is: its notices would tell of them; an administrator can allow it (towline acl allow)"
                )
        known = {masked(url): url for url in (old.webhooks if old is not None else ())}
        for url in rule.webhooks:
            if url.endswith("…") and url not in known:
                raise BadRequest(f"alarm {rule.name}: {url} is how a webhook is shown; give the whole address")
        whole = msgspec.structs.replace(rule, webhooks=tuple(known.get(url, url) for url in rule.webhooks))
        await self._check_webhooks(whole)
        self._book.put(whole, self._clock.now_us())
        await self.save()

    async def _check_webhooks(self, rule: AlarmRule) -> None:
        """Whether sending there is allowed, as far as that is known in a moment; before each notice it is checked
        again."""
        for url in rule.webhooks:
            try:
                async with asyncio.timeout(LOOK_UP_S):
                    await self._look_ups.run(masked(url), self._webhooks.check, url)
            except TimeoutError:
                continue
            except BadRequest as error:
                raise BadRequest(f"alarm {rule.name}: {error}") from None

    def _check_sight(self, name: str, may: May | None) -> None:
        """A rule is hidden from those who may not describe all that it watches."""
        rule = self.rules.get(name)
        if rule is None or not _may_see_all(rule, may):
            raise no_rule(name)

    async def drop(self, name: str, may: May | None = None) -> None:
        self._check_sight(name, may)
        self._book.drop(name, self._clock.now_us())
        await self._changed()

    async def silence(self, name: str, until_us: int, reason: str, may: May | None = None) -> None:
        """Send no notices of a rule until then; 0 ends the silence."""
        self._check_sight(name, may)
        now_us = self._clock.now_us()
        if not until_us:
            reason = ""
        elif not reason.strip():
            raise BadRequest(f"alarm {name}: say why it is silenced, for those who wonder")
        elif not now_us < until_us <= now_us + SILENCE_MAX_S * SECOND_US:
            raise BadRequest(f"alarm {name}: a silence ends in the future, within {SILENCE_MAX_S // 86400} days")
        self._book.silence(name, until_us, reason.strip(), now_us)
        await self.save()

    async def test(self, name: str, may: May | None = None) -> None:
        """Send a notice to all recipients of a rule, now, and raise what went wrong. One at a time: it may take
        minutes."""
        self._check_sight(name, may)
        if self._testing.locked():
            raise Conflict(f"another rule is being tested: test alarm {name} when that is over")
        async with self._testing:
            await self._test(name)

    async def _test(self, name: str) -> None:
        rule = self._book.rule(name)
        if not rule.emails and not rule.webhooks:
            raise BadRequest(f"alarm {name} names neither e-mail addresses nor webhooks of its own")
        now_us = self._clock.now_us()
        alarm = Alarm(name, "test", "test", rule.threshold, now_us, now_us)
        changes = (Change("begun", rule, alarm),)
        for notice in (Notice(rule.emails, (), changes), Notice((), rule.webhooks, changes)):
            try:
                await self._send(notice, "test: ")
            except Unavailable as error:
                # Not tried again: somebody waits for the error.
                raise BadRequest(f"alarm {name}: {error}") from None

    async def save(self) -> None:
        self._version = self._version.next(self._clock.now_us())
        self._saved = [msgspec.structs.replace(one) for one in self._watch.active.values()]
        await self._file.save(_Document(self._version, list(self.rules.values()), self._saved, self._book.changes))

    # Evaluation

    async def look(self) -> None:
        """After a walk of the statistics: compare, and let new notices wait for more of their kind."""
        if self._looking.locked() or (not self.rules and not self._watch.active):
            return
        async with self._looking:
            self._take(await self._compare())

    async def _compare(self) -> list[Notice]:
        """All rules with all groups, while others run in between."""
        look = Look(self._watch, self.rules, self._clock.now_us())
        async for reading in in_slices(self._readings()):
            look.note(reading)
        return look.end(self.rules)

    def _take(self, found: list[Notice]) -> None:
        held = sum(alarm.held for alarm in self._watch.active.values())
        if held != self._held:
            # Since when it holds is to outlive a restart, though no notice was sent.
            self._held = held
            self._more.set()
        for notice in found:
            for change in notice.changes:
                alarm = change.alarm
                log.warning("alarm %s %s: %s %s %g", alarm.rule, change.state, alarm.topic, alarm.group, alarm.value)
        now_s = self._clock.steady_s()
        if found and not self._waiting:
            self._due_s = now_s + self._settings.alarm_wait_s
        self._waiting += found[: NOTICES_MAX - len(self._waiting)]
        if self._waiting and now_s >= self._due_s:
            self._notices.extend(_merged(self._waiting))
            self._waiting = []
            self._more.set()

    def _readings(self) -> Iterator[Reading]:
        now_us = self._clock.now_us()
        for topic in list(self._stats.topics.values()):
            emails = topic.topic.config.alarm_emails
            for name, one in list(topic.groups.items()):
                if name.startswith(PRIVATE):
                    continue
                where = (topic.topic.config.name, name, emails)
                if one.dead:
                    yield Reading("dead", one.dead, *where)
                if one.failed:
                    yield Reading("failures", one.failed, *where)
                if one.lag:
                    yield Reading("backlog", one.lag, *where)
                if one.oldest_us:
                    yield Reading("age", (now_us - one.oldest_us) / SECOND_US, *where)
                if one.alone_since_us:
                    yield Reading("offline", (now_us - one.alone_since_us) / SECOND_US, *where)
        yield Reading("disk", self._room().free_percent)
        if self._store.failure is not None:
            yield Reading("store", 1)
        yield Reading("retention", self._overdue.held_s)

    async def loop(self) -> None:
        """Send notices, each a few times if need be, those to the same recipients one after the other; and keep the
        sent ones on file."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._more.wait()
                self._more.clear()
                try:
                    await self.save()
                except TowlineError as error:
                    log.error("the state of alarms could not be written: %s", error)
                self._hand_out(tasks)

    def _hand_out(self, tasks: asyncio.TaskGroup) -> None:
        for _ in range(len(self._notices)):
            notice = self._notices.popleft()
            to = notice.emails, notice.webhooks
            if to in self._under_way:
                self._under_way[to].append(notice)
            elif len(self._under_way) < ADDRESSEES_MAX:
                self._under_way[to] = deque([notice], WAITING_MAX)
                tasks.create_task(self._send_all(to))
            else:
                self._notices.append(notice)

    async def _send_all(self, to: _Addressees) -> None:
        while self._under_way[to]:
            await self._send_stubbornly(self._under_way[to].popleft())
        del self._under_way[to]
        if self._notices:
            self._more.set()

    async def _send_stubbornly(self, notice: Notice) -> None:
        hopeless = bool(notice.emails) and not self._settings.smtp
        for wait_s in (0.0,) if hopeless else (*TRIES_S, 0.0):
            left = hold_back(notice, self.rules, self._clock.now_us())
            if left is None:
                return
            notice = left
            try:
                await self._send(notice)
            except TowlineError as error:
                log.error("a notice of an alarm was not taken: %s", error)
                if not wait_s:
                    return
                await asyncio.sleep(wait_s)
            else:
                return

    async def _send(self, notice: Notice, prefix: str = "") -> None:
        name = self._settings.name
        title = prefix + subject(notice, name)
        errors = []
        if notice.emails:
            if not self._settings.smtp:
                errors.append("no mail server is set (setting smtp), so no e-mail is sent")
            else:
                try:
                    await self._sending.run(
                        self._settings.smtp, send_mail, self._settings, notice.emails, title, text(notice, name)
                    )
                except TowlineError as error:
                    errors.append(str(error))
        for url in notice.webhooks:
            try:
                payload = as_json(notice, name, self._clock.now_us())
                await self._sending.run(masked(url), self._webhooks.post, url, payload)
            except TowlineError as error:
                errors.append(str(error))
        to = [*notice.emails, *map(masked, notice.webhooks)]
        if to or prefix == "":
            places = frozenset((change.alarm.topic, change.alarm.group) for change in notice.changes)
            self._told.append((Told(self._clock.now_us(), title, to, "; ".join(errors)), places))
        if errors:
            raise Unavailable("; ".join(errors))


def _merged(notices: list[Notice]) -> list[Notice]:
    """Notices to the same recipients within the waiting time are merged; of each alarm, the latest state counts."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[list[Change], int]] = {}
    for notice in notices:
        changes, more = found.get((notice.emails, notice.webhooks), ([], 0))
        for change in notice.changes:
            key = (change.alarm.rule, change.alarm.topic, change.alarm.group)
            same = next(
                (n for n, one in enumerate(changes) if (one.alarm.rule, one.alarm.topic, one.alarm.group) == key), None
            )
            if same is None:
                changes.append(change)
            else:
                changes[same] = change
        found[notice.emails, notice.webhooks] = changes, more + notice.more
    return [Notice(emails, webhooks, tuple(some), more) for (emails, webhooks), (some, more) in found.items()]
