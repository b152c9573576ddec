// ioredis: tasks that share one client. Its cluster pipelines take keys of one node alone, so ten
// at once are ten unfinished calls. Usage: ioredis.mjs SECONDS HOST:PORT...

import { Cluster } from "ioredis";
import { commandLine, run } from "./workload.mjs";

const { seconds, nodes } = commandLine();
const client = new Cluster(nodes);
client.on("error", (error) => console.error(`ioredis: ${error}`));

await run("ioredis", "ioredis", {
  get: (key) => client.get(key),
  set: (key, value) => client.set(key, value),
  setFor: (key, value, seconds) => client.set(key, value, "EX", seconds),
  ttl: (key) => client.ttl(key),
  delete: (key) => client.del(key),
  expire: (key, seconds) => client.expire(key, seconds),
  increment: (key) => client.incr(key),
  setBoth: (values) => client.mset(values),
  getBoth: (keys) => client.mget(keys),
  getMany: (keys) => Promise.all(keys.map((key) => client.get(key))),
  incrementMany: (keys) => Promise.all(keys.map((key) => client.incr(key))),
}, seconds);
