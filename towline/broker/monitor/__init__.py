"""Monitoring: `stats` walks over all topics and groups; `listing`, `time_series`, `prometheus` and `alarms` read it;
`monitor` holds them together, `disk` measures the store, `mail` and `webhooks` send notices."""
