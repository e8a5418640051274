"""The REST door: what a client can do, over HTTP and JSON. See docs/rest.md.

It decides nothing: the caller's token goes to the broker with each request, and the broker allows or refuses.

app, process    the application, and its process          docs_page       OpenAPI for people
client_pool     a client for each caller                  held_leases     pulls of callers, between requests
models, fields  shared models, and query parameters
topics, groups, messages, alarms, cluster, access   the routes by noun
"""
