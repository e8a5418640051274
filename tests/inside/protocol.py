"""Names of `towline.protocol`, for tests."""

from __future__ import annotations

from towline.protocol import (
    PREFACE,
    Decoder,
    Envelope,
    access,
    backup,
    cluster,
    decode_request,
    encode_envelope,
    messages,
    monitor,
    publications,
    scan,
    transactions,
)
from towline.protocol.access import Grant, GroupFigures, Measure, Measured, PutUser, Quota, Rule, WhoAmI
from towline.protocol.backup import HoldBackup
from towline.protocol.cluster import (
    BROKERS_MAX,
    Backlog,
    Brokers,
    BrokerState,
    Clients,
    CloseConnection,
    HandBack,
    ListBrokers,
    ListClients,
    Meet,
    Met,
)
from towline.protocol.consume import ACK, DEAD, GIVE_BACK
from towline.protocol.envelope import PREFIX, decode_answer
from towline.protocol.groups import Pause, Seek
from towline.protocol.messages import (
    VERSION,
    Act,
    Answer,
    Arrived,
    Attach,
    Attached,
    Beat,
    Browse,
    CancelDelayed,
    CreateTopic,
    DeleteTopic,
    Detach,
    Done,
    Failed,
    Find,
    FrameHead,
    GroupInfo,
    Groups,
    GroupState,
    Held,
    Hello,
    ListDelayed,
    ListGroups,
    ListTopics,
    Locate,
    MoveDelayed,
    Part,
    Place,
    Places,
    Pull,
    Pulled,
    PurgeDead,
    PutGroup,
    PutTopic,
    Request,
    Resend,
    Resent,
    ReviseDead,
    Send,
    Sent,
    Settle,
    Settled,
    Stat,
    Stated,
    TopicInfo,
    Topics,
    Trace,
    Traced,
    Welcome,
)
from towline.protocol.monitor import ListPage, Pulse, PutAlarm, TestAlarm
from towline.protocol.publications import AskSink, Publish, Published, Report, SinkState, Stage, Staged
from towline.protocol.scan import Scan
from towline.protocol.topics import EditTopic, Purge, ShardCount, Sharded
from towline.protocol.transactions import (
    AwaitChecks,
    Check,
    Decide,
    Decided,
    ListTransactions,
    Prepare,
    Prepared,
    Resolve,
)
