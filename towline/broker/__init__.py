"""The broker: one store at work, and the node around it.

    process/     `towline serve`: signals, heap, garbage collection
    server/      listener, connection, session, the table of requests, pulls under way
    cluster/     other brokers: gossip, membership, realms of a shared database, homes of shards
    node         the broker of a shared database: a broker for each realm
    broker       one store: opens, recovers and closes its parts
    monitor/     statistics, lists, metrics, alarms
    browse/      browse, find, trace, scan
    retention/   what may go, and what holds it back; expiry of groups; backup
    produce/     the way in: append, duplicates, transactions, staging
    consume/     the way out: groups, dispatcher, pull log, settling, dead letters
    schedule/    delayed messages
    topics/      topics, lanes, catalog
    access/      who may come in, and what each may do

Imports go downwards in this list.
"""
