"""Frames and columns: into Arrow (`from_frames`, `from_events`) and back (`to_frames`)."""
