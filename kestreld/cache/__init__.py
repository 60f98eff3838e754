"""The cache behind memcached's protocol: an LRU dictionary, in memory only (docs/cache.md)."""
