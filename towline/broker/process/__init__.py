"""The broker as a process: `run`, and its memory: `heap`, `garbage_collector`."""
