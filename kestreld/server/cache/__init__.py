"""Memcached's text and meta protocol, on a dictionary (docs/cache.md)."""
