"""The broker as a process: `run`, and what keeps its memory in bounds."""
