"""`towline cluster` and `towline clients`: the brokers, and their clients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from towline.cli.confirm import DryRun, tell
from towline.cli.options import Connection
from towline.cli.output import Output, note, print_json, print_table
from towline.errors import NotFound, TowlineError

if TYPE_CHECKING:
    from towline.client._sync.client import Client
    from towline.protocol.cluster import BrokerState, ClientState

__all__ = ["clients", "cluster"]

cluster = App(name="cluster", help="The brokers of a cluster.")


@cluster.command
def ls(*, output: Output = "text", connection: Connection = Connection()) -> None:  # noqa: B008
    """List the brokers, as the one that answers sees them: it is the first.

    A broker is `alive`, `leaving`, `silent` (not heard of for three beats, or its connection broke) or `gone` (not
    heard of for long).
    """
    with connection.connect() as client:
        brokers = client.brokers()
    if output == "json":
        for one in brokers:
            print_json(msgspec.structs.asdict(one))
        return
    rows = [
        (
            one.name,
            one.address,
            one.state,
            _ago(one.last_seen_s),
            one.store,
            one.version,
            one.epoch,
            f"{one.connections:,}",
            f"{one.topics:,}",
            one.id,
        )
        for one in brokers
    ]
    columns = ("NAME", "ADDRESS", "STATE", "LAST SEEN", "STORE", "VERSION", "#EPOCH", "#CONNECTIONS", "#TOPICS", "ID")
    print_table(columns, rows, empty="no brokers")


@cluster.command
def check(*, output: Output = "text", connection: Connection = Connection()) -> int:  # noqa: B008
    """Look for topics and groups that the brokers have with different settings, and say how to mend it.

    Brokers with their own disks have their own settings. They differ when one was away while they were changed, or when
    a topic was made at two of them apart. Ends with 1 if there is something to mend, or a broker that cannot be asked.
    """
    with connection.connect() as client:
        brokers = client.brokers()
        found = client.disagreements()
    away = [one for one in brokers if one.state != "alive"]
    for one in brokers:
        if one.replaced:
            note(
                f"{one.address} was broker {one.replaced} before, which is forgotten: what its disk held comes only if "
                "it returns at another address"
            )
    if len({(one.version, one.protocol, one.format) for one in brokers}) > 1:
        versions = ", ".join(f"{one.address}: {one.version}" for one in brokers)
        note(f"the brokers are of several versions ({versions}): finish the upgrade, one after another")
    for one in away:
        note(f"{one.address} is {one.state}, and is not looked at")
    if output == "json":
        for each in found:
            print_json(msgspec.structs.asdict(each))
        return int(bool(found or away))
    rows = [
        (each.topic, each.group, each.setting, ", ".join(f"{name}: {value}" for name, value in each.values.items()))
        for each in found
    ]
    print_table(("TOPIC", "GROUP", "SETTING", "VALUES"), rows, empty="the brokers agree")
    for remedy in dict.fromkeys(f"{each.topic} {each.setting}: {each.remedy}" for each in found):
        note(remedy)
    return int(bool(found or away))


@cluster.command
def forget(
    broker: Annotated[str, Parameter(help="The id or address of a broker, as `cluster ls` shows it.")],
    /,
    *,
    dry_run: DryRun = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Do not expect a broker back that is gone for good.

    A broker with messages on its own disk stays in the list when it is gone, and ordered keys wait for it. Forgotten,
    they go to the others. All brokers that can be reached are told.
    """
    with connection.connect() as client:
        told, failed, brokers = 0, None, client.brokers()
        if dry_run and not any(broker in (one.id, one.address) for one in brokers):
            raise NotFound(f"there is no broker {broker}")
        for one in brokers:
            if broker in (one.id, one.address) or one.state != "alive":
                continue
            if dry_run:
                told += 1
                continue
            try:
                with _at(connection, one) as there:
                    there.forget_broker(broker)
                told += 1
            except TowlineError as error:
                failed = error
                note(f"{one.address}: {error}")
    if failed is not None and not told:
        return 1
    if not dry_run:
        note(f"{told} broker(s) do not expect {broker} any more")
    facts: dict[str, object] = {"broker": broker, "told": told}
    tell(f"tell {told} broker(s) not to expect {broker} any more", facts, dry_run=dry_run, output=output)
    return 0


@cluster.command
def close_connection(
    address: Annotated[str, Parameter(help="The address of a client, as `towline clients` shows it.")],
    /,
    *,
    dry_run: DryRun = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Close the connections of a client, at whichever broker they are.

    What it holds goes back to its groups unless it returns within moments. It may connect again: to keep it out, revoke
    its token (`towline token revoke`).
    """
    with connection.connect() as client:
        if not dry_run:
            client.close_connection(address)
        elif all(one.address != address for one in client.clients()):
            raise NotFound(f"nobody is connected from {address}")
    tell(f"close the connections from {address}", {"address": address}, dry_run=dry_run, output=output)


def clients(
    topic: Annotated[str, Parameter(help="Only the consumers of this topic.")] = "",
    group: Annotated[str, Parameter(help="Only the consumers of this group.")] = "",
    /,
    *,
    here: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Ask the broker of the URL only, not all of its cluster.")
    ] = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """List who is connected: consumers with their rank in the group, producers, others.

    RANK is the place of a consumer among the consumers of its group at that broker, by name, of so many in all.
    """
    found: list[tuple[BrokerState, ClientState]] = []
    with connection.connect() as client:
        me, *others = client.brokers()
        found += [(me, one) for one in client.clients(topic, group, everywhere=False)]
        for other in [] if here else others:
            if other.state != "alive":
                note(f"{other.address} is {other.state}")
                continue
            try:
                with _at(connection, other) as there:
                    found += [(other, one) for one in there.clients(topic, group, everywhere=False)]
            except TowlineError as error:
                note(f"{other.address}: {error}")
    if output == "json":
        for broker, one in found:
            print_json(msgspec.structs.asdict(one) | {"broker": broker.name, "broker_address": broker.address})
        return
    rows = [_row(broker, one) for broker, one in found]
    columns = ("BROKER", "ADDRESS", "ROLE", "TOKEN", "TOPIC", "GROUP", "CONSUMER", "RANK", "#IN FLIGHT", "LAST SEEN")
    print_table(columns, rows, empty="no clients")


def _at(connection: Connection, broker: BrokerState) -> Client:
    """A client of this one broker."""
    return replace(connection, url=_url(broker)).connect()


def _url(broker: BrokerState) -> str:
    return f"{'towlines' if broker.tls else 'towline'}://{broker.address}"


def _row(broker: BrokerState, one: ClientState) -> tuple[Any, ...]:
    return (
        broker.address,
        one.address,
        one.role,
        one.token,
        one.topic,
        one.group,
        one.consumer,
        f"{one.rank} of {one.total}" if one.total else "",
        f"{one.in_flight:,}" if one.consumer else "",
        _ago(one.last_seen_s),
    )


def _ago(seconds: float) -> str:
    return f"{seconds:.1f} s ago"
