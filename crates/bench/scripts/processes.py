"""Functions that several scripts of this folder share: ports, processor time, simple requests."""

import os
import random
import socket
import time

SLOTS = 16_384
PATIENCE = 60


def free_port():
    """Returns a free port below the ephemeral ports of the system (above 32767). Its bus port, which
    is 10000 higher, is below them, too."""
    while True:
        port = random.randrange(10_000, 22_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def processor_ns(pid):
    """Returns the processor time of all threads of a process that still run, from the scheduler."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
        except FileNotFoundError:
            pass  # The thread has ended.
    return total


def ask(port, *words, host="127.0.0.1"):
    """Returns a server's reply to one request as text: a line, or a bulk string. It is empty if the server
    does not answer."""
    request = b"*%d\r\n" % len(words)
    request += b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(request)
            reply = connection.makefile("rb")
            line = reply.readline().decode().strip()
            return reply.read(int(line[1:])).decode() if line.startswith("$") else line
    except (OSError, ValueError):
        return ""


def until(what, is_so):
    """Waits until `is_so` holds, and ends the script after a minute."""
    begun = time.monotonic()
    while not is_so():
        if time.monotonic() - begun > PATIENCE:
            raise SystemExit(f"after {PATIENCE} s still not so: {what}")
        time.sleep(0.01)


def slot_of(key):
    """Returns the slot of a key or hash tag: CRC-16 (XMODEM) modulo 16,384."""
    crc = 0
    for byte in key:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ (0x1021 if crc & 0x8000 else 0)) & 0xFFFF
    return crc % SLOTS
