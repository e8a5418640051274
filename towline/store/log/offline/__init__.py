"""A folder without its broker: inspection, streams, backup."""
