"""Retention.

retention     drops what is old or too much               holds           others that retention waits for
overdue_messages   open for too long                      group_expiry    unused groups
backup        the log is held while a copy is made
"""
