"""The queue engine: queues, their readers, and the commit at the end of a turn; no sockets, no blocking."""
