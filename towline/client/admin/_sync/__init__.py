"""The verbs of administration for threads, a class for each noun; made of `_async`.

topics      make, change, list, purge                     groups      make, move, pause, kick
messages    browse, find, trace                           delayed     list, cancel, move
dead_letters    list, revise, send again                  transactions    prepared ones: list, resolve
alarms      rules, silences                               monitor     lists, figures, storage
cluster     brokers, who is connected, backups            access      users, tokens, rules, audit
router      one broker, a named one, or all
"""
