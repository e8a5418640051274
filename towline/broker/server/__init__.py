"""The server: `listener` accepts, `connection` moves bytes, `session` knows the client, `requests` dispatches."""
