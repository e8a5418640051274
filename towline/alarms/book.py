"""The rules of a broker with the time of each change, so that brokers that were apart come to the same rules. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec

from towline.alarms.rule import RULES_MAX, AlarmRule, Until
from towline.errors import NotFound, TooMany

__all__ = ["BOOK_MAX", "Changed", "RuleBook", "no_rule"]

DROPPED_MAX: Final = 1_000
"""Dropped rules that are remembered: a broker that was away for longer than so many drops brings an old one back."""
BOOK_MAX: Final = RULES_MAX + DROPPED_MAX
_NEVER: Final = -1


class Changed(msgspec.Struct, frozen=True, array_like=True):
    """The times of a rule's last change or drop, and of its last silence or the end of one. The later time counts."""

    rule_us: Annotated[int, msgspec.Meta(ge=_NEVER)] = 0
    silence_us: Until = 0

    def next(self, now_us: int) -> int:
        """A time later than all changes so far, whatever the clock says."""
        return max(now_us, self.rule_us + 1, self.silence_us + 1)


class RuleBook:
    """A rule that was changed at two brokers that were apart is as it was changed last; its silence likewise, by
    itself. What was changed, and is not there, was dropped."""

    def __init__(self, rules: Iterable[AlarmRule] = (), changes: Mapping[str, Changed] | None = None) -> None:
        self.rules = {rule.name: rule for rule in rules}
        self.changes = dict(changes or {})
        self._digest = ""

    @property
    def digest(self) -> str:
        """A digest: equal for the same rules with the same changes."""
        if not self._digest:
            parts = ([self.rules[name] for name in sorted(self.rules)], sorted(self.changes.items()))
            self._digest = hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:32]
        return self._digest

    def rule(self, name: str) -> AlarmRule:
        rule = self.rules.get(name)
        if rule is None:
            raise no_rule(name)
        return rule

    def put(self, rule: AlarmRule, now_us: int) -> None:
        """Make or change a rule; its silence stays as it was."""
        old, at = self.rules.get(rule.name), self.changes.get(rule.name, Changed())
        if old is None and len(self.rules) >= RULES_MAX:
            raise TooMany(f"there are {RULES_MAX} alarm rules already: rule {rule.name} is not made; drop one first")
        stamp = at.next(now_us)
        self.rules[rule.name] = _silenced_like(rule, old)
        self._note(rule.name, Changed(stamp, at.silence_us if old is not None else stamp))

    def drop(self, name: str, now_us: int) -> None:
        at = self.changes.get(self.rule(name).name, Changed())
        del self.rules[name]
        self._note(name, Changed(at.next(now_us), at.silence_us))

    def silence(self, name: str, until_us: int, reason: str, now_us: int) -> None:
        at = self.changes.get(name, Changed())
        self.rules[name] = msgspec.structs.replace(self.rule(name), silenced_until_us=until_us, silence_reason=reason)
        self._note(name, Changed(at.rule_us, at.next(now_us)))

    def part(self, after: str, count: int) -> tuple[RuleBook, bool]:
        """The part of the book with the next names, and whether there are more."""
        names = sorted(name for name in {*self.rules, *self.changes} if name > after)
        some = names[:count]
        rules = [self.rules[name] for name in some if name in self.rules]
        changes = {name: self.changes[name] for name in some if name in self.changes}
        return RuleBook(rules, changes), len(names) > count

    def merge(self, other: RuleBook) -> bool:
        """Take over what is newer in the other book. True if anything was."""
        before = self.digest
        for name in sorted({*other.rules, *other.changes}):
            self._merge(name, other)
        self._digest = ""
        self._forget_oldest()
        return self.digest != before

    def _merge(self, name: str, other: RuleBook) -> None:
        sides = [(book.rules.get(name), book._at(name)) for book in (self, other)]
        rule, at = max(sides, key=lambda side: (side[1].rule_us, _bytes_of(side[0])))
        hushed, silence_at = max(sides, key=lambda side: (side[1].silence_us, _silence_of(side[0])))
        if rule is None:
            self.rules.pop(name, None)
        elif name in self.rules or len(self.rules) < RULES_MAX:
            self.rules[name] = _silenced_like(rule, hushed)
        else:
            return
        self.changes[name] = Changed(at.rule_us, silence_at.silence_us)

    def _at(self, name: str) -> Changed:
        """A rule without a time is older than all changes, and newer than none at all."""
        return self.changes.get(name, Changed(0 if name in self.rules else _NEVER))

    def _note(self, name: str, at: Changed) -> None:
        self.changes[name] = at
        self._digest = ""
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        dropped = sorted((name for name in self.changes if name not in self.rules), key=self._age)
        for name in dropped[DROPPED_MAX:]:
            del self.changes[name]

    def _age(self, name: str) -> tuple[int, str]:
        return -self.changes[name].rule_us, name


def _silenced_like(rule: AlarmRule, other: AlarmRule | None) -> AlarmRule:
    until_us, reason = _silence_of(other)
    return msgspec.structs.replace(rule, silenced_until_us=until_us, silence_reason=reason)


def _silence_of(rule: AlarmRule | None) -> tuple[int, str]:
    return (0, "") if rule is None else (rule.silenced_until_us, rule.silence_reason)


def _bytes_of(rule: AlarmRule | None) -> bytes:
    """An arbitrary but equal order for changes of the same microsecond."""
    return b"" if rule is None else msgspec.msgpack.encode(_silenced_like(rule, None))


def no_rule(name: str) -> NotFound:
    return NotFound(f"there is no alarm {name[:80]!r}: `towline alarm ls` lists them")
