"""Dead letters of a group for people: `pages`, by `filter`, counted by `reasons`, `resend` at a rate; `walk` goes
through all of them.
"""
