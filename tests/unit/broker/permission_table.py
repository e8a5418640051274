"""The rights that each request needs, written by hand: it says again what `broker/server/requests.py` says."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tests.unit.protocol import samples
from towline.protocol import access, backup, cluster, monitor, publications, scan
from towline.protocol import messages as m
from towline.protocol import transactions as tx
from towline.protocol.groups import Pause, Seek
from towline.protocol.messages import Request
from towline.protocol.topics import EditTopic, Purge, ShardCount

__all__ = ["NEEDS", "ORDERS", "SUBSCRIBED", "Need", "cases"]

Need = tuple[str, tuple[str, str]]
"""An action, and the kind and name of what it is done to."""
ORDERS, STOCK = ("topic", "orders"), ("topic", "stock")
NOWHERE, ELSEWHERE = ("topic", "nowhere"), ("topic", "elsewhere")
BILLING, CLUSTER = ("group", "billing"), ("cluster", "*")

NEEDS: dict[type[Request], list[Need]] = {
    m.Hello: [],
    m.Beat: [],
    m.Send: [("send", ORDERS), ("send", STOCK)],
    m.Attach: [("consume", ORDERS), ("consume", BILLING)],
    m.Detach: [],
    m.CreateTopic: [("create", ORDERS)],
    m.ListTopics: [],
    m.TopicInfo: [("describe", ORDERS)],
    m.DeleteTopic: [("delete", ORDERS)],
    m.ListGroups: [("describe", ORDERS)],
    m.GroupInfo: [("describe", BILLING), ("describe", ORDERS)],
    m.PutGroup: [("alter", BILLING), ("describe", ORDERS)],
    m.DeleteGroup: [("delete", BILLING), ("describe", ORDERS)],
    m.Browse: [("consume", ORDERS), ("consume", BILLING)],
    m.Resend: [("alter", BILLING), ("describe", ORDERS)],
    m.Locate: [("describe", ORDERS)],
    m.Stat: [("describe", CLUSTER)],
    m.ListDelayed: [("consume", ORDERS)],
    m.CancelDelayed: [("send", ORDERS), ("consume", ORDERS)],
    m.MoveDelayed: [("send", ORDERS), ("consume", ORDERS)],
    tx.Prepare: [("send", ORDERS), ("send", STOCK)],
    tx.Decide: [],
    tx.AwaitChecks: [],
    tx.ListTransactions: [("describe", CLUSTER)],
    tx.Resolve: [("alter", CLUSTER)],
    m.PutTopic: [("alter", CLUSTER)],
    m.Template: [("describe", CLUSTER)],
    m.ReviseDead: [("alter", BILLING), ("send", ORDERS)],
    m.PurgeDead: [("delete", BILLING), ("describe", ORDERS)],
    m.Find: [("consume", ORDERS)],
    m.Trace: [("describe", BILLING), ("describe", ORDERS)],
    ShardCount: [("describe", ORDERS)],
    Seek: [("describe", BILLING), ("describe", ORDERS)],
    Pause: [("alter", BILLING), ("describe", ORDERS)],
    Purge: [("describe", ORDERS)],
    EditTopic: [("alter", ORDERS)],
    scan.Scan: [("consume", ORDERS)],
    scan.Survey: [],
    scan.LocateIn: [("describe", BILLING), ("describe", ORDERS)],
    access.WhoAmI: [],
    access.ListUsers: [("admin", CLUSTER)],
    access.PutUser: [("admin", CLUSTER)],
    access.DeleteUser: [("admin", CLUSTER)],
    access.ListTokens: [("admin", CLUSTER)],
    access.CreateToken: [("admin", CLUSTER)],
    access.RevokeToken: [("admin", CLUSTER)],
    access.ListRules: [("admin", CLUSTER)],
    access.AddRule: [("admin", CLUSTER)],
    access.DropRule: [("admin", CLUSTER)],
    access.ListAudit: [("admin", CLUSTER)],
    access.Measure: [("describe", ORDERS)],
    publications.Report: [("consume", ORDERS), ("consume", ("group", "spark"))],
    publications.Stage: [("send", ORDERS), ("send", STOCK)],
    publications.Publish: [],
    publications.Unstage: [],
    publications.AskSink: [],
    publications.MoveHold: [("alter", CLUSTER)],
    cluster.Meet: [("admin", CLUSTER)],
    cluster.ListBrokers: [],
    cluster.ListClients: [("describe", BILLING), ("describe", ORDERS)],
    cluster.ForgetBroker: [("admin", CLUSTER)],
    cluster.CloseConnection: [("admin", CLUSTER)],
    backup.BeginBackup: [("admin", CLUSTER)],
    backup.HoldBackup: [("admin", CLUSTER)],
    cluster.HandBack: [("consume", ORDERS), ("consume", BILLING)],
    monitor.ListPage: [("describe", ORDERS)],
    monitor.Pulse: [("describe", BILLING), ("describe", ORDERS)],
    monitor.Storage: [("describe", CLUSTER)],
    monitor.ListAlarms: [("describe", CLUSTER)],
    monitor.PutAlarm: [("alter", CLUSTER), ("describe", ("topic", "orders.*")), ("describe", BILLING)],
    monitor.DropAlarm: [("alter", CLUSTER)],
    monitor.SilenceAlarm: [("alter", CLUSTER)],
    monitor.TestAlarm: [("alter", CLUSTER)],
    monitor.AskAlarmBook: [("admin", CLUSTER)],
    monitor.Kick: [("alter", BILLING), ("describe", ORDERS)],
}
"""Of the samples, which are sent as they stand. (Those of pulls and settlements depend on a subscription, and have a
test of their own.)"""

SUBSCRIBED: set[type[Request]] = {m.Pull, m.Settle}
VARIANTS: list[tuple[Request, list[Need]]] = [
    (m.Browse("orders"), [("consume", ORDERS)]),
    (m.PutTopic(samples.TOPIC), [("alter", ORDERS)]),
    (Seek("orders", "billing", "latest"), [("alter", BILLING), ("describe", ORDERS)]),
    (Purge("orders"), [("delete", ORDERS)]),
    (m.ListDelayed(), [("describe", CLUSTER)]),
    (m.ListDelayed("orders"), [("describe", ORDERS)]),
    (m.CancelDelayed("orders", [12], dry_run=True), [("send", ORDERS)]),
    (m.CancelDelayed("orders", key="order-4423"), [("send", ORDERS)]),
    (m.MoveDelayed("orders", [12], "", 0, True), [("send", ORDERS)]),
    (m.MoveDelayed("orders", [], "order-4423", -30_000_000), [("send", ORDERS)]),
    (access.Measure(), [("describe", CLUSTER)]),
    (monitor.ListPage("topics", topic="orders"), []),
    (m.ListGroups(), []),
    (monitor.ListPage("groups"), []),
    (monitor.Pulse(), [("describe", CLUSTER)]),
    (cluster.ListClients(), [("describe", CLUSTER)]),
    (cluster.ListClients("orders"), [("describe", ORDERS)]),
    (m.Attach("nowhere", "billing", "c1"), [("consume", NOWHERE), ("consume", BILLING), ("create", NOWHERE)]),
    (m.Send([m.FrameHead("elsewhere", 1, 0)]), [("send", ELSEWHERE), ("create", ELSEWHERE)]),
    (scan.Scan("dead/orders/billing", 0, 10), [("consume", ORDERS), ("consume", BILLING)]),
    (scan.Scan("prepared", 0, 10), [("admin", CLUSTER)]),
    (scan.Survey("lane/orders/"), [("describe", ORDERS)]),
]


def cases() -> Iterator[tuple[Request, list[Need]]]:
    for request in samples.REQUESTS:
        if type(request) in NEEDS:
            sample = msgspec.structs.replace(request, wait_ms=0) if isinstance(request, tx.AwaitChecks) else request
            yield sample, NEEDS[type(request)]
    yield from VARIANTS
