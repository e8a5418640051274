"""Pieces of pages: `table`, `keyed_list`, `charts`, `dialogs`, `body_view`."""
