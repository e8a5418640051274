"""The server.

listener      accepts connections                         connection      moves bytes, limits flow
session       one client                                  requests        the table of requests
pulls, subscriptions   of a session                       tls             certificates
metrics_http  /metrics and /health                        console_process the web console beside the broker
busy_poll     a busy loop stays awake
"""
