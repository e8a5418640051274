"""Brokers among themselves.

gossip, peer, membership   who is there                    shard_homes        ordered topics over own disks
realms, registry_table     a shared database               common_documents   what its brokers share
routing                    which broker a request is for
format_number              the format of a database that older brokers still use
"""
