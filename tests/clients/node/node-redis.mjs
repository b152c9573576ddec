// node-redis: tasks that share one client, which puts calls of one moment into one packet per
// node. Usage: node-redis.mjs SECONDS HOST:PORT...

import { createCluster } from "redis";
import { commandLine, run } from "./workload.mjs";

const { seconds, nodes } = commandLine();
const rootNodes = nodes.map(({ host, port }) => ({ url: `redis://${host}:${port}` }));
const client = createCluster({ rootNodes });
client.on("error", (error) => console.error(`node-redis: ${error}`));
await client.connect();

await run("node-redis", "redis", {
  get: (key) => client.get(key),
  set: (key, value) => client.set(key, value),
  setFor: (key, value, seconds) => client.set(key, value, { expiration: { type: "EX", value: seconds } }),
  ttl: (key) => client.ttl(key),
  delete: (key) => client.del(key),
  expire: (key, seconds) => client.expire(key, seconds),
  increment: (key) => client.incr(key),
  setBoth: (values) => client.mSet(values),
  getBoth: (keys) => client.mGet(keys),
  getMany: (keys) => Promise.all(keys.map((key) => client.get(key))),
  incrementMany: (keys) => Promise.all(keys.map((key) => client.incr(key))),
}, seconds);
