// memcached's binary protocol by npm's memjs: `binary_client.js PORT QUEUE`.
const memjs = require("memjs");
const [port, queue] = process.argv.slice(2);
const client = memjs.Client.create(`127.0.0.1:${port}`, { retries: 0, timeout: 20, logger: { log: () => {} } });

client.set(queue, "hello\nflush_all\nbye", {}).then(
  (stored) => console.log("set", stored ? "ok" : "failed"),
  (problem) => console.log("set", problem.message),
).finally(() => client.close());
