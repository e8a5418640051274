"""Delayed messages: `schedule` decides and applies, `wheel` says where each waits, `record` is how they lie there,
`due_index` has those of the next seconds, `events` and `delivered` are its records."""
