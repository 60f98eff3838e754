<?php
// A cache by PHP's Memcached: `cache.php PORT`. A line for each operation.
$client = new Memcached();
$client->addServer("127.0.0.1", (int) $argv[1]);
$client->setOption(Memcached::OPT_COMPRESSION, false);
$large = str_repeat("x", 900000);
$odd = implode(array_map("chr", range(0, 255))) . "\r\nflush_all\r\n";

function say(string $operation, bool $well): void {
    print($operation . ($well ? " ok\n" : " failed\n"));
}

say("set", $client->set("key", "hello"));
say("get", $client->get("key") === "hello");
say("missing", $client->get("nothing") === false);
say("add", $client->add("other", "1") && !$client->add("other", "2"));
say("replace", $client->replace("other", "10"));
say("many", $client->getMulti(["key", "other", "nothing"]) == ["key" => "hello", "other" => "10"]);
say("incr", $client->set("n", 10) && $client->increment("n", 5) === 15);
say("decr", $client->decrement("n", 20) === 0);
say("append", $client->set("text", "b") && $client->append("text", "c") && $client->get("text") === "bc");
say("prepend", $client->prepend("text", "a") && $client->get("text") === "abc");
$cas = $client->get("key", null, Memcached::GET_EXTENDED)["cas"];
say("cas", $client->cas($cas, "key", "2") && !$client->cas($cas, "key", "3"));
say("touch", $client->touch("key", 100) && $client->get("key") === "2");
say("expiry", $client->set("key", "x", 3000000) && $client->get("key") === false);
say("large", $client->set("large", $large) && $client->get("large") === $large);
say("any-bytes", $client->set("odd", $odd) && $client->get("odd") === $odd);
say("delete", $client->delete("odd") && $client->get("odd") === false);
$client->flush();
say("flush_all", $client->get("large") === false);
