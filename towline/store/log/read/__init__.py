"""Reading: streams in memory, sealed segments, ranges, keys."""
