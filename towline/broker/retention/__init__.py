"""Retention: `retention` drops what is old or too much, behind `holds` and open messages (`overdue_messages`);
`group_expiry` removes groups that nobody uses; `backup` keeps what a copy still needs."""
