"""Monitoring: `stats` walks over all topics and groups; `listing`, `time_series`, `prometheus` and `alarms` read it."""
