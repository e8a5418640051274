"""Property tests here do no I/O, but may share their machine with tests that do: none fails for being slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
