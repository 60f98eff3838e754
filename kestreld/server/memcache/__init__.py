"""Kestrel's memcache protocol, executed on the queues (docs/protocol.md)."""
