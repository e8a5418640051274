"""Pieces of pages: tables, lists, charts, dialogs, bodies."""
