"""A cache by python-memcached, pylibmc or pymemcache: `cache.py MODULE PORT`; a line for each operation."""

import sys

module, port = sys.argv[1], int(sys.argv[2])
address = f"127.0.0.1:{port}"
large, odd = b"x" * 900_000, bytes(range(256)) + b"\r\nflush_all\r\n"
if module == "memcache":
    import memcache

    client = memcache.Client([address], cache_cas=True)
elif module == "pylibmc":
    import pylibmc

    client = pylibmc.Client([address], behaviors={"cas": True})
else:
    import pymemcache

    client = pymemcache.Client(address, default_noreply=False)


def say(operation, well):
    print(operation, "ok" if well else "failed")


def is_it(data, text):
    return data == text or data == text.encode()


def check_and_set():
    if module == "pymemcache":
        _, cas = client.gets("key")
        return client.cas("key", "2", cas) and client.cas("key", "3", cas) is False
    if module == "pylibmc":
        _, cas = client.gets("key")
        return client.cas("key", "2", cas) and not client.cas("key", "3", cas)
    client.gets("key")
    return client.cas("key", "2") and client.set("key", "4") and not client.cas("key", "3")


say("set", client.set("key", "hello"))
say("get", is_it(client.get("key"), "hello"))
say("missing", client.get("nothing") is None)
say("add", client.add("other", "1") and not client.add("other", "2"))
say("replace", client.replace("other", "10"))
many = client.get_multi(["key", "other", "nothing"])
say("many", sorted(many) == ["key", "other"] and is_it(many["other"], "10"))
say("incr", client.set("n", "10") and client.incr("n", 5) == 15)
say("decr", client.decr("n", 20) == 0)
say("append", client.set("text", "b") and client.append("text", "c") and is_it(client.get("text"), "bc"))
say("prepend", client.prepend("text", "a") and is_it(client.get("text"), "abc"))
say("cas", check_and_set())
say("touch", client.touch("key", 100) and client.get("key") is not None)
say("expiry", client.set("key", "x", -1 if module != "pylibmc" else 3_000_000) and client.get("key") is None)
say("large", client.set("large", large) and client.get("large") == large)
say("any-bytes", client.set("odd", odd) and client.get("odd") == odd)
say("delete", client.delete("odd") and client.get("odd") is None)
client.flush_all()
say("flush_all", client.get("large") is None)
