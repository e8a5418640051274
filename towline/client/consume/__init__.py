"""Consuming, sans I/O.

    subscription    leases, acks to send, pulls under way       lease           one pull's messages and their outcome
    message, message_block, batch   as users see them           pull_size       how many to ask for
    heartbeat, time_limit, interruption   leases in time        ack_spool       acks on disk while the broker is away
    group_settings, outcome, broadcast_position

A lease has blocks, a block has messages, and a message settles through its block's lease.
"""
