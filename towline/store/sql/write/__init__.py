"""Writing: jobs gathered into one transaction after the other, frames as rows, progress as tables, trimming."""
