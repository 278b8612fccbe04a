"""Attacks on a real head and a real worker: `python -m tests.cluster.attack` says what they find.

Each attack is bounded in count and time, and goes to loopback alone. A finding is one sentence;
the last line counts them. Exit code 1: something was found.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shlex
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil

from contract.files import fd_store
from tests.cluster.attacks import local_uid
from tests.cluster.attacks.target import Head
from tests.support.connections import is_closed
from tests.support.node_cluster import HEAD, JOB, Cluster

WORKER = 1
DESCRIPTORS = 700
HALF_OPEN = 1_000
"""More than the head has descriptors."""
HOLD_SECONDS = 12.0
MOST_LINES = 20
"""Lines of the console while connections are attacked: steps and progress are said as well."""
HEADERS = 100_000_000
"""Bytes."""
TOKENLESS = ("/", "/metrics", "/v1/state", "/v1/outcome?node=worker-1", "/v1/events")
OF_RAY = ("/api/jobs/", "/api/v0/nodes", "/api/cluster_status", "/nodes?view=summary", "/logs/")
WITHOUT_TOKEN = (4, 7, 8)
"""Ports of Ray's metrics, counted from the first of ROLLCALL_WORKER_PORTS, as documented."""
BAD_CHECK_INS: tuple[dict[str, Any], ...] = (
    {"inventory": {"cpus": math.nan}},
    {"warnings": 7},
    {"node": "a" * 200_000},
    {"node": "a\n\x1b[31m"},
    {"clock": math.inf},
    {"versions": {"ray": []}},
)


def headers(head: Head) -> Iterator[str]:
    """100 MB of small headers on one connection, without a token."""
    before, sent = head.memory, 0
    lines = b"".join(b"a%d: b\r\n" % number for number in range(10_000))
    with head.connect() as connection:
        connection.sendall(b"GET /v1/state HTTP/1.1\r\nHost: x\r\n")
        try:
            while sent < HEADERS:
                connection.sendall(lines)
                sent += len(lines)
            yield f"{sent} bytes of headers were read on one connection"
        except OSError:
            pass
        yield from head.grown(before, f"{sent} bytes of headers")


def body(head: Head) -> Iterator[str]:
    """A check-in without an end, with the token."""
    before, sent = head.memory, 0
    start = f"POST /v1/check-in HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {head.token}\r\n"
    with head.connect() as connection:
        connection.sendall(f"{start}Content-Length: {HEADERS}\r\n\r\n".encode())
        try:
            while sent < HEADERS:
                sent += connection.send(b"[" * 100_000)
        except OSError:
            pass
        yield from head.grown(before, f"a body of {sent} bytes")


def half_open(head: Head) -> Iterator[str]:
    """Requests that do not end, more than the head has descriptors."""
    _, hard = head.process.rlimit(resource.RLIMIT_NOFILE)
    limits = head.process.rlimit(resource.RLIMIT_NOFILE)
    head.process.rlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    said = len(head.cluster.said(HEAD).splitlines())
    with ExitStack() as stack:
        opened = []
        for _ in range(HALF_OPEN):
            try:
                opened.append(stack.enter_context(head.connect()))
                opened[-1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
            except OSError:
                continue  # it was closed at once, or waits in the kernel
        until = time.monotonic() + HOLD_SECONDS
        while time.monotonic() < until:
            yield from head.unwell()
            time.sleep(1.0)
        if left := sum(not is_closed(connection) for connection in opened):
            yield f"{left} of {HALF_OPEN} half-open connections live for {HOLD_SECONDS:g} s"
    head.process.rlimit(resource.RLIMIT_NOFILE, limits)
    lines = len(head.cluster.said(HEAD).splitlines()) - said
    if lines > MOST_LINES:
        yield f"half-open connections cost {lines} lines of the console"


def nonsense(head: Head) -> Iterator[str]:
    """Bytes that are not a request, and requests for another protocol."""
    said = len(head.cluster.said(HEAD).splitlines())
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    for sent in (b"nonsense\r\n\r\n", b"\x16\x03\x01" * 30 + b"\r\n\r\n", upgrade) * 50:
        with head.connect() as connection:
            connection.sendall(sent)
            if not connection.recv(100).startswith((b"HTTP/1.1 400", b"HTTP/1.1 401")):
                yield f"{sent[:20]!r} is not refused"
    yield from head.unwell()
    lines = len(head.cluster.said(HEAD).splitlines()) - said
    if lines > MOST_LINES:
        yield f"150 requests cost {lines} lines of the console"


def check_ins(head: Head) -> Iterator[str]:
    """Check-ins that break what shows them, with the token."""
    row = {"node": "intruder", "address": "127.0.0.9", "versions": {}}
    bodies = [json.dumps({**row, **changes}).encode() for changes in BAD_CHECK_INS]
    for content in [*bodies, b"[" * 200_000, b"\xff", b""]:
        answer = httpx.post(
            f"http://{head.address}:{head.port}/v1/check-in",
            headers={"Authorization": f"Bearer {head.token}"},
            content=content,
            trust_env=False,
        )
        if answer.status_code != 400:
            yield f"the check-in … {content[-60:]!r} is answered with {answer.status_code}"
    yield from head.unwell()


def without_token(head: Head) -> Iterator[str]:
    """Questions to the head and to its Ray, without a token."""
    for path in TOKENLESS:
        if (status := head.get(path).status_code) != 401:
            yield f"{path} answers {status} without a token"
    for path in OF_RAY:
        if (status := head.get(path, port=head.dashboard).status_code) not in (401, 403):
            yield f"Ray's {path} answers {status} without a token"
    if set(head.get("/healthz").json()) != {"status"}:
        yield "/healthz tells more than that the head is there"


def ports(head: Head) -> Iterator[str]:
    """Every port that the nodes listen on, and what answers there without a token."""
    for node in (HEAD, WORKER):
        env = head.cluster.environment(node)
        first, last = map(int, env["ROLLCALL_WORKER_PORTS"].split("-"))
        own = {int(text) for name, text in env.items() if name.endswith("_PORT")}
        for port in sorted(listening(head.cluster, node)):
            if not (first <= port <= last or (port in own and node == HEAD)):
                yield f"node {node} listens on {port}, which is not documented"
            elif port - first not in WITHOUT_TOKEN and port != head.port:
                yield from answering(env["ROLLCALL_NODE_ADDRESS"], port)


def listening(cluster: Cluster, node: int) -> set[int]:
    found = set()
    for process in [psutil.Process(cluster.nodes[node].pid), *cluster.processes(node)]:
        try:
            found |= {
                one.laddr.port
                for one in process.net_connections(kind="tcp")
                if one.status == psutil.CONN_LISTEN
            }
        except psutil.Error:
            continue  # it has ended
    return found


def answering(address: str, port: int) -> Iterator[str]:
    try:
        answer = httpx.get(f"http://{address}:{port}/metrics", timeout=2, trust_env=False)
    except httpx.HTTPError:
        return
    if answer.is_success and "# HELP" in answer.text:
        yield f"metrics are given on port {port} without a token"


def directories(head: Head) -> Iterator[str]:
    """Programs and sockets that every user of the machine may replace."""
    for node in (HEAD, WORKER):
        for process in head.cluster.processes(node):
            try:
                words = [process.environ().get(fd_store.VARIABLE, ""), *process.cmdline()[:3]]
            except psutil.Error:
                continue  # it has ended
            for path in map(Path, words):
                if path.is_absolute() and (parent := open_to_others(path)):
                    yield f"{path}: every user may rename what is in {parent}"


def open_to_others(path: Path) -> Path | None:
    """The directory above `path` in which another user may rename what is not theirs."""
    for parent in path.parents:
        mode = parent.stat().st_mode if parent.exists() else stat.S_ISVTX
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return parent
    return None


def short_token(head: Head) -> Iterator[str]:
    """A node that is given a token of one character."""
    for token, expected in ((head.token, 0), ("x", 64)):
        done = head.cluster.ask("plan", "--", "true", ROLLCALL_TOKEN=token, ROLLCALL_JOB="")
        if done.returncode != expected:
            yield f"a token of {len(token)} characters ends with {done.returncode}"


def hang_up(head: Head) -> Iterator[str]:
    """The terminal of the head is closed: the last attack, since it ends the nodes."""
    said = head.cluster.said(HEAD)
    if "Traceback" in said:
        yield f"a traceback on the console: {said[said.index('Traceback') :][:500]}"
    head.process.send_signal(signal.SIGHUP)
    try:
        codes = head.cluster.exit_codes(within=60)
    except AssertionError:  # a worker waits for a head that has told it nothing
        codes = {number: node.exit_code or 0 for number, node in head.cluster.nodes.items()}
    if set(codes.values()) != {143}:
        yield f"SIGHUP to the head ends the nodes with {codes}"
    yield from (f"left after SIGHUP: {line[:100]}" for line in head.cluster.left())


ATTACKS: tuple[Callable[[Head], Iterator[str]], ...] = (
    without_token,
    body,
    headers,
    half_open,
    nonsense,
    check_ins,
    ports,
    directories,
    short_token,
    *local_uid.ATTACKS,
    hang_up,
)


def attacked(root: Path) -> list[str]:
    """What all attacks find on a head with one worker, in this directory."""
    variables = {"env_vars": {local_uid.CANARY_VARIABLE: local_uid.CANARY}}
    job = (f"{local_uid.CANARY_VARIABLE}_OF_DRIVER={local_uid.CANARY}", sys.executable, str(JOB))
    given = {"ROLLCALL_JOB": shlex.join(job), "ROLLCALL_RUNTIME_ENV": json.dumps(variables)}
    cluster = Cluster(root, workers=1, job=(), **given)
    cluster.own[HEAD] = {"ROLLCALL_PREEMPT_FILE": str(local_uid.preempt_file(cluster))}
    try:
        cluster.start(HEAD, WORKER)
        cluster.goes_on(within=90)
        head, found = Head(cluster), []
        for attack in ATTACKS:
            began = time.monotonic()
            findings = list(dict.fromkeys(attack(head)))
            found += [f"{attack.__name__}: {finding}" for finding in findings]
            told = "; ".join(findings) or "nothing"
            print(f"{attack.__name__}: {told} ({time.monotonic() - began:.1f} s)", flush=True)
        found += [f"lost: {event['sentence']}" for event in cluster.events("node-lost")]
        return found
    finally:
        cluster.close()


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and the head would, too
    with tempfile.TemporaryDirectory(prefix="rollcall-attack-", dir="/tmp") as directory:
        found = attacked(Path(directory) / "run")
    print(f"found: {len(found) or 'nothing'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
