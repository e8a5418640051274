"""Where the broker is."""

from __future__ import annotations

import pytest

from towline.client.link.url import Target, parse_url
from towline.errors import BadRequest


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("towline://localhost", Target("towline", (("localhost", 7400),))),
        ("towline://a:1,b:2/", Target("towline", (("a", 1), ("b", 2)))),
        ("towlines://[::1]:7401,[fe80::1]", Target("towlines", (("::1", 7401), ("fe80::1", 7400)))),
        ("memory:", Target("memory")),
        ("memory:shared", Target("memory", path="shared")),
        ("file:./data", Target("file", path="./data")),
        ("file:///var/a%20b", Target("file", path="/var/a b")),
        ("file:data?durability=os&name=x", Target("file", path="data", options=(("durability", "os"), ("name", "x")))),
    ],
)
def test_urls_are_understood(url: str, target: Target) -> None:
    assert parse_url(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:7400",
        "http://localhost",
        "towline:localhost",
        "towline://",
        "towline://a:",
        "towline://a:b",
        "towline://a:0",
        "towline://a:65536",
        "towline://a:1,,b:2",
        "towline://[::1",
        "towline://a/path",
        "towline://a?timeout=5",
        "file:",
        "memory:#x",
        "towline://" + ",".join(["a"] * 101),
    ],
)
def test_a_url_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        parse_url(url)


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(BadRequest, match="secret=") as caught:
        parse_url("towline://me:pa55word@host")
    assert "pa55word" not in str(caught.value)


def test_a_url_is_text() -> None:
    with pytest.raises(TypeError):
        parse_url(b"memory:")  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["towline://a:1,b:2", "towlines://[::1]:7400", "memory:x", "file:./data"])
def test_a_target_is_shown_as_it_was_given(url: str) -> None:
    assert str(parse_url(url)) == url
