"""Handlers by decorator: `app` has `handler`s, each with a `runner`; blocking ones run in `threads`."""
