"""The wire protocol, sans I/O: `messages` says what can be said, `envelope` how it lies on the wire."""

from towline.protocol.envelope import (
    PREFACE,
    Decoder,
    Envelope,
    decode_answer,
    decode_request,
    encode_envelope,
    split_attachments,
)

__all__ = [
    "PREFACE",
    "Decoder",
    "Envelope",
    "decode_answer",
    "decode_request",
    "encode_envelope",
    "split_attachments",
]
