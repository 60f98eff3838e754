// A cache by npm's memcached: `cache.js PORT`. A line for each operation.
const Memcached = require("memcached");
const client = new Memcached(`127.0.0.1:${process.argv[2]}`, { retries: 0, timeout: 20000 });
const large = "x".repeat(900000);
const odd = Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, at) => at)), Buffer.from("\r\nflush_all\r\n")]);

function ask(command, ...words) {
  return new Promise((done) => {
    client[command](...words, (problem, answer) => done(problem ? false : answer));
  });
}
const say = (operation, well) => console.log(operation, well ? "ok" : "failed");

(async () => {
  say("set", await ask("set", "key", "hello", 0));
  say("get", (await ask("get", "key")) === "hello");
  say("missing", (await ask("get", "nothing")) === undefined);
  say("add", (await ask("add", "other", "1", 0)) && !(await ask("add", "other", "2", 0)));
  say("replace", await ask("replace", "other", "10", 0));
  const many = await ask("getMulti", ["key", "other", "nothing"]);
  say("many", many.key === "hello" && String(many.other) === "10" && many.nothing === undefined);
  say("incr", (await ask("set", "n", "10", 0)) && (await ask("incr", "n", 5)) === 15);
  say("decr", (await ask("decr", "n", 20)) === 0);
  say("append", (await ask("set", "text", "b", 0)) && (await ask("append", "text", "c")) && (await ask("get", "text")) === "bc");
  say("prepend", (await ask("prepend", "text", "a")) && (await ask("get", "text")) === "abc");
  const { cas } = await ask("gets", "key");
  say("cas", (await ask("cas", "key", "2", cas, 0)) && !(await ask("cas", "key", "3", cas, 0)));
  say("touch", await ask("touch", "key", 100));
  say("expiry", (await ask("set", "key", "x", -1)) && (await ask("get", "key")) === undefined);
  say("large", (await ask("set", "large", large, 0)) && (await ask("get", "large")) === large);
  say("any-bytes", (await ask("set", "odd", odd, 0)) && odd.equals(await ask("get", "odd")));
  say("delete", (await ask("del", "odd")) && (await ask("get", "odd")) === undefined);
  await ask("flush");
  say("flush_all", (await ask("get", "large")) === undefined);
  client.end();
})();
