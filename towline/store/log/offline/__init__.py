"""A folder without its broker: `inspect` checks it, `streams` reads it, `backup` copies it."""
