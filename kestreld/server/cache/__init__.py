"""memcached's text and meta protocols, executed on a dictionary in memory (docs/cache.md)."""
