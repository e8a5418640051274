"""Reading: streams in memory, recent frames, ranges by primary key."""
