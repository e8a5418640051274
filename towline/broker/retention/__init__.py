"""Retention: `retention` drops what is old or too much, behind `holds` and open messages (`overdue_messages`);
`group_expiry` removes unused groups; `backup` keeps the log for a copy under way."""
