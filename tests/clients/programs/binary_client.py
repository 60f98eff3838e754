"""memcached's binary protocol by python-binary-memcached: `binary_client.py PORT QUEUE`."""

import sys

import bmemcached
from bmemcached.exceptions import MemcachedException

client = bmemcached.Client((f"127.0.0.1:{sys.argv[1]}",), socket_timeout=20)
try:
    print("set", "ok" if client.set(sys.argv[2], "hello\nflush_all\nbye") else "failed")
except MemcachedException as problem:
    print("set", problem)
