"""Users, tokens, certificates, quotas and the audit log, through the public client."""

from __future__ import annotations

import re
import stat
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import towline
from tests.broker.access.secured import PASSWORD, PATIENCE_S, Secured, secured
from tests.broker.process import BrokerProcess, failing_start
from tests.certificates import KIND, openssl
from tests.eventually import eventually
from tests.inside.broker import OWN_TOKENS_MAX, SCOPES_MAX
from tests.inside.client import Client, Quota
from towline.errors import (
    BadRequest,
    Conflict,
    NotFound,
    NotLetIn,
    ProtocolError,
    QueueFull,
    Refused,
    TooMany,
    TowlineError,
)


def is_out(client: Client) -> bool:
    try:
        client.access.who_am_i()
    except NotLetIn:
        return True
    return False


# The first administrator


def test_the_first_start_writes_a_setup_secret_that_is_good_once(tmp_path: Path) -> None:
    store, setup = f"file:{tmp_path}/data", tmp_path / "data" / "setup-secret"
    with BrokerProcess(store=store, security=True) as broker:
        url = f"towline://127.0.0.1:{broker.port}"
        secret = setup.read_text().strip()
        assert stat.S_IMODE(setup.stat().st_mode) == 0o600
        broker.wait_for_log(re.escape(str(setup)))
        assert secret not in broker.errors
        with towline.connect(url, token="setup", secret=secret, timeout=PATIENCE_S) as first:
            with pytest.raises(Refused):
                first.send("orders", b"it is not for messages")
            first.access.create_user("viewer", PASSWORD, roles=["viewer"])
            assert setup.exists(), "nobody may administer yet"
            first.access.create_user("root", PASSWORD, roles=["admin"])
            assert not setup.exists()
            assert is_out(first)
        with pytest.raises(NotLetIn):
            towline.connect(url, token="setup", secret=secret, timeout=PATIENCE_S)
        broker.stop()
        broker.wait()
        assert secret not in broker.errors
    kept = (tmp_path / "data" / "config" / "access.json").read_text()
    assert PASSWORD not in kept
    assert secret not in kept
    assert stat.S_IMODE((tmp_path / "data" / "config" / "access.json").stat().st_mode) == 0o600
    with BrokerProcess(store=store, security=True) as broker:
        assert not setup.exists()
        with towline.connect(
            f"towline://127.0.0.1:{broker.port}", token="root", secret=PASSWORD, timeout=PATIENCE_S
        ) as admin:
            assert [one.name for one in admin.access.users()] == ["root", "viewer"]


def test_a_damaged_book_is_not_replaced_by_an_older_one(tmp_path: Path) -> None:
    with secured(tmp_path, store=f"file:{tmp_path}/data") as broker:
        broker.admin.access.create_token("shop")
    (tmp_path / "data" / "config" / "access.json").write_text("{")
    assert "access.json" in failing_start(store=f"file:{tmp_path}/data", security=True)


def test_the_last_administrator_stays(broker: Secured) -> None:
    changes: list[dict[str, Any]] = [{"roles": ["viewer"]}, {"disabled": True}]
    for change in changes:
        with pytest.raises(Conflict, match="nobody would be left"):
            broker.admin.access.change_user("root", **change)
    with pytest.raises(Conflict, match="nobody would be left"):
        broker.admin.access.delete_user("root")


def test_without_security_there_are_no_users() -> None:
    with BrokerProcess() as process, towline.connect(f"towline://127.0.0.1:{process.port}") as client:
        me = client.access.who_am_i([("admin", "cluster", "")])
        assert (me.security, me.allowed) == (False, [True])
        with pytest.raises(BadRequest, match="--security"):
            client.access.users()


# Users


def test_a_user_logs_in_by_password_and_changes_it(broker: Secured) -> None:
    broker.admin.access.create_user("alice", "first password", roles=["viewer"])
    with pytest.raises(NotLetIn):
        broker.connect("alice", "wrong password")
    with broker.connect("alice", "first password") as alice:
        assert alice.access.who_am_i().roles == ["viewer"]
        with pytest.raises(Refused, match="old password"):
            alice.access.change_user("alice", password="second password", old_password="no idea")
        with pytest.raises(Refused):
            alice.access.change_user("alice", roles=["admin"])
        with pytest.raises(Refused):
            alice.access.change_user("root", password="owned by alice", old_password="first password")
        with pytest.raises(Refused):
            alice.access.users()
        alice.access.change_user("alice", password="second password", old_password="first password")
        assert is_out(alice), "whoever came with the old password is out"
    with broker.connect("alice", "second password") as alice:
        broker.admin.access.change_user("alice", disabled=True)
        assert is_out(alice)
    with pytest.raises(NotLetIn):
        broker.connect("alice", "second password")


@pytest.mark.parametrize("name", ["", "setup", "role:x", "a b", "-a", "x" * 65, "ü"])
def test_a_name_that_cannot_be_is_refused(broker: Secured, name: str) -> None:
    with pytest.raises((BadRequest, ProtocolError)):
        broker.admin.access.create_user(name, PASSWORD)


# Tokens


def test_a_token_is_rotated_without_a_gap(broker: Secured) -> None:
    admin = broker.admin.access
    first = admin.create_token("rotated", roles=["producer"])
    admin.allow("rotated", "create", "topic", "t*")
    with broker.connect("rotated", first.secret) as old:
        old.send("t", b"1")
        second = admin.rotate_token("rotated")
        with pytest.raises(TooMany, match="2 live secrets"):
            admin.rotate_token("rotated")
        with broker.connect("rotated", second.secret) as new:
            new.send("t", b"2")
            old.send("t", b"3")
            admin.revoke_token("rotated", first.id)
            assert is_out(old)
            new.send("t", b"4")
    [state] = [one for one in admin.tokens() if one.name == "rotated"]
    assert [one.id for one in state.secrets] == [second.id]
    assert state.secrets[0].last_used_us > 0
    with pytest.raises(NotLetIn):
        broker.connect("rotated", first.secret)


def test_a_token_expires_also_for_those_who_are_in(broker: Secured) -> None:
    made = broker.admin.access.create_token("brief", expires=4)
    with broker.connect("brief", made.secret) as client:
        eventually(lambda: is_out(client))
    with pytest.raises(NotLetIn):
        broker.connect("brief", made.secret)


def test_a_users_token_has_the_users_rights_within_its_scopes(broker: Secured) -> None:
    admin = broker.admin.access
    admin.create_user("bob", roles=["producer", "consumer"])
    admin.allow("bob", "create", "topic", "*")
    made = admin.create_token("bob.scoped", owner="bob", scopes=[("send", "topic", "b-*"), ("create", "topic", "b-*")])
    with broker.connect("bob.scoped", made.secret) as client:
        client.send("b-orders", b"x")
        with pytest.raises(Refused):
            client.send("c-orders", b"x")
        with pytest.raises(Refused), client.consumer("b-orders", group="g"):
            pass
        with pytest.raises(Refused):
            client.access.create_token("bob.wider")
    with pytest.raises(BadRequest, match="has the rights of its user"):
        admin.create_token("bob.x", owner="bob", roles=["admin"])
    whole = admin.create_token("bob.whole", owner="bob")
    with broker.connect("bob.whole", whole.secret) as client:
        client.send("c-orders", b"x")
        own = client.access.create_token("", expires=60)
        assert own.name.startswith("bob.")
        assert {one.name for one in client.access.tokens()} == {"bob.scoped", "bob.whole", own.name}
        with pytest.raises(BadRequest, match="begins with"):
            client.access.create_token("root2")
        with pytest.raises(Refused):
            client.access.create_token("bob.other", owner="root")
        with pytest.raises(Refused):
            client.access.create_token("bob.other", quota=Quota(1, 1, 1))
        with pytest.raises(Refused):
            client.access.revoke_token("rotated")
        admin.change_user("bob", disabled=True)
        assert is_out(client), "with its user, its tokens are out"
    admin.change_user("bob", disabled=False)
    with broker.connect(own.name, own.secret) as client:
        admin.delete_user("bob")
        assert is_out(client)


def test_a_scoped_token_neither_rotates_nor_revokes_what_may_do_more(broker: Secured) -> None:
    admin = broker.admin.access
    admin.create_user("dora", PASSWORD, roles=["producer", "consumer"])
    made = {
        name: admin.create_token(f"dora.{name}", owner="dora", scopes=scopes)
        for name, scopes in {
            "whole": [],
            "sends": [("send", "topic", "d-*")],
            "sends-one": [("send", "topic", "d-1")],
            "reads": [("consume", "topic", "d-*")],
        }.items()
    }
    admin.create_token("nobodys", scopes=[("send", "topic", "d-1")])
    with broker.connect("dora.sends", made["sends"].secret) as client:
        assert {one.name for one in client.access.tokens()} == {"dora.sends", "dora.sends-one"}
        for name in ("dora.whole", "dora.reads", "nobodys"):
            with pytest.raises(Refused, match="only an administrator"):
                client.access.rotate_token(name)
            with pytest.raises(Refused, match="only an administrator"):
                client.access.revoke_token(name)
        with pytest.raises(Refused, match="changes no password"):
            client.access.change_user("dora", password="another password", old_password=PASSWORD)
        with pytest.raises(Refused):
            client.access.create_user("eve", PASSWORD)
        client.access.rotate_token("dora.sends-one")
        client.access.revoke_token("dora.sends-one")
        client.access.rotate_token("dora.sends")
    with broker.connect("dora.whole", made["whole"].secret) as client:
        client.access.rotate_token("dora.reads")
        client.access.revoke_token("dora.reads")
    admin.revoke_token("nobodys")
    admin.delete_user("dora")


def test_an_expiring_token_makes_nothing_that_outlives_it(broker: Secured) -> None:
    admin = broker.admin.access
    admin.create_user("finn", PASSWORD, roles=["producer"])
    brief = admin.create_token("finn.brief", owner="finn", expires=1000)
    with broker.connect("finn.brief", brief.secret) as client:
        for longer in (2000, 1e9):
            with pytest.raises(Refused, match="good for longer"):
                client.access.rotate_token("finn.brief", expires=longer)
            with pytest.raises(Refused, match="good for longer"):
                client.access.create_token("finn.other", expires=longer)
        second = client.access.rotate_token("finn.brief")
        assert second.expires_at_us == brief.expires_at_us, "never is as long as it has"
        assert client.access.create_token("finn.other").expires_at_us == brief.expires_at_us
        assert client.access.create_token("finn.short", expires=10).expires_at_us < brief.expires_at_us
        with pytest.raises(Refused, match="changes no password"):
            client.access.change_user("finn", password="another password", old_password=PASSWORD)
        admin.revoke_token("finn.brief", second.id)
        longest = admin.rotate_token("finn.brief")
        for secret_id in (longest.id, ""):
            with pytest.raises(Refused, match="only an administrator"):
                client.access.revoke_token("finn.brief", secret_id)
        client.access.revoke_token("finn.brief", brief.id)
    with broker.connect("finn.brief", longest.secret) as client:
        assert client.access.rotate_token("finn.brief", expires=2000).expires_at_us > brief.expires_at_us
    admin.delete_user("finn")


def test_an_expiry_that_an_administrator_has_set_binds_its_user(broker: Secured) -> None:
    admin = broker.admin.access
    admin.create_user("gita", PASSWORD, roles=["producer"])
    bound = admin.create_token("gita.bound", owner="gita", expires=1000)
    with broker.connect("gita", PASSWORD) as client:
        own = client.access.create_token("gita.own", expires=10)
        assert client.access.rotate_token("gita.own", expires=5000).expires_at_us > own.expires_at_us
        assert client.access.rotate_token("gita.bound").expires_at_us == bound.expires_at_us
        client.access.revoke_token("gita.bound", bound.id)
        with pytest.raises(Refused, match="good for longer"):
            client.access.rotate_token("gita.bound", expires=2000)
    [state] = [one for one in admin.tokens() if one.name == "gita.bound"]
    admin.rotate_token("gita.bound", expires=9000)
    admin.revoke_token("gita.bound", state.secrets[0].id)
    with broker.connect("gita", PASSWORD) as client:
        assert client.access.rotate_token("gita.bound", expires=5000).expires_at_us > bound.expires_at_us
    admin.delete_user("gita")


def test_an_expiring_administrators_token_makes_no_token_for_good(broker: Secured) -> None:
    admin = broker.admin.access
    brief = admin.create_token("deputy", roles=["admin"], expires=1000)
    with broker.connect("deputy", brief.secret) as client:
        assert client.access.rotate_token("deputy").expires_at_us == brief.expires_at_us
        assert client.access.create_token("made-by-deputy", roles=["admin"]).expires_at_us == brief.expires_at_us
    admin.revoke_token("deputy")
    admin.revoke_token("made-by-deputy")


def test_only_a_time_that_an_administrator_says_binds_a_token_that_had_none(broker: Secured) -> None:
    admin = broker.admin.access
    app = admin.create_token("app")
    brief = admin.create_token("deputy", roles=["admin"], expires=1000)
    with broker.connect("deputy", brief.secret) as deputy, broker.connect("app", app.secret) as client:
        second = deputy.access.rotate_token("app")
        assert second.expires_at_us == brief.expires_at_us
        client.access.revoke_token("app", second.id)
        third = client.access.rotate_token("app")
        assert third.expires_at_us == 0
        client.access.revoke_token("app", third.id)
        fourth = deputy.access.rotate_token("app", expires=500)
        client.access.revoke_token("app", fourth.id)
        assert client.access.rotate_token("app").expires_at_us == fourth.expires_at_us
    admin.revoke_token("deputy")
    admin.revoke_token("app")


def test_an_expiring_administrators_token_makes_no_administrator_for_good(broker: Secured) -> None:
    admin = broker.admin.access
    admin.create_user("hana", PASSWORD)
    admin.create_user("ivan", PASSWORD, roles=["chiefs"])
    brief = admin.create_token("deputy", roles=["admin"], expires=1000)
    with broker.connect("deputy", brief.secret) as client:
        for act in (
            partial(client.access.create_user, "jane", PASSWORD, roles=["admin"]),
            partial(client.access.change_user, "hana", roles=["admin"]),
            partial(client.access.change_user, "root", password="another password"),
            partial(client.access.change_user, "root", identities=["cn:me"]),
            partial(client.access.allow, "hana", "admin", "cluster"),
            partial(client.access.allow, "role:chiefs", "*", "*"),
        ):
            with pytest.raises(Refused, match=r"'deputy' expires, and so .*: log in with a password"):
                act()
        rule = admin.allow("role:chiefs", "admin", "cluster")
        with pytest.raises(Refused, match="makes or changes no administrator, as ivan is"):
            client.access.change_user("ivan", roles=[])
        admin.drop_rule(rule)
        client.access.change_user("hana", roles=["producer"])
        client.access.drop_rule(client.access.allow("hana", "admin", "topic", "orders"))
        client.access.drop_rule(client.access.deny("hana", "admin", "cluster"))
    admin.revoke_token("deputy")
    admin.delete_user("hana")
    admin.delete_user("ivan")


def test_an_expiring_administrators_token_takes_no_administrator_away(broker: Secured) -> None:
    admin = broker.admin.access
    admin.create_user("jane", PASSWORD, roles=["admin"])
    admin.create_user("kurt", PASSWORD, roles=["admin", "held"])
    admin.create_token("lasting", roles=["admin"])
    longer = admin.create_token("jane.longer", owner="jane", expires=2000)
    rule, held = admin.allow("role:chiefs", "admin", "cluster"), admin.deny("role:held", "*", "cluster")
    brief = admin.create_token("deputy", roles=["admin"], expires=1000)
    with broker.connect("deputy", brief.secret) as client:
        for act in (
            partial(client.access.delete_user, "jane"),
            partial(client.access.revoke_token, "lasting"),
            partial(client.access.revoke_token, "jane.longer", longer.id),
            partial(client.access.drop_rule, rule),
            partial(client.access.drop_rule, held),
            partial(client.access.deny, "jane", "admin", "cluster"),
            partial(client.access.deny, "lasting", "*", "*"),
            partial(client.access.deny, "*", "*", "*"),
        ):
            with pytest.raises(Refused, match=r"'deputy' expires, and so .*: log in with a password"):
                act()
        client.access.create_user("lena", PASSWORD)
        client.access.drop_rule(client.access.deny("lena", "*", "*"))
        client.access.create_token("lena.own", owner="lena")
        client.access.revoke_token("lena.own")
        client.access.delete_user("lena")
        client.access.rotate_token("lasting")
    [lasting] = [one for one in admin.tokens() if one.name == "lasting"]
    assert [one.expires_at_us > 0 for one in lasting.secrets] == [False, True]
    for token in ("deputy", "lasting", "jane.longer"):
        admin.revoke_token(token)
    for number in (rule, held):
        admin.drop_rule(number)
    for user in ("jane", "kurt"):
        admin.delete_user(user)


def test_a_rule_for_a_token_that_has_an_owner_is_refused(broker: Secured) -> None:
    admin = broker.admin.access
    admin.create_user("kim", PASSWORD)
    admin.create_token("kim.x", owner="kim")
    for act in (admin.allow, admin.deny):
        with pytest.raises(BadRequest, match=r"token kim\.x has the rights of its user kim: give the rule to kim, or"):
            act("kim.x", "send", "topic")
    admin.delete_user("kim")


def test_a_token_is_made_with_so_many_scopes(broker: Secured) -> None:
    admin = broker.admin.access
    scopes = [("send", "topic", f"t{number}") for number in range(SCOPES_MAX + 1)]
    with pytest.raises(TooMany, match="at most 100 scopes, not 101: give prefixes"):
        admin.create_token("narrow", scopes=scopes)
    admin.create_token("narrow", scopes=scopes[1:])
    admin.revoke_token("narrow")


def test_a_user_makes_so_many_tokens_and_administrators_more(broker: Secured) -> None:
    admin = broker.admin.access
    admin.create_user("hana", PASSWORD)
    for number in range(OWN_TOKENS_MAX - 1):
        admin.create_token(f"hana.{number}", owner="hana")
    with broker.connect("hana", PASSWORD) as client:
        client.access.create_token("hana.last")
        with pytest.raises(TooMany, match="hana has 50 tokens already: revoke"):
            client.access.create_token("hana.more")
        client.access.rotate_token("hana.last")
        admin.create_token("hana.more", owner="hana")
        client.access.revoke_token("hana.more")
        client.access.revoke_token("hana.last")
        client.access.create_token("hana.again")
    admin.delete_user("hana")


def test_a_deleted_name_leaves_no_rights_behind(broker: Secured) -> None:
    admin = broker.admin.access
    admin.create_token("ghost")
    admin.allow("ghost", "admin", "cluster")
    admin.revoke_token("ghost")
    with broker.token("ghost") as client:
        assert client.access.who_am_i([("admin", "cluster", "")]).allowed == [False]
    admin.revoke_token("ghost")


def test_a_right_that_is_given_or_taken_counts_at_once(broker: Secured) -> None:
    with broker.token("quick") as client:
        for _ in range(3):
            with pytest.raises(Refused):
                client.send("quick-topic", b"x")
            rule = broker.admin.access.allow("quick", "*", "topic", "quick-*")
            client.send("quick-topic", b"x")
            broker.admin.access.drop_rule(rule)


def test_a_role_of_ones_own_is_a_subject(broker: Secured) -> None:
    broker.admin.access.allow("role:shippers", "*", "topic", "ship-*")
    broker.admin.access.deny("role:shippers", "delete", "*")
    with broker.token("truck", roles=["shippers"]) as client:
        client.send("ship-1", b"x")
        with pytest.raises(Refused, match="delete topic ship-1"):
            client.delete_topic("ship-1")


# Quotas


def test_connections_are_bounded_by_the_quota(broker: Secured) -> None:
    with broker.token("few", roles=["producer"], quota=Quota(connections=1)) as client:
        assert client.access.who_am_i().name == "few"
        [state] = [one for one in broker.admin.access.tokens() if one.name == "few"]
        assert state.quota.connections == 1
        secret = broker.admin.access.rotate_token("few").secret
        with pytest.raises(TooMany, match="quota"):
            broker.connect("few", secret)

    def is_let_in() -> bool:
        try:
            broker.connect("few", secret).close()
        except TooMany:
            return False
        return True

    eventually(is_let_in)  # as soon as the broker has seen that the first is gone


def test_bytes_beyond_the_quota_are_slowed_down(broker: Secured) -> None:
    rate = 200_000
    with broker.token("slow", roles=["admin"], quota=Quota(bytes_per_s=rate)) as client:
        began, size = time.monotonic(), 100_000
        for _ in range(5):
            client.send("slow-topic", bytes(size))
        client.stat()
        took = time.monotonic() - began
    # A second's worth comes at once; the rest at the rate.
    assert took >= (5 * size - rate) / rate - 0.6, took
    with broker.token("fast", roles=["admin"]) as client:
        began = time.monotonic()
        for _ in range(60):
            client.send("slow-topic", bytes(size))
        assert time.monotonic() - began < 60 * size / rate - 5, "no quota, no waiting"


def test_messages_in_flight_are_bounded_by_the_quota(broker: Secured) -> None:
    broker.admin.send_many("held", [b"x"] * 50)
    with (
        broker.token("holder", roles=["consumer"], quota=Quota(in_flight=10)) as client,
        client.consumer("held", group="one", prefetch=0) as one,
        client.consumer("held", group="two", prefetch=0) as two,
    ):
        first = one.pull(7)
        assert len(first) == 7
        second = two.pull(7)
        assert len(second) == 3
        with pytest.raises(QueueFull, match="quota"):
            two.pull(7, wait=0.2)
        first.ack()
        one.flush()
        assert len(two.pull(20)) == 7


# Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    run = partial(openssl, folder)
    run("req", "-x509", *KIND, "-days", "2", "-subj", "/CN=Test CA", "-keyout", "ca.key", "-out", "ca.pem")
    for name, alternative in (("localhost", "DNS:localhost"), ("alice", "URI:spiffe://shop/alice"), ("alice2", "")):
        request = ("req", *KIND, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        run(*request, *(("-addext", f"subjectAltName={alternative}") if alternative else ()))
        sign = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2")
        run(*sign, "-copy_extensions", "copy", "-out", f"{name}.pem")
    return folder


def test_a_client_certificate_stands_for_exactly_one_user(certificates: Path, tmp_path: Path) -> None:
    setup = tmp_path / "setup"
    settings = {
        "tls_cert": str(certificates / "localhost.pem"),
        "tls_key": str(certificates / "localhost.key"),
        "tls_client_ca": str(certificates / "ca.pem"),
        "setup_file": str(setup),
    }
    with BrokerProcess(security=True, **settings) as process:
        url, ca_file = f"towlines://localhost:{process.port}", str(certificates / "ca.pem")

        def connect(certificate: str | None, token: str = "", secret: str = "", timeout: float = PATIENCE_S) -> Client:
            given = certificate and str(certificates / f"{certificate}.pem")
            key = certificate and str(certificates / f"{certificate}.key")
            return towline.connect(
                url, token=token, secret=secret, ca_file=ca_file, cert_file=given, key_file=key, timeout=timeout
            )

        with connect("alice", "setup", setup.read_text().strip()) as first:
            first.access.create_user("alice", roles=["admin"], identities=["uri:spiffe://shop/alice"])
        with connect("alice") as alice:
            assert alice.access.who_am_i().user == "alice"
            assert {one.token for one in alice.clients()} == {"alice"}, "transactions and staged frames are its own"
            alice.access.create_user("second", identities=["cn:alice2"])
            with pytest.raises(Conflict, match="stands for user"):
                alice.access.create_user("third", identities=["cn:alice2"])
            with pytest.raises(BadRequest):
                alice.access.create_user("third", identities=["alice2"])
        with connect("alice2") as second:
            assert second.access.who_am_i().user == "second"
        with pytest.raises(NotLetIn):
            connect("alice2", token="alice")
        with pytest.raises(TowlineError):
            connect(None, "setup", "x", timeout=2)


# What is seen of a message


@pytest.mark.parametrize("shards", [0, 2])
def test_whoever_describes_a_topic_sees_a_trace_without_the_message(broker: Secured, shards: int) -> None:
    name = f"traced-{shards}"
    broker.admin.create_topic(name, shards=shards)
    sent = broker.admin.send(name, b"a secret", key="k", shard_key="k" if shards else None)
    for group in ("billing", "shipping"):
        with broker.admin.consumer(name, group=group) as consumer:
            consumer.pull(wait=60).ack()
            consumer.flush()
    refusals = len(broker.admin.access.audit(limit=1000, outcome="refused").entries)
    with broker.token(f"looker-{shards}", roles=["viewer"]) as viewer:
        trace = viewer.trace(sent.id)
        assert (trace.message, trace.hidden) == (None, True)
        assert [(one.group, one.status) for one in trace.groups] == [("billing", "SUCCESS"), ("shipping", "SUCCESS")]
        assert [step.what for step in trace.groups[0].steps] == ["pulled", "acked"]
        with pytest.raises(NotFound, match="there is no message"):
            viewer.trace(f"{sent.id}9")
        with pytest.raises(Refused):
            viewer.message(sent.id)
    refused = broker.admin.access.audit(limit=1000, outcome="refused").entries
    assert len(refused) == refusals + 1, "a trace is not an attempt to read the body"
    with broker.token(f"reader-{shards}") as reader:
        with pytest.raises(Refused):
            reader.trace(sent.id)
        broker.admin.access.allow(f"reader-{shards}", "consume", "topic", name)
        broker.admin.access.allow(f"reader-{shards}", "consume", "group", "billing")
        trace = reader.trace(sent.id)
        assert trace.message is not None
        assert trace.message.body == b"a secret"
        assert [one.group for one in trace.groups] == ["billing"], "of groups that it may describe"
