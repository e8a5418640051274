"""Administration: a file for each noun, sans I/O. Their verbs are in `_async`, of which `_sync` is made.

messages    by id, by key and time                        trace       the life of one message
delayed     times of delivery, entries                    dead_letters    list, revise, send again
alarms      the end of a silence                          listing     lists of topics and groups
access      grants and quotas
"""
