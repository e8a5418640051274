"""Writing: a unit takes its place at the tail, the writer commits in groups, the sealer finishes segments."""
