"""Administration: a file for each noun; topics and groups, messages, delayed, dead letters, monitoring, access."""
