"""valkey-glide: tasks that share one client, and batches. Usage: valkey_glide.py SECONDS HOST:PORT..."""

import asyncio
import importlib.metadata
import sys
import time

from glide import (
    ClusterBatch,
    ExpirySet,
    ExpiryType,
    GlideClusterClient,
    GlideClusterClientConfiguration,
    NodeAddress,
)

from workload import WORKERS, Report, nodes, proceed


class Calls:
    """The workload's calls."""

    def __init__(self, client):
        self.client = client
        self.ttl, self.expire, self.increment = client.ttl, client.expire, client.incr

    async def get(self, key):
        return text(await self.client.get(key))

    async def set(self, key, value):
        return await self.client.set(key, value) == "OK"

    async def set_for(self, key, value, seconds):
        return await self.client.set(key, value, expiry=ExpirySet(ExpiryType.SEC, seconds)) == "OK"

    async def delete(self, key):
        return await self.client.delete([key])

    async def set_both(self, values):
        return await self.client.mset(values) == "OK"

    async def get_both(self, keys):
        return [text(value) for value in await self.client.mget(keys)]

    async def get_many(self, keys):
        batch = ClusterBatch(is_atomic=False)
        for key in keys:
            batch.get(key)
        return [text(value) for value in await self.client.exec(batch, raise_on_error=True)]

    async def increment_many(self, keys):
        return await asyncio.gather(*(self.client.incr(key) for key in keys))


def text(value):
    return None if value is None else value.decode()


async def drive(worker, calls, report):
    requests = worker.calls()
    request = next(requests, None)
    while request is not None:
        name, *arguments = request
        began = time.monotonic()
        try:
            reply = await getattr(calls, name)(*arguments)
        except Exception as error:
            request = proceed(requests.throw, error)
        else:
            report.took(began)
            request = proceed(requests.send, reply)


async def main():
    seconds, addresses = nodes(sys.argv[1:])
    known = [NodeAddress(host, port) for host, port in addresses]
    client = await GlideClusterClient.create(GlideClusterClientConfiguration(known))
    report = Report("valkey-glide", importlib.metadata.version("valkey-glide"))
    workers = [report.worker(seconds) for _ in range(WORKERS)]
    await asyncio.gather(*(drive(worker, Calls(client), report) for worker in workers))
    await client.close()
    report.end()


if __name__ == "__main__":
    asyncio.run(main())
