"""Kestrel's memcache dialect: docs/protocol.md."""
