"""Access to servers: addresses and logins, clients for each protocol, fleets of servers, and health checks."""
