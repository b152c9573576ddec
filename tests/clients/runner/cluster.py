"""A cluster of Ballast's processes, and whoever moves its slots."""

import binascii
import random
import socket
import subprocess
import threading
import time

SLOTS = 16384
# Ranges that move have these many slots or a multiple: few tablets, for tablets are never merged.
SLOTS_OF_A_PIECE = 512
PIECES = SLOTS // SLOTS_OF_A_PIECE
# Between two rounds of moves. A round may take a range away and back; a client whose third or fourth
# redirection is its last (go-redis waits up to 0.1 s between them) must not meet more of them.
PAUSE_SECONDS = 0.2
PATIENCE_SECONDS = 30

# Processes share the processors with the client, and start quickly.
MODEST = ["--shared-cores", "--reactors", "1", "--ready-memory", "16mb"]

# How the reasons begin for which a move is given up before it has begun: the target has to make
# room first, was too busy to answer, or the move before it was given up. Asking again helps.
GIVEN_UP = (
    "the target has no room",
    "the flip was not answered in time",
    "Slots are not served by the source node",
)


class Refused(Exception):
    """What a server said in place of an answer."""


class Connection:
    """Speaks RESP2, one request after the other."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=PATIENCE_SECONDS)
        self.input = self.socket.makefile("rb")

    def ask(self, *words):
        self.send([words])
        return self.answer()

    def send(self, requests):
        self.socket.sendall(b"".join(encode(words) for words in requests))

    def answer(self):
        line = self.input.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("the server has closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise Refused(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest.decode()
        if kind == b"$":
            return None if int(rest) < 0 else self.input.read(int(rest) + 2)[:-2].decode()
        assert kind == b"*", line
        return [self.answer() for _ in range(int(rest))]


def encode(words):
    words = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class Process:
    """One process of the binary, on a port that the system chooses."""

    def __init__(self, binary, arguments, log):
        self.log = open(log, "w")
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": self.log}
        self.child = subprocess.Popen([binary, *arguments], text=True, **pipes)
        # "ballast serve: ready for clients on HOST:PORT (...)"
        line = self.child.stdout.readline()
        assert " on " in line, f"{arguments} did not get ready: {line}; see {log}"
        host, port = line.split(" on ", 1)[1].split()[0].rsplit(":", 1)
        self.address = host, int(port)

    def stop(self):
        self.child.kill()
        self.child.wait()
        self.log.close()


class Cluster:
    """A coordinator and servers that own as many slots each."""

    def __init__(self, binary, logs, count=3):
        self.processes = []
        try:
            self.start(binary, logs, count)
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, binary, logs, count):
        begin = lambda name, *words: self.processes.append(
            Process(binary, words, logs / f"{name}.log")
        )
        begin("coordinator", "coordinator", "--port", "0")
        coordinator = text(self.processes[0].address)
        for number in range(count):
            begin(f"server-{number}", "serve", "--port", "0", "--join", coordinator, *MODEST)
        self.addresses = [process.address for process in self.processes[1:]]
        self.servers = [Connection(address) for address in self.addresses]
        self.names = [server.ask("CLUSTER", "MYID") for server in self.servers]
        wait_until("every server knows every other", lambda: all(self.complete(s) for s in self.servers))
        for number in range(1, count):
            first, last = (PIECES * n // count * SLOTS_OF_A_PIECE for n in (number, number + 1))
            self.move(0, number, first, (SLOTS if number == count - 1 else last) - 1)
        self.settle()

    def complete(self, server):
        info = server.ask("CLUSTER", "INFO").split()
        return "cluster_state:ok" in info and f"cluster_known_nodes:{len(self.servers)}" in info

    def move(self, source, target, first, last):
        words = "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", self.names[target]
        self.servers[source].ask(*words)

    def migrations(self):
        """What the sources report."""
        found = []
        for server in self.servers:
            for fields in server.ask("CLUSTER", "GETSLOTMIGRATIONS"):
                report = dict(zip(fields[::2], fields[1::2]))
                found += [report] if report["operation"] == "EXPORT" else []
        return found

    def settle(self):
        """Waits until nothing moves and all tell the same; gives what they tell."""
        over = {"success", "failed", "cancelled"}
        ended = lambda: all(report["state"] in over for report in self.migrations())
        wait_until("migrations end", ended)
        told = lambda: [server.ask("CLUSTER", "SLOTS") for server in self.servers]
        wait_until("all servers tell the same slots", lambda: all_equal(told()))
        return told()[0]

    def owners(self):
        """The owner of each piece, once nothing moves."""
        owners = [None] * PIECES
        ports = [port for _, port in self.addresses]
        for first, last, owner, *_ in self.settle():
            for piece in range(first // SLOTS_OF_A_PIECE, last // SLOTS_OF_A_PIECE + 1):
                owners[piece] = ports.index(owner[1])
        return owners

    def fill(self, records, size):
        """Gives moves something to carry: records that no client knows of."""
        value, pipeline = "f" * size, 1000
        owners = self.owners()
        for first in range(0, records, pipeline):
            shares = {}
            for number in range(first, first + pipeline):
                key = f"filler:{number}"
                owner = owners[slot(key) // SLOTS_OF_A_PIECE]
                shares.setdefault(owner, []).append(("SET", key, value))
            for owner, requests in shares.items():
                self.servers[owner].send(requests)
            for owner, requests in shares.items():
                for _ in requests:
                    self.servers[owner].answer()

    def stop(self):
        for process in reversed(self.processes):
            process.stop()


class Mover(threading.Thread):
    """Moves ranges from server to server and back until it is told to stop."""

    def __init__(self, cluster, seed=1):
        super().__init__(daemon=True)
        self.cluster, self.chance = cluster, random.Random(seed)
        self.before = {report["name"] for report in cluster.migrations()}
        self.stopping = threading.Event()
        self.failure = None
        self.start()

    def run(self):
        try:
            while not self.stopping.wait(PAUSE_SECONDS):
                self.round()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"

    def round(self):
        owners = self.cluster.owners()
        first = self.chance.randrange(PIECES)
        source = owners[first]
        last = first
        while last + 1 < PIECES and owners[last + 1] == source and self.chance.random() < 0.8:
            last += 1
        target = (source + self.chance.randrange(1, len(self.cluster.servers))) % len(self.cluster.servers)
        slots = first * SLOTS_OF_A_PIECE, (last + 1) * SLOTS_OF_A_PIECE - 1
        self.cluster.move(source, target, *slots)
        # Every other time it is to come back at once: the second move waits for the first.
        if self.chance.random() < 0.5:
            self.cluster.move(target, source, *slots)

    def end(self):
        """How many moves there were, and what went wrong with them."""
        self.stopping.set()
        self.join()
        if self.failure:
            return 0, [self.failure]
        self.cluster.settle()
        reports = [each for each in self.cluster.migrations() if each["name"] not in self.before]
        done = [report for report in reports if report["state"] == "success"]
        ended = [report["message"] for report in reports if report["state"] != "success"]
        return len(done), [message for message in ended if not message.startswith(GIVEN_UP)]


def slot(key):
    """Of a key without a hash tag."""
    return binascii.crc_hqx(key.encode(), 0) % SLOTS


def text(address):
    return "%s:%d" % address


def all_equal(values):
    return all(value == values[0] for value in values)


def wait_until(what, holds):
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, f"in {PATIENCE_SECONDS} s not seen: {what}"
        time.sleep(0.005)
