"""Security of the console.

middleware  headers and checks of every request           origin          hosts and origins
csp         the content security policy                   login           cookies and tokens
http_connection   limits below HTTP
"""
