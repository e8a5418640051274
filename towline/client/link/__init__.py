"""Connections to brokers.

url, dial       addresses, and connecting                 connection    the protocol, sans I/O
blocking, aio   the two drivers, which move bytes         flow          a sequence of requests for either driver
transport       sockets of the blocking driver            spool_file    records on the client's disk
backoff         pauses between attempts
"""
