"""Access to servers: addresses and logins, clients for each protocol, clusters of servers, and health checks."""
