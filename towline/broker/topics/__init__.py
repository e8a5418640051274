"""Topics: by name (`topics`), at work (`topic`, with its lanes), on file (`catalog`), and traces of deleted ones."""
