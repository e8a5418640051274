"""The verbs of an administrator, a class for each noun: the source of `_sync`."""
