"""A connection to a broker: `url` and `dial` find it, `connection` speaks the protocol (sans I/O), `blocking` and `aio`
move the bytes; a `flow` is a sequence of requests that either of them runs."""
