"""The tables of docs/wire-format.md, made from the messages themselves.

`python -m tests.unit.protocol.wire_tables` writes them into the document; a test compares. As long as the
highest version is not released, `python -m tests.unit.protocol.wire_tables golden` writes the golden bytes as well.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as types

from tests.unit.protocol import samples
from towline.alarms.book import Changed
from towline.alarms.rule import AlarmRule
from towline.alarms.watch import Alarm
from towline.model import GroupConfig, RetryPolicy, TopicConfig
from towline.protocol import access, cluster, monitor, publications, scan
from towline.protocol import messages as m
from towline.protocol import transactions as tx
from towline.protocol.envelope import encode_envelope
from towline.protocol.groups import Pause
from towline.protocol.topics import EditTopic
from towline.protocol.versions import FIELDS, LONGER, VALUES

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "wire-format.md"
GOLDEN = Path(__file__).with_name("golden-v2.txt")

DONE = {m.Beat, m.Detach, m.CreateTopic, m.DeleteTopic, m.PutGroup, m.DeleteGroup, m.PutTopic, tx.Resolve} | {
    Pause,
    EditTopic,
    access.PutUser,
    access.DeleteUser,
    access.RevokeToken,
    access.DropRule,
    cluster.ForgetBroker,
    cluster.CloseConnection,
    monitor.PutAlarm,
    monitor.DropAlarm,
    monitor.TestAlarm,
    monitor.SilenceAlarm,
    monitor.Kick,
    publications.MoveHold,
    publications.Report,
    publications.Unstage,
}
PARTS: list[type[msgspec.Struct]] = [
    m.FrameHead,
    m.Place,
    m.Places,
    m.Act,
    m.Part,
    m.LaneState,
    m.MemberState,
    m.TraceCursor,
    m.TraceStep,
    m.DelayedMessage,
    tx.Check,
    tx.TransactionState,
    scan.StreamState,
    access.Quota,
    access.Grant,
    access.Rule,
    access.UserState,
    access.SecretState,
    access.TokenState,
    access.AuditEntry,
    access.TopicFigures,
    access.GroupFigures,
    cluster.BrokerState,
    cluster.RealmState,
    cluster.ClientState,
    monitor.TopicRow,
    monitor.GroupRow,
    monitor.SegmentState,
    monitor.Told,
    Changed,
    Alarm,
]
MAPS: list[type[msgspec.Struct]] = [TopicConfig, GroupConfig, RetryPolicy, AlarmRule]


def answer_to(request: type[m.Request]) -> str:
    answers = ["Done"] if request in DONE else []
    if request not in DONE or request is m.Beat:
        answers.append(m.ANSWERS[request.kind + 128].__name__)
    return "` or `".join(answers)


def requests_table() -> str:
    rows = [
        f"| {kind} | `{cls.__name__}` | {fields(cls)} | `{answer_to(cls)}` |"
        for kind, cls in sorted(m.REQUESTS.items())
    ]
    return "\n".join(["| kind | request | fields | answer |", "|---|---|---|---|", *rows])


def answers_table() -> str:
    rows = [f"| {kind} | `{cls.__name__}` | {fields(cls)} |" for kind, cls in sorted(m.ANSWERS.items())]
    return "\n".join(["| kind | answer | fields |", "|---|---|---|", *rows])


def parts_table() -> str:
    rows = [f"| `{cls.__name__}` | array | {fields(cls)} |" for cls in PARTS]
    rows += [f"| `{cls.__name__}` | map | {fields(cls)} |" for cls in MAPS]
    return "\n".join(["| part | MessagePack | fields |", "|---|---|---|", *rows])


def fields(cls: type[msgspec.Struct]) -> str:
    info = types.type_info(cls)
    assert isinstance(info, types.StructType)
    lines = [f"`{field.name}`: {describe(field.type)}{default(field)}{since(cls, field.name)}" for field in info.fields]
    if issubclass(cls, m.Request | m.Answer) and cls.newer is not None:
        lines.append(f"*all of it since {cls.newer.since}*")
    return "<br>".join(lines) or "–"


def since(cls: type[msgspec.Struct], field: str) -> str:
    """Of what is not in version 1."""
    values = VALUES.get(cls, {}).get(field, {})
    newer = FIELDS.get(cls, {}).get(field)
    told = [f"`{value}` since {one.since}" for value, one in values.items()] + (
        [f"since {newer.since}"] if newer else []
    )
    if (longer := LONGER.get(cls, {}).get(field)) is not None:
        told.append(f"over {longer.before} since {longer.newer.since}")
    return f" *({', '.join(told)})*" if told else ""


def default(field: types.Field) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return " = []"
    if field.default is msgspec.NODEFAULT:
        return ""
    if isinstance(field.default, msgspec.Struct):
        return " = its defaults"
    shown = msgspec.json.encode(field.default).decode()
    return f" = {shown.replace('null', 'nil')}"


def describe(kind: Any) -> str:
    match kind:
        case types.IntType():
            return "int" + limits(kind.ge, kind.le)
        case types.FloatType():
            return "float" + limits(kind.ge, kind.le)
        case types.StrType():
            return "str" + (f" ≤ {kind.max_length}" if kind.max_length is not None else "")
        case types.BytesType():
            return "bin"
        case types.BoolType():
            return "bool"
        case types.NoneType():
            return "nil"
        case types.AnyType():
            return "any"
        case types.LiteralType():
            return " or ".join(f'"{value}"' for value in sorted(map(str, kind.values)))
        case types.ListType() | types.VarTupleType():
            most = f", at most {kind.max_length}" if kind.max_length is not None else ""
            least = f", at least {kind.min_length}" if kind.min_length is not None else ""
            return f"[{describe(kind.item_type)} …{least}{most}]"
        case types.TupleType():
            return f"[{', '.join(describe(item) for item in kind.item_types)}]"
        case types.DictType():
            return f"map of {describe(kind.key_type)} to {describe(kind.value_type)}"
        case types.UnionType():
            return " or ".join(sorted((describe(item) for item in kind.types), key="nil".__eq__))
        case types.StructType():
            return f"`{kind.cls.__name__}`"
    raise TypeError(f"no words for {kind}")


def limits(low: float | None, high: float | None) -> str:
    names = {(1 << 63) - 1: "2⁶³−1", 1 << 30: "2³⁰"}
    if low is not None and high is not None:
        return f" {low:g}…{names.get(int(high), f'{high:g}' if high < 1e6 else int(high))}"
    return f" ≥ {low:g}" if low is not None else ""


def document_with_tables(text: str) -> str:
    """The document with each table put between its marks."""
    for name, table in {"requests": requests_table(), "answers": answers_table(), "parts": parts_table()}.items():
        before, begin, rest = text.partition(f"<!-- {name}: generated -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        assert end, f"the document has no place for the {name}"
        text = f"{before}{begin}{table}\n{end}{after}"
    return text


def golden_text() -> str:
    messages: list[m.Request | m.Answer] = [*samples.REQUESTS, *samples.ANSWERS]
    return "".join(f"{type(one).__name__} {encode_envelope(258, one).hex()}\n" for one in messages)


if __name__ == "__main__":
    DOCUMENT.write_text(document_with_tables(DOCUMENT.read_text()))
    if sys.argv[1:] == ["golden"]:
        GOLDEN.write_text(golden_text())
