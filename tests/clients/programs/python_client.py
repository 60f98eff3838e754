"""A queue by python-memcached, pylibmc or pymemcache: `python_client.py MODULE PORT QUEUE`; a line each operation."""

import sys

module, port, queue = sys.argv[1], int(sys.argv[2]), sys.argv[3]
address = f"127.0.0.1:{port}"
if module == "memcache":
    import memcache

    client = memcache.Client([address])
    version = dict(client.get_stats()[0][1])["version"]
elif module == "pylibmc":
    import pylibmc

    client = pylibmc.Client([address])
    version = dict(client.get_stats()[0][1])["version"]
else:
    import pymemcache

    client = pymemcache.Client(address, default_noreply=False)
    version = client.version()
large, odd = b"x" * 200_000, bytes(range(256)) + b"\r\nflush_all\r\n"


def said(data):
    return "none" if data is None else data.decode() if isinstance(data, bytes) else data


print("version", version.decode() if isinstance(version, bytes) else version)
print("set", "ok" if client.set(queue, b"hello") else "failed")
print("get", said(client.get(queue)))
print("empty", said(client.get(queue)))
print("large", "ok" if client.set(queue, large) and client.get(queue) == large else "failed")
print("any-bytes", "ok" if client.set(queue, odd) and client.get(queue) == odd else "failed")
print("reliable", "ok" if client.set(queue, b"job") and said(client.get(f"{queue}/open")) == "job" else "failed")
print("close", said(client.get(f"{queue}/close")))
print("delete", "ok" if client.delete(queue) else "failed")
