"""The wire protocol, sans I/O: requests and answers by noun, gathered in `messages`; `envelope` is their encoding."""

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
