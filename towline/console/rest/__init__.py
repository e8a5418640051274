"""The REST door: what a client can do, over HTTP and JSON. See docs/rest.md.

It decides nothing: the caller's token goes to the broker with each request, and the broker says yes or no.
"""
