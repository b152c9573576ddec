"""What workers do and what must come of it, whichever library carries it out; see ../README.md.

A worker is a generator: it yields calls as tuples, `("get", key)`, and is sent what they returned, or
thrown what they raised. So it serves libraries that block and libraries that are awaited alike.
"""

import collections
import json
import os
import random
import sys
import time

WORKERS = 8
NAMES = 200
AT_ONCE = 10
LIFETIME = 1000
WARM_UP_SECONDS = 1


class Report:
    """What all workers of a program have seen."""

    def __init__(self, client, version):
        self.client, self.version = client, version
        self.start = time.monotonic()
        self.workers = []
        self.latencies = []
        self.errors = collections.Counter()
        self.wrong = collections.Counter()

    def worker(self, seconds):
        self.workers.append(Worker(len(self.workers), seconds, self))
        return self.workers[-1]

    def took(self, began):
        now = time.monotonic()
        if began - self.start > WARM_UP_SECONDS:
            self.latencies.append(now - began)

    def end(self):
        """Prints the line, and ends the program."""
        for what, count in (self.errors + self.wrong).most_common(6):
            print(f"{self.client}: {count} x {what}", file=sys.stderr)
        latencies = sorted(self.latencies) or [0]
        at = lambda share: latencies[int((len(latencies) - 1) * share)]
        line = {
            "client": self.client,
            "version": self.version,
            "operations": sum(worker.operations for worker in self.workers),
            "errors": self.errors.total(),
            "wrong": self.wrong.total(),
            "p50_us": round(at(0.5) * 1e6),
            "p99_us": round(at(0.99) * 1e6),
            "longest_ms": round(latencies[-1] * 1e3, 1),
        }
        print(json.dumps(line), flush=True)
        sys.exit(1 if self.errors or self.wrong else 0)


class Worker:
    """Knows what its names hold: nobody else writes them."""

    def __init__(self, number, seconds, report):
        self.number, self.report = number, report
        self.end = report.start + seconds
        self.chance = random.Random(number)
        self.generation = self.operations = 0
        self.forget()

    def forget(self):
        self.generation += 1
        self.texts, self.counters = {}, collections.Counter()

    def calls(self):
        steps = [
            self.get, self.get, self.set, self.set_for, self.delete, self.expire, self.increment,
            self.pair, self.get_many, self.increment_many, self.increment_many,
        ]
        while time.monotonic() < self.end:
            yield from self.careful(self.chance.choice(steps))
        yield from self.careful(self.read_back)

    def careful(self, step):
        try:
            yield from step()
        except Exception as error:
            self.report.errors[f"{step.__name__}: {type(error).__name__}: {error}"[:300]] += 1
            self.forget()

    def must(self, found, expected, what, commands=1):
        self.operations += commands
        if found != expected:
            self.report.wrong[f"{what}: {found!r:.200} instead of {expected!r:.200}"] += 1

    def key(self, kind, number=None):
        number = self.chance.randrange(NAMES) if number is None else number
        return f"{kind}:{os.getpid()}.{self.number}.{self.generation}.{number % NAMES}"

    def ten(self, kind):
        first = self.chance.randrange(NAMES)
        return [self.key(kind, first + offset) for offset in range(AT_ONCE)]

    def value(self):
        return f"{self.operations}:{'x' * self.chance.randrange(890)}"

    def get(self):
        text = self.key("text")
        self.must((yield "get", text), self.texts.get(text), "GET")

    def set(self):
        text, value = self.key("text"), self.value()
        self.must((yield "set", text, value), True, "SET")
        self.texts[text] = value

    def set_for(self):
        text, value = self.key("text"), self.value()
        self.must((yield "set_for", text, value, LIFETIME), True, "SET EX")
        self.texts[text] = value
        rest = yield "ttl", text
        self.must(LIFETIME - 10 <= rest <= LIFETIME, True, f"TTL {rest}")

    def delete(self):
        text = self.key("text")
        self.must((yield "delete", text), int(self.texts.pop(text, None) is not None), "DEL")

    def expire(self):
        text = self.key("text")
        self.must((yield "expire", text, LIFETIME), text in self.texts, "EXPIRE")

    def increment(self):
        counter = self.key("counter")
        self.counters[counter] += 1
        self.must((yield "increment", counter), self.counters[counter], "INCR")

    def pair(self):
        name = self.key("name")
        left, right, value = f"{{{name}}}:left", f"{{{name}}}:right", self.value()
        self.must((yield "set_both", {left: value, right: value}), True, "MSET", 2)
        self.must((yield "get_both", [left, right]), [value, value], "MGET", 2)

    def get_many(self):
        texts = self.ten("text")
        expected = [self.texts.get(text) for text in texts]
        self.must((yield "get_many", texts), expected, "ten GET", AT_ONCE)

    def increment_many(self):
        counters = self.ten("counter")
        self.counters.update(counters)
        expected = [self.counters[counter] for counter in counters]
        self.must((yield "increment_many", counters), expected, "ten INCR", AT_ONCE)

    def read_back(self):
        for text, value in self.texts.items():
            self.must((yield "get", text), value, "GET at the end")
        for counter, value in self.counters.items():
            self.must((yield "get", counter), str(value), "GET of a counter at the end")


def proceed(how, what):
    """The worker's next call after it was told how the last one ended; `None` if it has finished."""
    try:
        return how(what)
    except StopIteration:
        return None


def nodes(arguments):
    """Seconds, and pairs of host and port, from a command line."""
    seconds, *addresses = arguments
    split = (address.rsplit(":", 1) for address in addresses)
    return float(seconds), [(host, int(port)) for host, port in split]
