"""Leases, delays and keys by pylibmc or pymemcache: `leases.py MODULE PORT QUEUE`; a line each row of the table."""

import sys

module, port, queue = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if module == "pylibmc":
    import pylibmc

    client = pylibmc.Client([f"127.0.0.1:{port}"], behaviors={"cas": True})
    close = client.disconnect_all
else:
    import pymemcache

    client = pymemcache.Client(f"127.0.0.1:{port}", default_noreply=False)
    close = client.close


def take(options="/t=5000"):
    """What is leased, and its token as text."""
    value, token = client.gets(f"{queue}/open/lease=30000{options}")
    return value, token.decode() if isinstance(token, bytes) else str(token)


def said(row, *outcomes):
    print(row, "ok" if all(outcomes) else f"failed {outcomes}")


client.set(queue, b"job")
value, token = take("")
print("token", token)
close()
said("lease", value == b"job", client.delete(f"{queue}/{token}"), not client.delete(f"{queue}/{token}"))
if module == "pymemcache":
    client.set(queue, b"job")
    keys = [f"{queue}-none/open/lease=30000/t=5000", f"{queue}/open/lease=30000/t=5000"]
    ((key, (value, token)),) = client.gets_many(keys).items()
    said("several", (key, value) == (keys[1], b"job"), client.delete(f"{queue}/{token.decode()}"))
client.set(queue, b"job")
_, token = take()
said("extend", client.touch(f"{queue}/{token}", 60), client.touch(f"{queue}/{token}/lease=60000", 0))
said("give-back", client.touch(f"{queue}/{token}", 0))
_, token = take()
said("give-back-later", client.touch(f"{queue}/{token}/delay=50", 0))
_, token = take()
said("failed", client.touch(f"{queue}/{token}/failed", 0))
_, after = take()
said("late", not client.touch(f"{queue}/{token}", 60), not client.delete(f"{queue}/{token}"))
client.delete(f"{queue}/{after}")
stored = client.set(f"{queue}/delay=100", b"later")
said("delay", stored, client.get(queue) is None, client.get(f"{queue}/t=5000") == b"later")
twice = [client.set(f"{queue}/key=order-17", b"once") for _ in range(2)]
added = [client.add(f"{queue}/key=order-{number}", b"added") for number in (17, 18)]
said("key", *twice, [client.get(queue) for _ in range(3)] == [b"once", b"added", None])
said("add", not added[0], added[1])
client.set(f"{queue}/delay=60000/key=order-19", b"later")
said("cancel", client.delete(f"{queue}/key=order-19"), not client.delete(f"{queue}/key=order-19"))
