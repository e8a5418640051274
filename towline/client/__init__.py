"""The client library: one implementation, sans I/O, with two thin drivers.

_sync/ _async/   what users see: client, consumer, producer, transaction, and the same of a cluster
app/, bulk/      handlers by decorator; many messages, for Spark
admin/           topics, messages, delayed, dead letters, monitoring, access
cluster/         many brokers as one
consume/, produce/   leases, acks and heartbeats; frames, batches and spools
link/            the connection, which survives broken sockets, and its two drivers
"""
