"""The client library: one implementation, sans I/O, with two thin drivers.

_async/ _sync/   what users see: client, consumer, producer, transaction, and the same of a cluster; scripts/unasync.py
                 makes the second of the first
app/, bulk/      handlers by decorator; many messages, for Spark
admin/           topics, groups, messages, delayed, dead letters, alarms, access: their verbs, made in the same way
cluster/         many brokers as one
consume/, produce/   leases, acks and heartbeats; frames, batches and spools
concurrency/     locks, events and background work, of tasks and of threads
link/            the connection, which survives broken sockets, and its two drivers
"""
