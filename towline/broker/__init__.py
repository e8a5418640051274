"""The broker: one store at work, and the node around it.

    process/     `towline serve`: signals, heap, garbage collection; `open_store`
    server/      listener, connection, session, the table of requests, pulls under way
    cluster/     other brokers: gossip, membership, realms of a shared database, homes of shards
    node         the broker of a shared database: a broker for each realm
    broker       one store: opens, recovers and closes its parts; `epoch` counts its starts
    monitor/     statistics, lists, metrics, alarms
    browse/      browse, find, trace, scan
    retention/   age and size, holds, open messages; expiry of groups; backup
    produce/     the way in: append, duplicates, transactions, staging
    consume/     the way out: groups, dispatcher, pull log, settling, dead letters
    schedule/    delayed messages
    topics/      topics, lanes, catalog
    access/      authentication and permissions

Imports go downwards in this list. Below all: `journal` (state on a stream), `loop_lag` and `periodic` (background
work), `fair_executor` (slow work in threads), `answer_budget` (memory of unread answers), `refused_writes` (of a
database), `table_snapshot` (large tables).
"""
