"""One example of every request and answer, with every field set to something that is not its default."""

from __future__ import annotations

from towline.alarms.book import Changed
from towline.alarms.rule import AlarmRule
from towline.alarms.watch import Alarm
from towline.model import GroupConfig, RetryPolicy, TopicConfig
from towline.protocol import access, backup, cluster, monitor, publications, scan
from towline.protocol import messages as m
from towline.protocol import transactions as tx
from towline.protocol.groups import Pause, Seek, Sought
from towline.protocol.topics import EditTopic, Purge, Purged, ShardCount, Sharded

TOPIC = TopicConfig("orders", 1_700_000_000_000_000, 3600.0, 64, "shop", "mia", ("mia@example.com",))
GROUP = GroupConfig(
    topic="orders",
    name="billing",
    start="latest",
    retry=RetryPolicy(3, (1.0, 2.5), "exponential", 0.5, 3.0, 60.0, 0.25),
    timeout_s=30.0,
    max_in_flight=500,
    ephemeral=True,
    created_at_us=1_700_000_000_000_001,
    dead_retention_s=86400.0,
    paused=True,
    pause_reason="rest",
    share=(16, 4, 1),
    mode="at-most-once",
    expired_to_dead=True,
)
ACT = m.Act(1, 7, [(0, 10, 5), (2, 1 << 40, 1)], False, 12.5, "no such customer")
PART = m.Part(1, 1000, 20, 3, 4096, 2, 1_700_000_000_000_002, bytes([127, 0, 0, 1]))
SCATTERED = m.Part(1, 1000, 3, 0, 4096, 2, 1_700_000_000_000_002, bytes([127, 0, 0, 1]), ((0, 1000, 1), (1, 1002, 2)))
LANE = m.LaneState("high", 5, 25, 4096)
TOPIC_STATE = m.TopicState(TOPIC, [LANE], ["billing"], 7)
DELAYED = m.DelayedMessage(12, "orders", 2, 1_700_000_000_000_006, 1_700_000_000_000_007, "order-4423", 100, 8)
GROUP_STATE = m.GroupState(
    GROUP,
    [("high", 5, 25)],
    20,
    3,
    2,
    1_700_000_000_000_003,
    1,
    4,
    [m.MemberState("c1", "127.0.0.1:5", 3, True, 0.5)],
    "a disk",
)
CHECK = tx.Check("9f31a7", "order-4423", "shop", 1_700_000_000_000_006, 2, 5, ["orders", "stock"])
TRANSACTION = tx.TransactionState(
    *("9f31a7", "parked", "shop", "order-4423", "appid-340101", 1_700_000_000_000_006, 5, 4096, ["orders", "stock"]),
    *(15, 1_700_000_000_000_008, 1_700_000_000_000_009, "by hand"),
)

CURSOR = m.TraceCursor(77, [(4, 2)], [3], "pulled", True)
STEP = m.TraceStep(1_700_000_000_000_006, "failed", 7, "c1", 2, "no such customer", 1_700_000_000_000_007, 3, True)

GRANT = access.Grant("send", "topic", "orders.*")
QUOTA = access.Quota(1 << 20, 10, 1000)
RULE = access.Rule(7, "alice", "deny", "send", "topic", "orders.*", 1_700_000_000_000_000, "root")
SECRET = access.SecretState("9f31a7", 1_700_000_000_000_000, 1_700_000_000_000_001, 1_700_000_000_000_002)
BROKER = cluster.BrokerState(
    *("9f31a7", "left", "10.0.0.1:7400", 3, "silent", 1.5, "file", True, 12, 5, 3600.5),
    *("5b0c2d", "0.2.0", 2, 2),
)
CLIENT = cluster.ClientState(
    *("10.0.0.9:51234", "consumer", "appid-340101", "towline-python", 12.5, 0.5, 3),
    *("orders", "billing", "c1", 1, 3, 20, True),
)
ALARM_RULE = AlarmRule(
    *("late", "age", 60.0, "orders.*", "billing", ("ops@example.com",), ("https://x.example/a",), False, 5.0, 600.0),
    *(False, 1_700_000_600_000_000, "the warehouse moves"),
)
ALARM = Alarm(
    *("late", "orders", "billing", 61.5, 1_700_000_000_000_005, 1_700_000_000_000_006, ("mia@example.com",), True)
)
TOPIC_ROW = monitor.TopicRow(TOPIC, 100, 4096, 2, 3, 7, 1, 4, 12.5, 11.5)
GROUP_ROW = monitor.GroupRow(
    "orders", "billing", True, 2, 7, 1_700_000_000_000_001, 3, 2, 1, 12.5, 4, 1_700_000_000_000_002
)

PLACES = m.Places(1 << 51, [m.Place("orders", 64, [(0, 17), (66, 1 << 40)], [(0, 3, 2, 1), (0, 9, 1, 4)])])

REQUESTS: list[m.Request] = [
    m.Hello(1, 2, "appid-340101;sid-p0912", "s3cret", "towline-test 1", "10.0.0.5"),
    m.Beat(3, [7, 1 << 41]),
    m.Send([m.FrameHead("orders", 0, 100), m.FrameHead("stock", 12, 70_000, 64)], 1),
    m.Attach("orders", "billing", "c1", GROUP, [7, 1 << 41], PLACES),
    m.Pull(1, 500, 1 << 20, 2000, 10, [ACT], 64, scattered=True),
    m.Settle(1, [ACT, m.Act(0, 8, [], True)]),
    m.Detach(1),
    m.CreateTopic(TOPIC),
    m.ListTopics(),
    m.TopicInfo("orders"),
    m.DeleteTopic("orders"),
    m.ListGroups("orders"),
    m.GroupInfo("orders", "billing"),
    m.PutGroup(GROUP),
    m.DeleteGroup("orders", "billing"),
    m.Browse("orders", 2, "billing", 17, 50, 65536),
    m.Resend("orders", "billing", [3, 4], 100),
    m.Locate("orders", 1, 1_700_000_000_000_004),
    m.Stat(),
    m.ListDelayed("orders", 1_700_000_000_000_006, 12, 50, "order-4423", [12, 13], True),
    m.CancelDelayed("orders", [12, 1 << 40], "order-4423", True),
    m.MoveDelayed("orders", [12], "order-4423", -30_000_000, True),
    tx.Prepare("9f31a7", "shop", "order-4423", [m.FrameHead("orders", 0, 100), m.FrameHead("stock", 2, 70)], 30.0, 2),
    tx.Decide("9f31a7", True, 1),
    tx.AwaitChecks("shop", 20_000),
    tx.ListTransactions("9f31a7", True, 10),
    tx.Resolve("9f31a7", False, "by hand"),
    m.PutTopic(TOPIC, True),
    m.Template(),
    m.ReviseDead("orders", "billing", 3, b"mended", "order-4424", {"k": "v"}),
    m.PurgeDead("orders", "billing", 4),
    m.Find("orders", 1, "order-4423", 17, 1_700_000_000_000_000, 1_700_000_000_000_009, 5, 65536),
    m.Trace("orders", "billing", 1, 42, True, CURSOR),
    ShardCount("orders"),
    Seek("orders", "billing", "@1700000000000000", [(3, 17)], True),
    Pause("orders", "billing", True, "deploying"),
    Purge("orders", True),
    EditTopic("orders", 3600.0),
    scan.Scan("lane/orders/middle", 17, 1 << 40, 65536),
    scan.Survey("lane/orders", "lane/orders/high", 50),
    publications.Report("orders", "spark", [(1, 17)]),
    publications.Stage([m.FrameHead("orders", 0, 100), m.FrameHead("stock", 12, 70, 64)], 1),
    publications.Publish("spark:7f", 4, [17, 1 << 40], 1),
    publications.Unstage([17, 18]),
    publications.AskSink("spark:7f"),
    publications.MoveHold("archive", {"lane/orders/middle": 17}),
    scan.LocateIn("pull/orders/billing", 1_700_000_000_000_000),
    access.WhoAmI([GRANT]),
    access.ListUsers(),
    access.PutUser("alice", True, "s3cret", "0ld", ["admin"], True, ["cn:alice"], QUOTA),
    access.DeleteUser("alice"),
    access.ListTokens("alice"),
    access.CreateToken("alice.1", "alice", [GRANT], 3600.0, True, ["viewer"], QUOTA),
    access.RevokeToken("alice.1", "9f31a7"),
    access.ListRules("alice"),
    access.AddRule(RULE),
    access.DropRule(7),
    access.ListAudit(77, 50, "alice", "DeleteTopic", "done", 1_700_000_000_000_000),
    access.Measure("orders"),
    cluster.Meet(BROKER, [BROKER]),
    cluster.ListBrokers(4711, 1000),
    cluster.ListClients("orders", "billing"),
    cluster.ForgetBroker("9f31a7"),
    cluster.CloseConnection("10.1.2.3:51234"),
    backup.BeginBackup(),
    backup.HoldBackup("b1", True),
    cluster.HandBack("orders", "billing", GROUP, 2, 3, "no such customer", 12.5, True),
    monitor.ListPage("groups", "bil", "orders", "shop", "lag", True, 50, 25),
    monitor.Pulse("orders", "billing"),
    monitor.Storage(),
    monitor.ListAlarms(),
    monitor.PutAlarm(ALARM_RULE),
    monitor.DropAlarm("late"),
    monitor.TestAlarm("late"),
    monitor.SilenceAlarm("late", 1_700_000_600_000_000, "the warehouse moves"),
    monitor.AskAlarmBook("late"),
    monitor.Kick("orders", "billing", "c1"),
]

ANSWERS: list[m.Answer] = [
    m.Welcome(1, "towline", 3, 16_842_752, 30.0, "0.2.0"),
    m.Sent([1000, 1 << 40], 1_700_000_000_000_005, True, [(1, 3, 2, 17, 1_700_000_000_000_004)], [1]),
    m.Held([7], [(8, 1, 100, 3, "timeout")]),
    m.Attached(1, [7, 8], GROUP, 64, [GROUP], PLACES),
    m.Pulled((1 << 40) + 5, [PART, SCATTERED], [(0, "lease-lost", "too late")], more=True),
    m.Settled([(1, "lease-lost", "too late")]),
    m.Topics([TOPIC_STATE]),
    TOPIC_STATE,
    m.Groups([GROUP_STATE]),
    GROUP_STATE,
    m.Browsed([PART], 37, 0, 40, [(3, 2)]),
    m.Resent(2, 5),
    m.Located(12_345),
    m.Stated({"sent": 5, "name": "towline", "up_s": 1.5}),
    m.Delayed([DELAYED], 20, [m.Arrived(13, 1, 42, 1_700_000_000_000_007, 64)]),
    m.DelayedCancelled(2, [12], 3),
    m.DelayedMoved(1, [12], 1_700_000_000_000_008),
    tx.Prepared(1_700_000_000_000_006, True),
    tx.Decided([1000, 1 << 40], 1_700_000_000_000_007, True, [(1, 3, 2, 17, 1_700_000_000_000_004)], [1]),
    tx.Checks([CHECK]),
    tx.Transactions([TRANSACTION], 3),
    m.Templated(TOPIC),
    m.Revised(1),
    m.DeadPurged(2),
    m.Found([PART], 37, 40),
    m.Traced("FAIL", 2, 1_700_000_000_000_008, [STEP], True, CURSOR),
    Sharded(64, True),
    Sought([("middle", 5, 3)], 2, 7),
    Purged(100, 4096, [("billing", 90)]),
    scan.Scanned([PART], 37, [(37, 3, "its bytes are damaged")]),
    scan.Streams([scan.StreamState("lane/orders/middle", 5, 25, 4096)], True),
    scan.LocatedIn(12_345),
    access.Me("alice.1", "alice", ["viewer"], True, [True, False], 1_700_000_000_000_001),
    access.Users(
        [access.UserState("alice", ["admin"], True, True, ["cn:alice"], QUOTA, 1_700_000_000_000_000)],
    ),
    access.Tokens(
        [access.TokenState("alice.1", "alice", ["viewer"], [GRANT], QUOTA, [SECRET], 1_700_000_000_000_000)],
    ),
    access.TokenMade("alice.1", "s3cret", "9f31a7", 1_700_000_000_000_001),
    access.Rules([RULE], {"viewer": [GRANT]}),
    access.RuleAdded(7),
    access.Audit(
        [
            access.AuditEntry(
                76, 1_700_000_000_000_000, "alice", "127.0.0.1:5", "DeleteTopic", "topic orders", "done", "x"
            )
        ],
        76,
    ),
    access.Measured(
        1_700_000_000_000_000,
        {"connections": 3},
        [access.TopicFigures("orders", 100, 4096, 50, 2048, 7)],
        [access.GroupFigures("orders", "billing", 90, 3000, 80, 5, 10, 1_700_000_000_000_000, 3, 2, 1, 4, 6, "a disk")],
    ),
    cluster.Met(BROKER, [BROKER], "9f31a7", [cluster.Backlog("orders", [1, 2], [2], {"billing": [1]})]),
    cluster.Brokers("9f31a7", [BROKER], True, True, [cluster.RealmState("left-10.0.0.1:7400", 3)], 4711),
    cluster.Clients([CLIENT]),
    cluster.HandedBack(17, True),
    backup.BackupBegun("b1", "/var/lib/towline", 4711, 60.0),
    backup.BackupHeld(17, 4096, 1_700_000_000_000_009),
    monitor.PageListed(51, [TOPIC_ROW], [GROUP_ROW], ["shop"]),
    monitor.Pulsed({"topics": 3}, [1_700_000_000_000_003], {"in": [12.5]}),
    monitor.Stored(
        "file:./data",
        4096,
        1 << 30,
        1 << 40,
        [monitor.SegmentState("0.log", 4096, 1_700_000_000_000_004, True)],
        {"listen": "127.0.0.1:7400"},
    ),
    monitor.Alarms(
        [ALARM_RULE],
        [ALARM],
        [monitor.Told(1_700_000_000_000_006, "alarm", ["ops@example.com"], "no answer")],
        True,
    ),
    monitor.AlarmBook([ALARM_RULE], {"late": Changed(1_700_000_000_000_007, 1_700_000_000_000_008)}, True),
    publications.Staged(17),
    publications.Published(100_000, True),
    publications.SinkState(4, 1_700_000_000_000_006),
    m.Done(),
    m.Failed("conflict", "it exists"),
]
