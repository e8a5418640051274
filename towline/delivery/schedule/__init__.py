"""Delayed messages: `schedule` decides and applies, `wheel` is the geometry of slots, `record` the format of waiting
messages, `due_index` holds those of the next seconds, `events` and `delivered` are its other records."""
