"""Alarms: what is watched (`rule`), what stands out and whom to tell (`watch`), in which words (`notice`). Pure."""
