"""Security of the console: connections, hosts and origins, the content security policy, logging in."""
