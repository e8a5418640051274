"""The client library: one implementation, sans I/O, with two thin drivers.

    _sync/ _async/   the two clients: client, consumer, producer, transaction, and the same of a cluster; `factories`
    app/, bulk/      handlers by decorator; many messages, for Spark
    admin/           topics, messages, delayed, dead letters, monitoring, access; each an `operation`
    cluster/         many brokers as one
    consume/, produce/   leases, acks and heartbeats; frames, batches and spools
    link/            the connection, which survives broken sockets, and its two drivers

`options` are those of `connect`, `requests` the flows of single requests, `results` pages of answers; `embedded` is a
broker in this process, `process_end` flushes what is open, `telemetry` makes spans.
"""
