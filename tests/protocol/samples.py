"""One example of every request and answer, with every field set to something that is not its default."""

from __future__ import annotations

from towline.model import GroupConfig, RetryPolicy, TopicConfig
from towline.protocol import messages as m

TOPIC = TopicConfig("orders", 1_700_000_000_000_000, 3600.0, 64)
GROUP = GroupConfig(
    "orders",
    "billing",
    "latest",
    RetryPolicy(3, (1.0, 2.5), "exponential", 0.5, 3.0, 60.0, 0.25),
    30.0,
    500,
    True,
    1_700_000_000_000_001,
    paused=True,
    pause_reason="rest",
    share=(16, 4, 1),
    mode="at-most-once",
    expired_to_dead=True,
)
ACT = m.Act(1, 7, [(0, 10, 5), (2, 1 << 40, 1)], False, 12.5, "no such customer")
PART = m.Part(1, 1000, 20, 3, 4096, 2, 1_700_000_000_000_002, bytes([127, 0, 0, 1]))
LANE = m.LaneState("high", 5, 25, 4096)
TOPIC_STATE = m.TopicState(TOPIC, [LANE], ["billing"])
GROUP_STATE = m.GroupState(
    GROUP, [("high", 5, 25)], 20, 3, 2, 1_700_000_000_000_003, 1, 4, [m.MemberState("c1", "127.0.0.1:5", 3, True, 0.5)]
)

REQUESTS: list[m.Request] = [
    m.Hello(1, 2, "appid-340101;sid-p0912", "s3cret", "towline-test 1"),
    m.Beat(),
    m.Send([m.FrameHead("orders", 0, 100), m.FrameHead("stock", 12, 70_000, 64)], 1),
    m.Attach("orders", "billing", "c1", GROUP, [7, 1 << 41]),
    m.Pull(1, 500, 1 << 20, 2000, 10, [ACT]),
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
    m.ShardCount("orders"),
    m.Seek("orders", "billing", "@1700000000000000", [(3, 17)], True),
    m.Pause("orders", "billing", True, "deploying"),
    m.Purge("orders", True),
    m.EditTopic("orders", 3600.0),
]

ANSWERS: list[m.Answer] = [
    m.Welcome(1, "towline", 3, 16_842_752, 30.0),
    m.Sent([1000, 1 << 40], 1_700_000_000_000_005, True),
    m.Attached(1, [7, 8], GROUP, 64),
    m.Pulled((1 << 40) + 5, [PART], [(0, "lease-lost", "too late")]),
    m.Settled([(1, "lease-lost", "too late")]),
    m.Topics([TOPIC_STATE]),
    TOPIC_STATE,
    m.Groups([GROUP_STATE]),
    GROUP_STATE,
    m.Browsed([PART], 37, 0, 40, [(3, 2)]),
    m.Resent(2, 5),
    m.Located(12_345),
    m.Stated({"sent": 5, "name": "towline", "up_s": 1.5}),
    m.Sharded(64),
    m.Sought([("middle", 5, 3)], 2, 7),
    m.Purged(100, 4096, [("billing", 90)]),
    m.Done(),
    m.Failed("conflict", "it exists"),
]
