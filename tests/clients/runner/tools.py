"""The command-line tools of Redis and Valkey, against a cluster, in part while its slots move.

They are looked for on the PATH. `BALLAST_TEST_TOOLS` may name a command to start them with, as in
`BALLAST_TEST_TOOLS="chroot /somewhere"`.
"""

import os
import re
import shlex
import subprocess

from .cluster import Cluster, Mover, text

KEYS = 300
REQUESTS = 20_000
RECORDS, RECORD_BYTES = 20_000, 200
SERVERS = 2
# More than one percent of a server's, so that a rebalancing moves them back.
SLOTS_TO_MOVE = 100
PATIENCE_SECONDS = 60


class Wrong(Exception):
    """A tool that failed, or did not say what it must."""


class Tool:
    """One program on one cluster."""

    def __init__(self, name, cluster):
        self.name, self.cluster = name, cluster
        self.host, self.port = cluster.addresses[0]

    def run(self, *words, says_to=None):
        """What it prints; it must succeed and complain of nothing."""
        command = [*start_with(), self.name, *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "input": says_to or ""}
        try:
            done = subprocess.run(command, text=True, timeout=PATIENCE_SECONDS, **pipes)
        except subprocess.TimeoutExpired as late:
            raise Wrong(f"still running after {late.timeout} s; it said {shortened(late.stdout)}")
        if done.returncode or re.search(r"\bERR\b|\[WARNING\]|\(error\)", done.stdout):
            raise Wrong(f"ended with {done.returncode} and said {shortened(done.stdout)}")
        return done.stdout

    def run_on_node(self, *words, says_to=None):
        return self.run("-h", self.host, "-p", self.port, *words, says_to=says_to)

    def run_on_cluster(self, subcommand, *words):
        return self.run("--cluster", subcommand, text(self.cluster.addresses[0]), *words)


def must(holds, said):
    if not holds:
        raise Wrong(f"it said {shortened(said)}")


def redirected(tool):
    keys = [f"{tool.name}:{number}" for number in range(KEYS)]
    sets = "".join(f"SET {key} value-of-{key}\n" for key in keys)
    done = tool.run_on_node("-c", says_to=sets).splitlines()
    must(done.count("OK") == KEYS, done)
    found = tool.run_on_node("-c", says_to="".join(f"GET {key}\n" for key in keys)).splitlines()
    # Between the answers it may tell where it was sent.
    found = [line for line in found if line.startswith("value-of-")]
    must(found == [f"value-of-{key}" for key in keys], found)


def latency(tool):
    # Not on a terminal it measures for one interval, and prints minimum, maximum, mean, samples.
    said = tool.run_on_node("--latency", "-i", "1")
    must(len(said.split()) == 4 and int(said.split()[3]) > 10, said)


def big_keys(tool):
    said = tool.run_on_node("--bigkeys")
    must(re.search(r"Sampled [1-9]\d* keys in the keyspace", said) and "Biggest string" in said, said)


def memory_of_keys(tool):
    said = tool.run_on_node("--memkeys")
    must(re.search(r"Sampled [1-9]\d* keys in the keyspace", said) and "Biggest string" in said, said)


def cluster_info(tool):
    said = tool.run_on_cluster("info")
    must(re.search(rf"\[OK\] [1-9]\d* keys in {len(tool.cluster.servers)} (masters|primaries)", said), said)


def cluster_check(tool):
    said = tool.run_on_cluster("check")
    must("[OK] All nodes agree about slots configuration." in said, said)
    must("[OK] All 16384 slots covered." in said, said)


def reshard(tool, *how):
    source, target, *_ = tool.cluster.names
    before = slots_of(tool.cluster, target), records(tool.cluster)
    words = "--cluster-from", source, "--cluster-to", target, "--cluster-slots", SLOTS_TO_MOVE
    said = tool.run_on_cluster("reshard", *words, "--cluster-yes", *how)
    tool.cluster.settle()
    after = slots_of(tool.cluster, target), records(tool.cluster)
    must(after == (before[0] + SLOTS_TO_MOVE, before[1]), f"{before} became {after}: {said}")
    cluster_check(tool)


def reshard_at_once(tool):
    reshard(tool, "--cluster-use-atomic-slot-migration")


def rebalance(tool):
    before = records(tool.cluster)
    said = tool.run_on_cluster("rebalance", "--cluster-threshold", "1")
    tool.cluster.settle()
    slots = [slots_of(tool.cluster, name) for name in tool.cluster.names]
    must(max(slots) - min(slots) <= SERVERS and records(tool.cluster) == before, f"slots {slots}: {said}")
    cluster_check(tool)


def benchmark(tool):
    words = "--cluster", "-t", "set,get,incr,mset", "-n", REQUESTS, "-P", "4", "-q"
    said = tool.run_on_node(*words)
    must(said.count("requests per second") == 4, said)


# What each tool is to do while slots move, and what it is to do while nobody else moves them: for
# `--bigkeys` and `--memkeys` know no redirections, in no cluster.
COMMAND_LINE_MOVING = [redirected, latency]
COMMAND_LINE_AT_REST = [big_keys, memory_of_keys, cluster_info, cluster_check]
TOOLS = {
    "redis-cli": (COMMAND_LINE_MOVING, [*COMMAND_LINE_AT_REST, reshard, rebalance]),
    "valkey-cli": (COMMAND_LINE_MOVING, [*COMMAND_LINE_AT_REST, reshard_at_once, reshard, rebalance]),
    "redis-benchmark": ([benchmark], []),
    "valkey-benchmark": ([benchmark], []),
}


def run_all(binary, logs):
    """Runs every case and prints a line for each; gives how they ended."""
    logs.mkdir(parents=True, exist_ok=True)
    for name, (while_moving, at_rest) in TOOLS.items():
        version = version_of(name)
        if version is None:
            yield ended(name, "skipped", "it is not installed")
            continue
        name_and_version = f"{name} {version}"
        with Cluster(binary, logs, SERVERS) as cluster:
            cluster.fill(RECORDS, RECORD_BYTES)
            mover = Mover(cluster)
            for case in while_moving:
                yield attempt(name_and_version, case, Tool(name, cluster), " while slots move")
            moved, problems = mover.end()
            if problems or not moved:
                yield ended(f"{name}: {moved} moves", "failed", "; ".join(problems))
        with Cluster(binary, logs, SERVERS) as cluster:
            cluster.fill(RECORDS, RECORD_BYTES)
            for case in at_rest:
                yield attempt(name_and_version, case, Tool(name, cluster), "")


def attempt(name, case, tool, when):
    what = case.__name__.replace("_", " ") + when
    try:
        case(tool)
    except Wrong as wrong:
        return ended(f"{name} {what}", "failed", str(wrong))
    return ended(f"{name} {what}", "passed", "")


def ended(what, how, why):
    print(f"{what}: {how}" + (f": {why}" if why else ""), flush=True)
    return how


def start_with():
    return shlex.split(os.environ.get("BALLAST_TEST_TOOLS", ""))


def version_of(name):
    try:
        done = subprocess.run([*start_with(), name, "--version"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.split()[1] if done.returncode == 0 else None


def slots_of(cluster, name):
    ranges = cluster.settle()
    return sum(last - first + 1 for first, last, owner, *_ in ranges if owner[2] == name)


def records(cluster):
    return sum(server.ask("DBSIZE") for server in cluster.servers)


def shortened(said):
    said = said if isinstance(said, str) else str(said)
    return repr(said if len(said) < 1500 else said[:300] + " ... " + said[-1200:])
