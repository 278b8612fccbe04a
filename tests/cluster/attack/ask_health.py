"""Ask servers' health until standard input ends, each by a thread with a connection an answer.

Argument: a JSON list of [name, process, address, port, path]. Prints the slowest answers: seconds
as a clock has them, and without those in which the kernel gave other programs the CPUs that this
process or the server waited for. On an idle machine both are the same. Nothing but the standard
library is used, so that the time is that of the server.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

SOURCE = "127.0.0.9"
"""An address of its own, as another machine has."""
INTERVAL_SECONDS = 0.05
LONGEST_SECONDS = 10.0


def ask(process: int, address: str, port: int, path: str) -> tuple[float, float]:
    """Return the seconds of an answer, and those without other programs. Raises OSError."""
    mine = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    clock = Clock([mine])  # the kernel alone takes a connection, if it has room
    with socket.create_connection((address, port), LONGEST_SECONDS, (SOURCE, 0)) as connection:
        took, own = clock.read()
        clock = Clock([mine], list(Path(f"/proc/{process}/task").glob("*/schedstat")))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(4096):
            answer += part
    if not answer.startswith(b"HTTP/1.1 200"):
        raise OSError(answer[:40])
    answered, own_answered = clock.read()
    return took + answered, own + own_answered


class Clock:
    """Says the seconds since it was made, and those in which a process did not wait for a CPU."""

    def __init__(self, *processes: list[Path]) -> None:
        """`processes`: for each the files of its threads, of which the busiest counts."""
        self._processes = processes
        self._before = [[waited(file) for file in files] for files in processes]
        self._began = time.monotonic()

    def read(self) -> tuple[float, float]:
        took = time.monotonic() - self._began
        others = 0.0
        for files, before in zip(self._processes, self._before, strict=True):
            delays = (waited(file) - old for file, old in zip(files, before, strict=True))
            others += max(delays)
        return took, max(0.0, took - others)


def waited(file: Path) -> float:
    """Return for how many seconds a thread has been ready to run, and did not (proc(5)).

    0 for a thread that has ended.
    """
    try:
        return int(file.read_text().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def main() -> None:
    slowest: dict[str, tuple[float, float]] = {}
    over = threading.Event()

    def watch(name: str, *target: Any) -> None:
        while not over.wait(INTERVAL_SECONDS):
            try:
                took, own = ask(*target)
            except OSError as error:
                print(f"{name} does not answer: {error!r}", file=sys.stderr, flush=True)
                took = own = LONGEST_SECONDS
            before = slowest[name]
            slowest[name] = (max(took, before[0]), max(own, before[1]))

    threads = []
    for name, *target in json.loads(sys.argv[1]):
        slowest[name] = (0.0, 0.0)
        threads.append(threading.Thread(target=watch, args=(name, *target)))
        threads[-1].start()
    print("begun", flush=True)
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    print(json.dumps(slowest))


if __name__ == "__main__":
    main()
