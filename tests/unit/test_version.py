"""The version of Towline: it is not one that was released with less, and versions are compared as numbers."""

from __future__ import annotations

import itertools

import pytest

from towline.errors import NewerFormat
from towline.format import FORMAT, instead_of, refuse_newer
from towline.format import RELEASED as FORMATS
from towline.protocol.messages import VERSION
from towline.protocol.versions import RELEASED as PROTOCOLS
from towline.protocol.versions import show_version
from towline.version import __version__, order_of


@pytest.mark.parametrize(("released", "number"), [(FORMATS, FORMAT), (PROTOCOLS, VERSION)], ids=["format", "protocol"])
def test_the_version_is_not_one_that_was_released_with_a_number_before(released: dict[int, str], number: int) -> None:
    """Else an error would tell people to use a version that cannot do it either."""
    for since, version in released.items():
        if since < number:
            assert order_of(version) < order_of(__version__)
        assert since <= number
    assert order_of(released.get(number, __version__)) <= order_of(__version__)


def test_versions_are_compared_as_numbers_and_one_in_the_making_is_before_its_release() -> None:
    in_order = ["", "0.1.0", "0.2.0.dev1", "0.2.0.dev10", "0.2.0", "0.9.0", "0.10.0rc1", "0.10.0", "1.0.0"]
    assert all(order_of(one) < order_of(next_one) for one, next_one in itertools.pairwise(in_order))


def test_an_error_names_a_version_that_can() -> None:
    assert show_version(1) == "version 1 of the protocol (Towline 0.1.0)"
    assert show_version(VERSION).endswith(f"(Towline {PROTOCOLS.get(VERSION, __version__)})")
    with pytest.raises(NewerFormat, match=r"which Towline 9\.8\.7 has written; .*: use Towline 9\.8\.7 or newer, or"):
        refuse_newer("it", FORMAT + 1, "9.8.7")
    for too_old in ("", "0.0.1", __version__):
        assert instead_of(too_old) == "use the version that has written it"
