// Leases, delays and keys by npm's memcached: `leases.js PORT QUEUE`. A line for each row of the table.
const Memcached = require("memcached");
const [port, queue] = process.argv.slice(2);
const options = { retries: 0, timeout: 20000 };
let client = new Memcached(`127.0.0.1:${port}`, options);

function ask(command, ...words) {
  return new Promise((done, failed) => {
    // NOT_STORED is an error to this client, and so is NOT_FOUND to some of its versions.
    client[command](...words, (problem, answer) => done(problem ? false : answer));
  });
}
async function take(more = "/t=5000") {
  const key = `${queue}/open/lease=30000${more}`;
  const found = await ask("gets", key);
  return [found[key], found.cas];
}
const said = (row, ...outcomes) => console.log(row, outcomes.every((one) => one) ? "ok" : `failed ${outcomes}`);
const del = (word) => ask("del", `${queue}/${word}`);
const touch = (word, seconds) => ask("touch", `${queue}/${word}`, seconds);

(async () => {
  await ask("set", queue, "job", 0);
  let [value, token] = await take("");
  console.log("token", token);
  client.end();
  client = new Memcached(`127.0.0.1:${port}`, options);
  said("lease", value === "job", await del(token), !(await del(token)));
  await ask("set", queue, "job", 0);
  [, token] = await take();
  said("extend", await touch(token, 60), await touch(`${token}/lease=60000`, 0));
  said("give-back", await touch(token, 0));
  [, token] = await take();
  said("give-back-later", await touch(`${token}/delay=50`, 0));
  [, token] = await take();
  said("failed", await touch(`${token}/failed`, 0));
  const [, after] = await take();
  said("late", !(await touch(token, 60)), !(await del(token)));
  await del(after);
  const stored = await ask("set", `${queue}/delay=100`, "later", 0);
  said("delay", stored, (await ask("get", queue)) === undefined, (await ask("get", `${queue}/t=5000`)) === "later");
  const twice = [];
  for (let time = 0; time < 2; time++) twice.push(await ask("set", `${queue}/key=order-17`, "once", 0));
  const added = [];
  for (const number of [17, 18]) added.push(await ask("add", `${queue}/key=order-${number}`, "added", 0));
  const left = [];
  for (let time = 0; time < 3; time++) left.push(String(await ask("get", queue)));
  said("key", ...twice, left.join() === "once,added,undefined");
  said("add", !added[0], added[1]);
  await ask("set", `${queue}/delay=60000/key=order-19`, "later", 0);
  said("cancel", await del("key=order-19"), !(await del("key=order-19")));
  client.end();
})();
