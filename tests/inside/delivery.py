"""Names of `towline.delivery`, for tests."""

from __future__ import annotations

from towline.delivery import (
    Group,
    GroupSnapshot,
    Part,
    Start,
    decode_event,
    encode_event,
    publications,
    snapshot,
    transactions,
)
from towline.delivery.catalog_changes import GROUP_CHANGES, TOPIC_CHANGES
from towline.delivery.dedup import DEDUP_ID_MAX
from towline.delivery.group import group, lease, retry
from towline.delivery.group.events import (
    Acked,
    Buried,
    Event,
    Failed,
    GaveUp,
    Moved,
    Overrun,
    Paused,
    Pulled,
    Released,
    Resumed,
    Returned,
    Skipped,
    Started,
)
from towline.delivery.group.group import EXPIRED, REASON_MAX
from towline.delivery.group.lease import Lease, SettledPulls
from towline.delivery.group.parts import PartSet
from towline.delivery.group.retry import due_after
from towline.delivery.group.snapshot import EXCERPT
from towline.delivery.group.states import RULES, State
from towline.delivery.publications import (
    DIGESTS_MAX,
    Decided,
    Publications,
    PublicationsSnapshot,
    StagedHead,
    decode_publish_mark,
)
from towline.delivery.schedule import schedule
from towline.delivery.schedule.delivered import arrival
from towline.delivery.schedule.events import Cancelled, Due, Run
from towline.delivery.schedule.schedule import NEAR_BYTES, Schedule
from towline.delivery.transactions import Prepared, RolledBack, Transactions
