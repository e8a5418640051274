"""Reading messages without consuming them: `browse` and find, `trace` of one, `scan` of whole streams."""
