<?php
// A queue by PHP's Memcached: `client.php PORT QUEUE`, with `binary` behind it by the binary protocol.
[, $port, $queue] = $argv;
$client = new Memcached();
$client->addServer("127.0.0.1", (int) $port);
if (($argv[3] ?? "") === "binary") {
    $client->setOption(Memcached::OPT_BINARY_PROTOCOL, true);
    $client->setOption(Memcached::OPT_POLL_TIMEOUT, 20000);
    print("set " . ($client->set($queue, "hello\nflush_all\nbye") ? "ok" : $client->getResultMessage()) . "\n");
    exit;
}
$large = str_repeat("x", 200000);
$odd = implode(array_map("chr", range(0, 255))) . "\r\nflush_all\r\n";
$client->setOption(Memcached::OPT_COMPRESSION, false);
print("version " . implode(" ", $client->getVersion()) . "\n");
print("set " . ($client->set($queue, "hello") ? "ok" : "failed") . "\n");
print("get " . $client->get($queue) . "\n");
print("empty " . ($client->get($queue) === false ? "none" : "something") . "\n");
print("large " . ($client->set($queue, $large) && $client->get($queue) === $large ? "ok" : "failed") . "\n");
print("any-bytes " . ($client->set($queue, $odd) && $client->get($queue) === $odd ? "ok" : "failed") . "\n");
print("reliable " . ($client->set($queue, "job") && $client->get("$queue/open") === "job" ? "ok" : "failed") . "\n");
print("close " . ($client->get("$queue/close") === false ? "none" : "something") . "\n");
print("delete " . ($client->delete($queue) ? "ok" : "failed") . "\n");
