"""The server: `listener` accepts, `connection` moves bytes, `session` is one client, `requests` the table of requests,
`pulls` and `subscriptions` belong to a session; `tls`, `metrics_http`, `console_process` and `busy_poll` serve the
listener."""
