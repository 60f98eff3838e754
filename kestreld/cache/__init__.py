"""A memcached of its own: an LRU dictionary in memory only (docs/cache.md)."""
