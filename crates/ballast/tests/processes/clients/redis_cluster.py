"""Works on a cluster with redis-py and its defaults for some seconds, while slots move.

Every thread knows what its own keys hold. Any exception, and any wrong answer, ends the program
with a traceback and code 1.

Usage: redis_cluster.py PORT SECONDS
"""

import random
import sys
import threading
import time
import traceback

from redis.cluster import RedisCluster

THREADS = 3
KEYS = 300


def expect(found, expected, what):
    assert found == expected, f"{what}: {found!r} instead of {expected!r}"


def work(client, number, end, counts):
    chance = random.Random(number)
    texts, counters = {}, {}
    while time.monotonic() < end:
        name = f"{number}:{chance.randrange(KEYS)}"
        text, counter = f"text:{name}", f"counter:{name}"
        kind = chance.randrange(8)
        if kind < 2:
            expect(client.get(text), texts.get(text), text)
        elif kind < 4:
            value = f"{counts[number]}:{'x' * chance.randrange(900)}"
            expect(client.set(text, value, ex=1000 if kind == 2 else None), True, text)
            texts[text] = value
        elif kind == 4:
            expect(client.delete(text), int(texts.pop(text, None) is not None), text)
        elif kind == 5:
            counters[counter] = counters.get(counter, 0) + 1
            expect(client.incr(counter), counters[counter], counter)
        elif kind == 6:
            pair = [f"{{{name}}}:left", f"{{{name}}}:right"]
            expect(client.mset(dict.fromkeys(pair, counts[number])), True, name)
            expect(client.mget(pair), [str(counts[number])] * 2, name)
        else:
            with client.pipeline() as pipeline:
                for other in range(5):
                    pipeline.get(f"text:{number}:{other}")
                expected = [texts.get(f"text:{number}:{other}") for other in range(5)]
                expect(pipeline.execute(), expected, "a pipeline")
        counts[number] += 1
    for key, value in texts.items():
        expect(client.get(key), value, key)
    for key, value in counters.items():
        expect(client.get(key), str(value), key)


def main(port, seconds):
    client = RedisCluster(host="127.0.0.1", port=port, decode_responses=True)
    end = time.monotonic() + seconds
    counts = [0] * THREADS
    failures = []

    def run(number):
        try:
            work(client, number, end, counts)
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    print(f"{sum(counts)} operations")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
