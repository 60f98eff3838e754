// A queue by npm's memcached: `client.js PORT QUEUE`. A line for each operation.
const Memcached = require("memcached");
const [port, queue] = process.argv.slice(2);
const client = new Memcached(`127.0.0.1:${port}`, { retries: 0, timeout: 20000 });
const large = "x".repeat(200000);
const odd = Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, at) => at)), Buffer.from("\r\nflush_all\r\n")]);

function ask(command, ...words) {
  return new Promise((done, failed) => {
    client[command](...words, (problem, answer) => (problem ? failed(problem) : done(answer)));
  });
}
const set = (data) => ask("set", queue, data, 0);
const said = (data) => (data === undefined ? "none" : String(data));
const ok = (whether) => (whether ? "ok" : "failed");

(async () => {
  console.log("version", (await ask("version"))[0].version);
  console.log("set", ok(await set("hello")));
  console.log("get", said(await ask("get", queue)));
  console.log("empty", said(await ask("get", queue)));
  console.log("large", ok((await set(large)) && (await ask("get", queue)) === large));
  console.log("any-bytes", ok((await set(odd)) && odd.equals(await ask("get", queue))));
  console.log("reliable", ok((await set("job")) && (await ask("get", `${queue}/open`)) === "job"));
  console.log("close", said(await ask("get", `${queue}/close`)));
  console.log("delete", ok(await ask("del", queue)));
  client.end();
})().catch((problem) => {
  console.log("failed", problem);
  process.exit(1);
});
