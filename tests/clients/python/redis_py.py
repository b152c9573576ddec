"""redis-py: threads that share one client, and pipelines. Usage: redis_py.py SECONDS HOST:PORT..."""

import sys
import threading
import time

import redis
from redis.cluster import ClusterNode, RedisCluster

from workload import WORKERS, Report, nodes, proceed


class Calls:
    """The workload's calls."""

    def __init__(self, client):
        self.get, self.set, self.delete = client.get, client.set, client.delete
        self.ttl, self.expire, self.increment = client.ttl, client.expire, client.incr
        self.set_both, self.get_both = client.mset, client.mget
        self.client = client

    def set_for(self, key, value, seconds):
        return self.client.set(key, value, ex=seconds)

    def get_many(self, keys):
        with self.client.pipeline() as pipeline:
            for key in keys:
                pipeline.get(key)
            return pipeline.execute()

    def increment_many(self, keys):
        with self.client.pipeline() as pipeline:
            for key in keys:
                pipeline.incr(key)
            return pipeline.execute()


def drive(worker, calls, report):
    requests = worker.calls()
    request = next(requests, None)
    while request is not None:
        name, *arguments = request
        began = time.monotonic()
        try:
            reply = getattr(calls, name)(*arguments)
        except Exception as error:
            request = proceed(requests.throw, error)
        else:
            report.took(began)
            request = proceed(requests.send, reply)


def main():
    seconds, addresses = nodes(sys.argv[1:])
    startup = [ClusterNode(host, port) for host, port in addresses]
    calls = Calls(RedisCluster(startup_nodes=startup, decode_responses=True))
    report = Report("redis-py", redis.__version__)
    workers = [report.worker(seconds) for _ in range(WORKERS)]
    threads = [threading.Thread(target=drive, args=(worker, calls, report)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report.end()


if __name__ == "__main__":
    main()
