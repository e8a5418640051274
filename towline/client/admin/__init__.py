"""Administration: a file for each noun.

topics      topics and groups                             messages    browse, find, trace; delayed ones
trace       the life of one message                       delayed     times of delivery, entries
dead_letters    list, revise, send again                  monitoring  figures, alarms, clients, backups
access      users, tokens, rules, audit
"""
