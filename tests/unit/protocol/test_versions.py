"""Versions of the protocol: what is newer than a released one is in the table, and is not said to peers of that one."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import towline
from tests.unit.protocol import samples
from tests.unit.protocol.listing import limits, listing
from towline.errors import Unreadable, Unsupported
from towline.protocol import messages as m
from towline.protocol import versions
from towline.protocol.access import GroupFigures, Measured
from towline.protocol.backup import BeginBackup
from towline.protocol.base import Newer
from towline.protocol.cluster import CloseConnection
from towline.protocol.envelope import Decoder, decode_answer, decode_request, encode_envelope
from towline.protocol.monitor import Alarms, PutAlarm
from towline.protocol.publications import AskSink, Publish

FOLDER = Path(__file__).parent
WHAT_TO_DO = "{what} is not in version {number} of the protocol: say so where it is, or in towline/protocol/versions.py"
MESSAGES: tuple[type[m.Request | m.Answer], ...] = (*m.REQUESTS.values(), *m.ANSWERS.values())
RELEASED_BYTES = FOLDER / "golden-0.1.0.txt"
"""What the version of that name wrote for the samples that it had: version 1."""


def _parsed(text: str) -> dict[str, dict[str, set[str]]]:
    """Of each struct, its fields in order, and their values if they have one of several."""
    found: dict[str, dict[str, set[str]]] = {}
    for line in text.splitlines():
        name, _, fields = line.partition(":")
        pairs = (field.partition("=") for field in fields.split())
        found[name] = {field: set(values.split("|")) - {""} for field, _, values in pairs}
    return found


@pytest.mark.parametrize("number", sorted(versions.RELEASED))
def test_what_came_after_a_released_version_is_in_the_table(number: int) -> None:
    then, now = _parsed((FOLDER / f"version-{number}.txt").read_text()), _parsed(listing())
    kinds = {cls.__name__ for cls in MESSAGES if cls.newer is not None and cls.newer.since > number}
    fields = {cls.__name__: names for cls, names in versions.FIELDS.items()}
    values = {cls.__name__: names for cls, names in versions.VALUES.items()}
    messages = {cls.__name__ for cls in MESSAGES}
    assert not then.keys() - now.keys(), "a peer of a released version may say it"
    for name in sorted(now.keys() & messages - then.keys()):
        assert name in kinds, WHAT_TO_DO.format(what=name, number=number)
    for name in sorted(then):
        assert [*now[name]][: len(then[name])] == [*then[name]], f"{name}: fields are added at the end"
        for field in [*now[name]][len(then[name]) :]:
            since = fields.get(name, {}).get(field, Newer(0)).since
            assert since > number, WHAT_TO_DO.format(what=f"{name}.{field}", number=number)
        for field, had in then[name].items():
            assert had <= now[name][field], f"{name}.{field}: a peer of a released version may say all of {had}"
            for value in sorted(now[name][field] - had):
                known = values.get(name, {}).get(field, {})
                assert value.strip("'") in known, WHAT_TO_DO.format(what=f"{name}.{field} {value}", number=number)


def _limits(text: str, begin: str = "") -> dict[str, str]:
    """Of each field, its type and limits; of fields with words, or of errors, if the lines begin so."""
    lines = (line.removeprefix(begin).partition(": ") for line in text.splitlines() if line.startswith(begin))
    return {name: rest for name, _, rest in lines if begin or " " not in name}


@pytest.mark.parametrize("number", sorted(versions.RELEASED))
def test_limits_and_words_that_a_released_version_does_not_have_are_in_the_table(number: int) -> None:
    then, now = (FOLDER / f"limits-{number}.txt").read_text(), limits()
    longer = {
        f"{cls.__name__}.{name}": limit
        for cls, fields in versions.LONGER.items()
        for name, limit in fields.items()
        if limit.newer.since > number
    }
    for name, had in _limits(then).items():
        if (has := _limits(now).get(name, "")) != had:
            assert name in longer, WHAT_TO_DO.format(what=f"{name}: {has} ({had} then)", number=number)
            assert had == has.replace(f"max_length {_max_length(has)}", f"max_length {longer[name].before}")
    values = {cls.__name__: names for cls, names in versions.VALUES.items()}
    for name, words in _limits(now, "words of ").items():
        struct, _, field = name.partition(".")
        known = values.get(struct, {}).get(field, {})
        for word in {*words.split()} - {*_limits(then, "words of ").get(name, "").split()}:
            assert word in known, WHAT_TO_DO.format(what=f"{name} {word}", number=number)


def _max_length(text: str) -> int:
    return int(text.partition("max_length ")[2].partition(")")[0])


@pytest.mark.parametrize("number", sorted(versions.RELEASED))
def test_an_error_that_a_released_version_does_not_have_says_what_that_takes_it_for(number: int) -> None:
    then, now = (_limits(text, "error ") for text in ((FOLDER / f"limits-{number}.txt").read_text(), limits()))
    assert not then.keys() - now.keys()
    for code in now.keys() - then.keys():
        assert now[code] in then, f"{code} needs an older_code that version {number} of the protocol has"


def test_a_new_word_a_longer_limit_and_a_new_error_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check_limits = test_limits_and_words_that_a_released_version_does_not_have_are_in_the_table
    check_errors = test_an_error_that_a_released_version_does_not_have_says_what_that_takes_it_for
    said = limits()
    for old, new, check in [
        ("words of Rule.action: *", "words of Rule.action: * publish", check_limits),
        ("AddRule.rule: Rule", "AddRule.rule: Rule | None", check_limits),
        ("RevokeToken.name: str (max_length 64)", "RevokeToken.name: str (max_length 65)", check_limits),
        ("error unsupported: bad-request", "error unsupported: -", check_errors),
        ("error timeout: -", "error timeout: -\nerror too-cold: -", check_errors),
    ]:
        assert old in said
        changed = said.replace(old, new)
        monkeypatch.setitem(globals(), "limits", lambda changed=changed: changed)
        with pytest.raises(AssertionError):
            check(1)


def test_nothing_is_in_the_table_that_is_not_on_the_wire() -> None:
    now = _parsed(listing())
    assert all(cls.__name__ in now for cls in (*versions.FIELDS, *versions.VALUES, *versions.LONGER))
    for cls, names in versions.FIELDS.items():
        assert [*now[cls.__name__]][-len(names) :] == [*names], cls
    newest = [cls.newer.since for cls in MESSAGES if cls.newer is not None]
    newest += [one.since for names in versions.FIELDS.values() for one in names.values()]
    assert max(newest) <= m.VERSION
    assert set(range(m.VERSION_MIN, m.VERSION)) <= set(versions.RELEASED)


def _hinted(message: m.Request | m.Answer) -> bool:
    """Whether a peer of version 1 can be told this."""
    newer = message.newer, *versions.FIELDS.get(type(message), {}).values()
    return not any(one is not None and one.what for one in newer)


SAMPLES: list[m.Request | m.Answer] = [*samples.REQUESTS, *samples.ANSWERS]


@pytest.mark.parametrize("message", [one for one in SAMPLES if _hinted(one)], ids=lambda one: type(one).__name__)
def test_a_peer_of_version_1_gets_the_bytes_that_version_1_wrote(message: m.Request | m.Answer) -> None:
    then = dict(line.split(" ", 1) for line in RELEASED_BYTES.read_text().splitlines())
    name = type(message).__name__
    if name in then:
        message = PLAIN.get(name, message)
        assert encode_envelope(258, message, 0, 1).hex() == then[name]


PLAIN: dict[str, m.Request | m.Answer] = {
    "Pulled": m.Pulled((1 << 40) + 5, [samples.PART], [(0, "lease-lost", "too late")], more=True),
}
"""Samples of version 1, where those of today have something in them that is never said to a peer of that."""


def test_what_a_request_means_is_never_left_out() -> None:
    rule = msgspec.structs.replace(samples.ALARM_RULE, what="retention")
    named = re.escape(f"(Towline {versions.RELEASED.get(2, towline.__version__)})")
    for request, what in [
        (BeginBackup(), "be backed up while it runs"),
        (CloseConnection("10.1.2.3:51234"), "close a connection"),
        (Publish("spark:7f", 4, [17], digest=b"\0"), "compare the contents of a sink's epochs"),
        (PutAlarm(rule), "raise alarms of what holds retention back"),
        (Publish("s" * 151, 4, [17]), "hear of a sink with a name of more than 150 characters"),
        (AskSink("s" * 151), "hear of a sink with a name of more than 150 characters"),
    ]:
        with pytest.raises(Unsupported, match=f"^cannot {what}: that came with version 2 of the protocol {named}$"):
            encode_envelope(1, request, 0, 1)
        assert encode_envelope(1, request)
    assert encode_envelope(1, AskSink("s" * 150), 0, 1) == encode_envelope(1, AskSink("s" * 150))
    assert encode_envelope(1, Publish("spark:7f", 4, [17]), 0, 1) == encode_envelope(1, _like_version_1(), 0, 1)


def _like_version_1() -> m.Request:
    return Publish("spark:7f", 4, [17], digest=b"", members=[])


def test_a_hint_is_left_out() -> None:
    [envelope] = Decoder(1 << 20).feed(encode_envelope(1, m.Pull(1, 5, 1 << 20, scattered=True), 0, 1))
    assert envelope.head[0] == 0x90 + 7, "an array of seven"
    assert decode_request(envelope) == m.Pull(1, 5, 1 << 20)


def test_what_a_peer_cannot_make_sense_of_is_left_out_of_lists() -> None:
    known = samples.ALARM_RULE
    rules = Alarms([known, msgspec.structs.replace(known, name="new", what="retention")], [], [], mail=False)
    [envelope] = Decoder(1 << 20).feed(encode_envelope(1, rules, 0, 1))
    assert decode_answer(envelope) == Alarms([known], [], [], mail=False)


def test_an_error_that_a_peer_does_not_know_becomes_one_that_it_treats_alike() -> None:
    [envelope] = Decoder(1 << 20).feed(encode_envelope(1, m.Failed.of(Unreadable("a disk")), 0, 1))
    assert decode_answer(envelope) == m.Failed("timeout", "a disk")


def test_parts_of_answers_are_cut_as_well() -> None:
    figures = GroupFigures("orders", "billing", 90, 3000, 80, 5, 10, 0, 3, 2, 1, 4, 6, "a disk", 0.5)
    [cut] = versions.in_words_of(1, Measured(1, {}, [], [figures]))[3]
    assert len(cut) == 13
