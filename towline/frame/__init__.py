"""Frames: the columnar batch that is the unit of append, checksum, atomicity and transfer.

layout      the bytes of a frame                          encode, decode   lists of messages in, columns out
many        many frames at once                           slice, pick      a range, or any messages, of one frame
gather      messages of several frames as one             search           by key, without decoding
zstd        compressed columns                            even, spare      values of equal length; reused memory
"""

from towline.frame.decode import Frame, decode_headers
from towline.frame.encode import encode, encode_events, encode_frame
from towline.frame.gather import Piece, gather
from towline.frame.layout import COUNT_MAX, EVENTS, FRAME_MAX, TOKEN_MAX
from towline.frame.pick import pick
from towline.frame.slice import slice_frame

__all__ = [
    "COUNT_MAX",
    "EVENTS",
    "FRAME_MAX",
    "TOKEN_MAX",
    "Frame",
    "Piece",
    "decode_headers",
    "encode",
    "encode_events",
    "encode_frame",
    "gather",
    "pick",
    "slice_frame",
]
