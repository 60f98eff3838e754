// Jobs by npm's ioredis: `jobs.js PORT`. A line for each command. The last one stops the server.
const Redis = require("ioredis");
const options = { port: Number(process.argv[2]), host: "127.0.0.1", protocol: 2, retryStrategy: () => null };
const client = new Redis(options);
const other = new Redis(options);
const body = Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, at) => at)), Buffer.from("\r\n*1\r\n$4\r\nPING\r\n")]);

const ask = (...words) => client.call(...words);
const refusal = (...words) => client.call(...words).then(() => "", (problem) => problem.message);
const fields = (flat) => Object.fromEntries(flat.flatMap((key, at) => (at % 2 ? [] : [[key, flat[at + 1]]])));
const say = (command, well) => console.log(command, well ? "ok" : "failed");
const add = (queue, ...words) => ask("ADDJOB", queue, "body", 0, ...words);
const fetch = async (queue) => (await ask("GETJOB", "FROM", queue))[0];

async function jobs() {
  const id = await client.call("ADDJOB", "mail", body, 0, "RETRY", 60);
  say("addjob", id.length === 40);
  say("qlen", (await ask("QLEN", "mail")) === 1);
  const [[queue, fetched, bytes]] = await client.callBuffer("GETJOB", "FROM", "mail");
  say("getjob", queue.equals(Buffer.from("mail")) && fetched.equals(Buffer.from(id)) && bytes.equals(body));
  say("working", (await ask("WORKING", id)) === 60);
  say("show", fields(await ask("SHOW", id)).state === "active" && (await ask("SHOW", "D-" + "x".repeat(8) + id.slice(10))) === null);
  say("nack", (await ask("NACK", id)) === 1);
  say("dequeue", (await ask("DEQUEUE", id)) === 1);
  say("enqueue", (await ask("ENQUEUE", id)) === 1);
  say("qpeek", (await ask("QPEEK", "mail", -1))[0][1] === id);
  say("qstat", fields(await ask("QSTAT", "mail")).len === 1 && (await ask("QSTAT", "nothing")) === null);
  say("qcount", fields(await ask("QCOUNT", "mail")).queued === 1);
  say("qscan", (await ask("QSCAN", "BUSYLOOP"))[1].includes("mail"));
  say("jscan", (await ask("JSCAN", "QUEUE", "mail"))[1][0] === id);
  say("deadjob", (await ask("DEADJOB", id)) === 1);
  say("deadshow", fields(await ask("DEADSHOW", id)).origin === "mail");
  say("redrive", (await ask("REDRIVE", "mail.dead")) === 1);
  const waiting = other.call("WAITJOB", id, 20000);
  while (!(await ask("INFO", "clients")).includes("blocked_clients:1")) {}
  say("ackjob", (await ask("ACKJOB", id)) === 1);
  say("waitjob", (await waiting) === "acked");
  say("fastack", (await ask("FASTACK", await add("q"), await add("q"))) === 2);
  say("deljob", (await ask("DELJOB", await add("q"))) === 1);
  say("qdel", (await add("q"), await add("q"), await ask("QDEL", "q")) === 2);
  const blocked = other.call("GETJOB", "TIMEOUT", 20000, "FROM", "later");
  while (!(await ask("INFO", "clients")).includes("blocked_clients:1")) {}
  const late = await add("later");
  say("blocking", (await blocked)[0][1] === late);
  say("pause", (await ask("PAUSE", "mail", "in")) === "in" && (await refusal("ADDJOB", "mail", "x", 0)).startsWith("PAUSED "));
  const many = await Promise.all(Array.from({ length: 500 }, () => add("many")));
  say("pipeline", new Set(many).size === 500 && (await ask("ACKJOB", ...many)) === 500);
  say("loadjob", (await refusal("LOADJOB", "x")).includes("only processed from AOF"));
  say("importjob", (await refusal("IMPORTJOB", "x")).startsWith("ERR "));
}

async function server() {
  say("ping", (await client.ping()) === "PONG");
  say("hello", (await ask("HELLO"))[0] === 1);
  say("info", (await client.info("server")).includes(`tcp_port:${options.port}`));
  say("time", (await client.time()).length === 2);
  say("command", (await ask("COMMAND", "COUNT")) === (await ask("COMMAND")).length);
  say("client", (await client.client("SETNAME", "worker")) === "OK" && (await client.client("LIST")).includes("name=worker"));
  say("config", (await client.config("GET", "maxmemory"))[1] === "1073741824" && (await client.config("REWRITE")) === "OK");
  say("slowlog", (await client.slowlog("LEN")) >= 0);
  say("latency", Array.isArray(await client.latency("LATEST")));
  say("debug", (await refusal("DEBUG", "ERROR", "ERR so it is")).endsWith("so it is"));
  say("cluster", (await client.cluster("MYID")).length === 40);
  say("bgrewriteaof", (await client.bgrewriteaof()).startsWith("Background append only file rewriting"));
  say("auth", (await refusal("AUTH", "secret")).includes("no password is set"));
  const monitor = await client.monitor();
  const seen = new Promise((done) => monitor.on("monitor", (_, words) => done(words)));
  await client.ping();
  say("monitor", (await seen)[0].toLowerCase() === "ping");
  monitor.disconnect();
  say("unknown", (await refusal("FOO")).includes("unknown command 'FOO'"));
  say("quit", (await other.quit()) === "OK");
  const ended = new Promise((done) => client.on("end", done));
  client.on("error", () => {});
  client.call("SHUTDOWN").catch(() => {});
  await ended;
  say("shutdown", true);
}

jobs().then(server).catch((problem) => { console.error(problem); process.exit(1); });
