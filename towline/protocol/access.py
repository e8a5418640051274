"""Requests and answers about access: users, tokens, rules, the audit log; and figures for monitoring.

An *action* is done to a *resource*: send, consume, create, alter, delete, describe or admin; to a topic, a group or the
cluster. A name that ends with `*` is a prefix, `*` alone is every name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from towline.protocol.messages import ANSWERS, REQUESTS, Answer, Request

__all__ = [
    "ACTIONS",
    "RESOURCES",
    "AddRule",
    "Audit",
    "AuditEntry",
    "CreateToken",
    "DeleteUser",
    "DropRule",
    "Grant",
    "GroupFigures",
    "ListAudit",
    "ListRules",
    "ListTokens",
    "ListUsers",
    "Me",
    "Measure",
    "Measured",
    "PutUser",
    "Quota",
    "RevokeToken",
    "Rule",
    "RuleAdded",
    "Rules",
    "SecretState",
    "TokenMade",
    "TokenState",
    "Tokens",
    "TopicFigures",
    "UserState",
    "Users",
    "WhoAmI",
]

Action = Literal["send", "consume", "create", "alter", "delete", "describe", "admin"]
Resource = Literal["topic", "group", "cluster"]
ACTIONS: tuple[Action, ...] = ("send", "consume", "create", "alter", "delete", "describe", "admin")
RESOURCES: tuple[Resource, ...] = ("topic", "group", "cluster")

_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Name = Annotated[str, msgspec.Meta(max_length=64)]
_Pattern = Annotated[str, msgspec.Meta(max_length=64)]
_Names = Annotated[list[_Name], msgspec.Meta(max_length=100)]
_Texts = Annotated[list[Annotated[str, msgspec.Meta(max_length=300)]], msgspec.Meta(max_length=100)]


class Quota(msgspec.Struct, frozen=True, array_like=True):
    """Limits of a principal, over all its connections together; 0 is no limit."""

    bytes_per_s: _Natural = 0
    """Of frames sent and received; a sender beyond it is slowed down, not refused."""
    connections: _Natural = 0
    in_flight: _Natural = 0
    """Messages held and not settled."""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """One action on one resource; `*` is any."""

    action: Annotated[str, msgspec.Meta(max_length=20)]
    resource: Annotated[str, msgspec.Meta(max_length=20)]
    name: _Pattern = "*"


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """A rule that allows or denies an action. A deny beats every allow."""

    id: _Natural
    subject: _Name
    """A user or token by its name, `role:NAME`, or `*` for everyone."""
    effect: Literal["allow", "deny"]
    action: Annotated[str, msgspec.Meta(max_length=20)]
    resource: Annotated[str, msgspec.Meta(max_length=20)]
    name: _Pattern
    created_at_us: _Natural = 0
    created_by: _Name = ""


class UserState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    roles: list[str]
    disabled: bool
    has_password: bool
    identities: list[str]
    """Client certificates that stand for the user: `cn:NAME`, `dns:NAME`, `uri:URI` or `sha256:HEX`, each exactly."""
    quota: Quota
    created_at_us: int


class SecretState(msgspec.Struct, frozen=True, array_like=True):
    """A secret of a token, without the secret."""

    id: str
    created_at_us: int
    expires_at_us: int
    """0 is never."""
    last_used_us: int


class TokenState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    owner: str
    """The user whose permissions it has; empty for a token with permissions of its own."""
    roles: list[str]
    scopes: list[Grant]
    """The only actions that it may do; empty is no limit."""
    quota: Quota
    secrets: list[SecretState]
    """Two at most: the current one, and its successor."""
    created_at_us: int


class WhoAmI(Request, frozen=True, array_like=True):
    """The principal of this connection, and whether it may do these: so that a program can leave out what would be
    refused. Anyone may ask."""

    kind = 90
    may: Annotated[list[Grant], msgspec.Meta(max_length=1_000)] = []  # noqa: RUF012 - a Struct copies it


class Me(Answer, frozen=True, array_like=True):
    kind = 218
    name: str
    user: str
    roles: list[str]
    security: bool
    """Without security everyone may do everything."""
    allowed: list[bool]
    expires_at_us: int = 0


class ListUsers(Request, frozen=True, array_like=True):
    kind = 91


class Users(Answer, frozen=True, array_like=True):
    kind = 219
    users: list[UserState]


class PutUser(Request, frozen=True, array_like=True):
    """Make a user (`create`), or change one: nil fields stay as they are. Everyone may change the own password, and
    must give the old one. Answered by `Done`."""

    kind = 92
    name: _Name
    create: bool = False
    password: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    """Empty: no login by password any more."""
    old_password: Annotated[str, msgspec.Meta(max_length=512)] = ""
    roles: _Names | None = None
    disabled: bool | None = None
    identities: _Texts | None = None
    quota: Quota | None = None


class DeleteUser(Request, frozen=True, array_like=True):
    """With its tokens and rules. Answered by `Done`."""

    kind = 93
    name: _Name


class ListTokens(Request, frozen=True, array_like=True):
    """All, or those of a user. Everyone may list the own ones."""

    kind = 94
    owner: _Name = ""


class Tokens(Answer, frozen=True, array_like=True):
    kind = 222
    tokens: list[TokenState]


class CreateToken(Request, frozen=True, array_like=True):
    """Make a token, or with `rotate` a second secret for it, while the first one is good until it is revoked. Everyone
    may make tokens of the own user."""

    kind = 95
    name: _Name
    owner: _Name = ""
    scopes: Annotated[list[Grant], msgspec.Meta(max_length=1_000)] = []  # noqa: RUF012 - a Struct copies it
    expires_s: Annotated[float, msgspec.Meta(ge=0, le=100 * 366 * 86400)] = 0
    """0 is never."""
    rotate: bool = False
    roles: _Names = []  # noqa: RUF012 - a Struct copies it
    quota: Quota = Quota()


class TokenMade(Answer, frozen=True, array_like=True):
    """The secret is shown this once: the broker keeps a hash of it."""

    kind = 223
    name: str
    secret: str
    id: str
    expires_at_us: int


class RevokeToken(Request, frozen=True, array_like=True):
    """One secret of a token, or with an empty `id` the token. Its connections are closed. Answered by `Done`."""

    kind = 96
    name: _Name
    id: _Name = ""


class ListRules(Request, frozen=True, array_like=True):
    """All, or those of a subject."""

    kind = 97
    subject: _Name = ""


class Rules(Answer, frozen=True, array_like=True):
    """`roles` are the built-in roles, and what each allows."""

    kind = 225
    rules: list[Rule]
    roles: dict[str, list[Grant]]


class AddRule(Request, frozen=True, array_like=True):
    kind = 98
    rule: Rule
    """The broker sets its id and its author."""


class RuleAdded(Answer, frozen=True, array_like=True):
    kind = 226
    id: int


class DropRule(Request, frozen=True, array_like=True):
    """Answered by `Done`."""

    kind = 99
    id: _Natural


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    number: int
    at_us: int
    actor: str
    address: str
    what: str
    """The request, by its name; or `login`."""
    target: str
    """Its object: `topic orders`, `user alice`."""
    outcome: str
    """done, refused, or the code of the error."""
    detail: str = ""


class ListAudit(Request, frozen=True, array_like=True):
    """The newest first: those before `before` (0: from the newest on)."""

    kind = 100
    before: _Natural = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 100
    actor: _Name = ""
    what: _Name = ""
    outcome: _Name = ""
    since_us: _Natural = 0


class Audit(Answer, frozen=True, array_like=True):
    """`next` is the `before` of the next part; 0 if there is no more."""

    kind = 228
    entries: list[AuditEntry]
    next: int


class TopicFigures(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic: str
    messages_in: int
    """Since the topic was made, by the lanes' numbers."""
    bytes_in: int
    """Since the broker started."""
    kept: int
    kept_bytes: int
    delayed: int


class GroupFigures(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic: str
    group: str
    messages_out: int
    """Delivered since the broker started, as are the next three."""
    bytes_out: int
    acks: int
    nacks: int
    backlog: int
    oldest_at_us: int
    """When the oldest unconsumed message came in; 0 if there is none, or if it is not known yet."""
    in_flight: int
    leases: int
    retrying: int
    dead: int
    members: int
    unreadable: str = ""
    """Why the group waits: the store cannot read the messages that are next. Empty if it can."""
    retry_load: float = 0.0
    """The load of its retry queue: at 1.0 the group gets nothing new."""
    expires_in_s: float = -1.0
    """The time until it is removed because nobody uses it, if that is soon; else below 0."""


class Measure(Request, frozen=True, array_like=True):
    """Figures of the broker, its topics and its groups, as its metrics give them; of one topic if it is named."""

    kind = 101
    topic: _Name = ""


class Measured(Answer, frozen=True, array_like=True):
    kind = 229
    at_us: int
    broker: dict[str, Any]
    topics: list[TopicFigures]
    groups: list[GroupFigures]


REQUESTS.update(
    {
        cls.kind: cls
        for cls in (
            WhoAmI,
            ListUsers,
            PutUser,
            DeleteUser,
            ListTokens,
            CreateToken,
            RevokeToken,
            ListRules,
            AddRule,
            DropRule,
            ListAudit,
            Measure,
        )
    }
)
ANSWERS.update({cls.kind: cls for cls in (Me, Users, Tokens, TokenMade, Rules, RuleAdded, Audit, Measured)})
