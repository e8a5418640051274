"""The blocking client: drivers over the parts that do no I/O."""
