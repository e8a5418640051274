"""The verbs of an administrator, a class for each noun; made of `_async`."""
