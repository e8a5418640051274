"""Frames as they were written once: what is stored today must be readable for ever, bit by bit.

After a deliberate change of the layout, which needs a new magic, write the files anew with

    python -m tests.unit.frame.test_golden
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.frame.forge import columns_of, rich_frame
from towline.frame import Frame, encode, encode_events, slice_frame

GOLDEN = Path(__file__).parent / "golden"

PLAIN = {
    "one": encode([b"hello"]),
    "empty_bodies": encode([b"", b"", b""]),
    "unicode": encode([b"a", b"b"], keys=["Grüße", None], headers=[None, {"größe": "groß", "名": "前"}]),
    "every_column": rich_frame(5),
    "slice": b"".join(slice_frame(Frame(rich_frame(5)), 1, 4)),
    "events": encode_events([b"\x01event", b"\x02event"], produced_at_us=1_700_000_000_000_000),
    "numbers": encode(
        [b"x", b"y"],
        expires_at_us=[0, 2**63 - 1],
        deliver_at_us=[-(2**63), 2**63 - 1],
        limits=[1, 2],
        producer_id=2**64 - 1,
        producer_seq=2**64 - 2,
        produced_at_us=-1,
        token=bytes(range(64)),
    ),
}
# Another zstd may pack the same columns into other bytes, so of these only the content is compared.
COMPRESSED = {"compressed": rich_frame(50, compress=True)}


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_messages_make_the_same_bytes_as_ever(name: str) -> None:
    assert PLAIN[name] == (GOLDEN / f"{name}.frame").read_bytes()


@pytest.mark.parametrize("name", [*PLAIN, *COMPRESSED])
def test_frames_of_old_are_read_as_ever(name: str) -> None:
    frame = Frame((GOLDEN / f"{name}.frame").read_bytes()).verify()
    assert columns_of(frame) == columns_of(Frame((PLAIN | COMPRESSED)[name]))
    assert frame.compressed == (name in COMPRESSED)


def slow_crc32c(data: bytes) -> int:
    """CRC-32C as its definition has it, one bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_smallest_frame_is_laid_out_as_documented() -> None:
    """Spelled out by hand, so that neither encoder nor decoder is its own witness."""
    assert slow_crc32c(b"123456789") == 0xE3069283, "the check value of the standard"
    flags, token_length, count, columns_length = "0000", "0000", "01000000", "10000000"
    columns = "00000000 05000000" + b"hello\0\0\0".hex()
    covered = bytes.fromhex(flags + token_length + count + columns_length + "00" * 48 + columns)
    length = (12 + len(covered)).to_bytes(4, "little")
    assert PLAIN["one"] == b"TWF1" + length + slow_crc32c(covered).to_bytes(4, "little") + covered


def write_golden_files() -> None:
    for name, frame in (PLAIN | COMPRESSED).items():
        (GOLDEN / f"{name}.frame").write_bytes(frame)


if __name__ == "__main__":
    write_golden_files()
