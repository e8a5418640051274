"""Brokers among themselves.

gossip, peer, membership   the other brokers               shard_homes        ordered topics over own disks
realms, registry_table     a shared database               common_documents   shared by its brokers
routing                    which broker a request is for
format_number              the format of a database that older brokers still use
"""
