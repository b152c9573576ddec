// What workers do and what must come of it, whichever library carries it out; see ../README.md.

import { readFileSync } from "node:fs";

const WORKERS = 8;
const NAMES = 200;
const AT_ONCE = 10;
const LIFETIME = 1000;
const WARM_UP_MS = 1000;

/** Seconds, and objects of host and port, from the command line. */
export function commandLine() {
  const [seconds, ...addresses] = process.argv.slice(2);
  const nodes = addresses.map((address) => {
    const colon = address.lastIndexOf(":");
    return { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) };
  });
  return { seconds: Number(seconds), nodes };
}

/** Lets all workers work with these calls, prints the report, and ends the program. */
export async function run(client, library, calls, seconds) {
  const report = new Report(client, library);
  const workers = Array.from({ length: WORKERS }, (_, number) => new Worker(number, report, calls));
  await Promise.all(workers.map((worker) => worker.work(report.start + seconds * 1000)));
  report.end(workers);
}

class Report {
  start = performance.now();
  latencies = [];
  errors = new Map();
  wrong = new Map();

  constructor(client, library) {
    this.client = client;
    const description = new URL(`node_modules/${library}/package.json`, import.meta.url);
    this.version = JSON.parse(readFileSync(description, "utf8")).version;
  }

  took(began) {
    if (began - this.start > WARM_UP_MS) this.latencies.push(performance.now() - began);
  }

  end(workers) {
    const most = [...this.errors, ...this.wrong].sort((a, b) => b[1] - a[1]).slice(0, 6);
    for (const [what, count] of most) console.error(`${this.client}: ${count} x ${what}`);
    const total = (map) => [...map.values()].reduce((sum, count) => sum + count, 0);
    const latencies = this.latencies.sort((a, b) => a - b);
    const at = (share) => latencies[Math.floor((latencies.length - 1) * share)] ?? 0;
    const line = {
      client: this.client,
      version: this.version,
      operations: workers.reduce((sum, worker) => sum + worker.operations, 0),
      errors: total(this.errors),
      wrong: total(this.wrong),
      p50_us: Math.round(at(0.5) * 1000),
      p99_us: Math.round(at(0.99) * 1000),
      longest_ms: Math.round(at(1) * 10) / 10,
    };
    console.log(JSON.stringify(line));
    process.exit(line.errors || line.wrong ? 1 : 0);
  }
}

/** Knows what its names hold: nobody else writes them. */
class Worker {
  operations = 0;
  generation = 0;

  constructor(number, report, calls) {
    Object.assign(this, { number, report, calls });
    this.forget();
  }

  forget() {
    this.generation += 1;
    this.texts = new Map();
    this.counters = new Map();
  }

  async work(end) {
    const steps = [
      this.get, this.get, this.set, this.setFor, this.delete, this.expire, this.increment,
      this.pair, this.getMany, this.incrementMany, this.incrementMany,
    ];
    while (performance.now() < end) await this.careful(steps[below(steps.length)]);
    await this.careful(this.readBack);
  }

  async careful(step) {
    try {
      await step.call(this);
    } catch (error) {
      count(this.report.errors, `${step.name}: ${error}`.slice(0, 300));
      this.forget();
    }
  }

  async call(name, ...words) {
    const began = performance.now();
    const reply = await this.calls[name](...words);
    this.report.took(began);
    return reply;
  }

  must(found, expected, what, commands = 1) {
    this.operations += commands;
    const [left, right] = [found, expected].map((value) => JSON.stringify(value));
    if (left !== right) {
      count(this.report.wrong, `${what}: ${left.slice(0, 200)} instead of ${right.slice(0, 200)}`);
    }
  }

  key(kind, number = below(NAMES)) {
    return `${kind}:${process.pid}.${this.number}.${this.generation}.${number % NAMES}`;
  }

  ten(kind) {
    const first = below(NAMES);
    return Array.from({ length: AT_ONCE }, (_, offset) => this.key(kind, first + offset));
  }

  value() {
    return `${this.operations}:${"x".repeat(below(890))}`;
  }

  counted(counter) {
    this.counters.set(counter, (this.counters.get(counter) ?? 0) + 1);
    return this.counters.get(counter);
  }

  async get() {
    const text = this.key("text");
    this.must(await this.call("get", text), this.texts.get(text) ?? null, "GET");
  }

  async set() {
    const [text, value] = [this.key("text"), this.value()];
    this.must(await this.call("set", text, value), "OK", "SET");
    this.texts.set(text, value);
  }

  async setFor() {
    const [text, value] = [this.key("text"), this.value()];
    this.must(await this.call("setFor", text, value, LIFETIME), "OK", "SET EX");
    this.texts.set(text, value);
    const rest = await this.call("ttl", text);
    this.must(LIFETIME - 10 <= rest && rest <= LIFETIME, true, `TTL ${rest}`);
  }

  async delete() {
    const text = this.key("text");
    this.must(await this.call("delete", text), Number(this.texts.delete(text)), "DEL");
  }

  async expire() {
    const text = this.key("text");
    this.must(await this.call("expire", text, LIFETIME), Number(this.texts.has(text)), "EXPIRE");
  }

  async increment() {
    const counter = this.key("counter");
    this.must(await this.call("increment", counter), this.counted(counter), "INCR");
  }

  async pair() {
    const name = this.key("name");
    const [left, right, value] = [`{${name}}:left`, `{${name}}:right`, this.value()];
    this.must(await this.call("setBoth", { [left]: value, [right]: value }), "OK", "MSET", 2);
    this.must(await this.call("getBoth", [left, right]), [value, value], "MGET", 2);
  }

  async getMany() {
    const texts = this.ten("text");
    const expected = texts.map((text) => this.texts.get(text) ?? null);
    this.must(await this.call("getMany", texts), expected, "ten GET", AT_ONCE);
  }

  async incrementMany() {
    const counters = this.ten("counter");
    const expected = counters.map((counter) => this.counted(counter));
    this.must(await this.call("incrementMany", counters), expected, "ten INCR", AT_ONCE);
  }

  async readBack() {
    for (const [text, value] of this.texts) {
      this.must(await this.call("get", text), value, "GET at the end");
    }
    for (const [counter, value] of this.counters) {
      this.must(await this.call("get", counter), String(value), "GET of a counter at the end");
    }
  }
}

function below(limit) {
  return Math.floor(Math.random() * limit);
}

function count(map, what) {
  map.set(what, (map.get(what) ?? 0) + 1);
}
