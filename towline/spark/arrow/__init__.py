"""Frames and columns of Arrow.

from_frames     messages as columns                       to_frames       rows of a sink as frames
from_events     delivery events as rows                   attempt_column  attempts, from the pull log
row_digest      a digest of rows, to recognise an epoch
"""
