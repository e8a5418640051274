"""Settings that a consumer asks of its group. A group that exists keeps its own; a difference is reported once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from towline.model import AT_MOST_ONCE, GroupConfig, RetryPolicy
from towline.protocol.messages import Attached

__all__ = ["EffectiveSettings", "RequestedSettings"]


log = logging.getLogger("towline.client")

_TOLD_MAX: Final = 10_000
_NAMED_MAX: Final = 3
"""Topics that one warning names."""
_told: dict[str, None] = {}
_telling = threading.Lock()


class RequestedSettings(NamedTuple):
    """The settings of the group that were given to the consumer; None keeps the group's."""

    retry: RetryPolicy | None = None
    lease_timeout_s: float | None = None
    max_in_flight: int | None = None
    mode: Literal["at-least-once", "at-most-once"] | None = None

    def differences(self, config: GroupConfig) -> list[tuple[str, str]]:
        """The group's settings that differ from the requested ones, and the flags that would change them."""
        found: list[tuple[str, str]] = []
        if self.retry is not None and self.retry != config.retry:
            found += _of_retry(self.retry, config.retry)
        if self.lease_timeout_s is not None and self.lease_timeout_s != config.timeout_s:
            has, wanted = f"{config.timeout_s:g} s", f"{self.lease_timeout_s:g}s"
            found.append((f"lease_timeout is {has}, not {self.lease_timeout_s:g} s", f"--timeout {wanted}"))
        if self.max_in_flight is not None and self.max_in_flight != config.max_in_flight:
            what = f"max_in_flight is {config.max_in_flight}, not {self.max_in_flight}"
            found.append((what, f"--max-in-flight {self.max_in_flight}"))
        if self.mode is not None and self.mode != config.mode:
            found.append((f"mode is {config.mode}, not {self.mode}", f"--mode {self.mode}"))
        return found

    def compare(self, configs: Sequence[GroupConfig]) -> None:
        """Warn of differences: the same only once, however many consumers ask for it; and once for all topics at which
        it is the same."""
        alike: dict[tuple[tuple[str, str], ...], list[GroupConfig]] = {}
        for config in configs:
            if found := tuple(self.differences(config)):
                alike.setdefault(found, []).append(config)
        for found, some in alike.items():
            told = ", ".join(what for what, _ in found)
            new = [config for config in some if _is_new(f"{config.topic} {config.name} {told}")]
            if new:
                _warn(new, told, " ".join(flag for _, flag in found))


def _is_new(text: str) -> bool:
    with _telling:
        if text in _told:
            return False
        if len(_told) >= _TOLD_MAX:
            del _told[next(iter(_told))]
        _told[text] = None
        return True


def _warn(configs: Sequence[GroupConfig], told: str, flags: str) -> None:
    first, names = configs[0], [config.topic for config in configs]
    if len(names) == 1:
        topics = f"topic {names[0]}"
    else:
        rest = len(names) - _NAMED_MAX
        topics = f"topics {', '.join(names[:_NAMED_MAX])}{f' and {rest} more' if rest > 0 else ''}"
    each = ", and so on" if len(names) > 1 else ""
    text = (
        f"group {first.name} of {topics} exists already and keeps its settings: {told}. To change them: "
        f"towline group create {first.topic} {first.name} {flags}{each}"
    )
    log.warning(text)


def _of_retry(wanted: RetryPolicy, has: RetryPolicy) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if wanted.max_attempts != has.max_attempts:
        what = f"retry has {has.max_attempts} attempts, not {wanted.max_attempts}"
        found.append((what, f"--max-attempts {wanted.max_attempts}"))
    if _waits(wanted) != _waits(has):
        found.append((f"retry waits {_waits(has)}, not {_waits(wanted)}", _flag(wanted)))
    return found


def _waits(policy: RetryPolicy) -> str:
    if policy.kind == "delays":
        return ",".join(f"{delay:g}s" for delay in policy.delays_s)
    return f"{policy.first_s:g}s growing by {policy.factor:g} up to {policy.cap_s:g}s, jitter {policy.jitter:g}"


def _flag(policy: RetryPolicy) -> str:
    if policy.kind == "delays":
        return f"--retry-delays {_waits(policy)}"
    return f"--backoff {policy.first_s:g}s,{policy.factor:g},{policy.cap_s:g}s,{policy.jitter:g}"


_TOPICS_MAX: Final = 100_000


class EffectiveSettings:
    def __init__(self, config: GroupConfig, requested: RequestedSettings, prefetch: int) -> None:
        self.config = config
        """As the broker has it, once we are attached; of a subscription by prefix, as we asked for it."""
        self.prefetch = prefetch
        """Of groups that deliver at most once nothing is fetched ahead: what waits here would be lost with us."""
        self.at_most_once = False
        """Some group of the subscription delivers at most once."""
        self._requested = requested
        self._others: dict[str, GroupConfig] = {}
        """By topic, the groups of a subscription by prefix that differ from what we asked for."""

    def attached(self, answer: Attached) -> None:
        self.config = answer.config
        self._mind_mode(answer.config)
        self._requested.compare([answer.config])
        self._others.clear()
        self.learn(answer.groups)

    def learn(self, groups: Sequence[GroupConfig]) -> None:
        for config in groups:
            if len(self._others) < _TOPICS_MAX:
                self._others[config.topic] = config
            self._mind_mode(config)
        self._requested.compare(groups)

    def _mind_mode(self, config: GroupConfig) -> None:
        if config.mode == AT_MOST_ONCE:
            self.prefetch = 0
            self.at_most_once = True

    def of(self, topic: str) -> GroupConfig:
        """The settings of the group on a topic."""
        return self._others.get(topic, self.config) if self._others else self.config
