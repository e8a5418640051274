"""The client library: one implementation, sans I/O, with two thin drivers.

    _async/ _sync/   the two clients: client, consumer, producer, transaction, and the same of a cluster; the second is
                     made of the first by scripts/unasync.py
    app/, bulk/      handlers by decorator; many messages, for Spark
    admin/           topics, groups, messages, delayed, dead letters, monitoring, access; their verbs, made likewise
    cluster/         many brokers as one
    consume/, produce/   leases, acks and heartbeats; frames, batches and spools
    link/            the connection, which survives broken sockets, and its two drivers
    concurrency/     locks, events and background work, of tasks and of threads

`options` are those of `connect`, `requests` the flows of single requests, `results` pages of answers; `embedded` is a
broker in this process, `process_end` flushes what is open, `telemetry` makes spans.
"""
