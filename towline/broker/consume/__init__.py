"""Consuming: from a group's next message to its ack.

groups        a topic's groups by name               dispatcher   one group: decide, append, apply
consumers     attach, pull, settle, leave            member       one consumer that is attached
prefix_subscription   members of many groups         waiting_pull   pulls that wait
fetch         a granted pull's bytes                 settle       acks, nacks, give-backs
pull_log      events, written and replayed           snapshots    groups on file
dead_letters  bury, revise, send again               message_limits   timeouts and attempts of messages
seek          start and moved positions
"""
