"""The client library: one implementation, sans I/O, with two thin drivers.

`connection` speaks the protocol and survives broken sockets; `flows`, `accumulate` and `subscription` say what sending,
batching and consuming are; `link` and `aio_link` move the bytes, and `blocking` and `aio` are what users see.
"""
