"""Alarms: rules (`rule`), comparing readings with them (`watch`), the text of notices (`notice`). Pure."""
