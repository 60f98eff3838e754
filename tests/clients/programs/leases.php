<?php
// Leases, delays and keys by PHP's Memcached: `leases.php PORT QUEUE`. A line for each row of the table.
[, $port, $queue] = $argv;
function connected($port) {
    $client = new Memcached();
    $client->addServer("127.0.0.1", (int) $port);
    $client->setOption(Memcached::OPT_POLL_TIMEOUT, 20000);
    return $client;
}
$client = connected($port);
function take($more = "/t=5000") {
    global $client, $queue;
    $found = $client->get("$queue/open/lease=30000$more", null, Memcached::GET_EXTENDED);
    return [$found["value"], $found["cas"]];
}
function said($row, ...$outcomes) {
    print("$row " . (in_array(false, $outcomes, true) ? "failed " . json_encode($outcomes) : "ok") . "\n");
}

$client->set($queue, "job");
[$value, $token] = take("");
print("token $token\n");
$client->quit();
$client = connected($port);
said("lease", $value === "job", $client->delete("$queue/$token"), !$client->delete("$queue/$token"));
$client->set($queue, "job");
$key = "$queue/open/lease=30000/t=5000";
$found = $client->getMulti(["$queue-none/open/lease=30000/t=5000", $key], Memcached::GET_EXTENDED);
said("several", count($found) === 1, $client->delete("$queue/" . $found[$key]["cas"]));
$client->set($queue, "job");
[, $token] = take();
said("extend", $client->touch("$queue/$token", 60), $client->touch("$queue/$token/lease=60000", 0));
said("give-back", $client->touch("$queue/$token", 0));
[, $token] = take();
said("give-back-later", $client->touch("$queue/$token/delay=50", 0));
[, $token] = take();
said("failed", $client->touch("$queue/$token/failed", 0));
[, $after] = take();
said("late", !$client->touch("$queue/$token", 60), !$client->delete("$queue/$token"));
$client->delete("$queue/$after");
$stored = $client->set("$queue/delay=100", "later");
said("delay", $stored, $client->get($queue) === false, $client->get("$queue/t=5000") === "later");
$twice = [$client->set("$queue/key=order-17", "once"), $client->set("$queue/key=order-17", "once")];
$added = [$client->add("$queue/key=order-17", "added"), $client->add("$queue/key=order-18", "added")];
$left = [$client->get($queue), $client->get($queue), $client->get($queue)];
said("key", ...$twice, ...[$left === ["once", "added", false]]);
said("add", !$added[0], $added[1]);
$client->set("$queue/delay=60000/key=order-19", "later");
said("cancel", $client->delete("$queue/key=order-19"), !$client->delete("$queue/key=order-19"));
