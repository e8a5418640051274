"""Bytes on disk: records in segments, the index and the keys of a sealed one, scanning, damage, the folder."""
