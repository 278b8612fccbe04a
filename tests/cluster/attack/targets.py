"""What is attacked: a head that trains, a reward server and a retrieval server, on loopback."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.support.node_cluster import HEAD, JOB, Cluster

ROOT = Path(__file__).parents[3]
WORKER = 1
SERVICE_KEY = "the-key-of-all-services"
HEALTH_OF_HEAD = "/healthz"
MOST_MEMORY = 30 * 2**20
"""Bytes that an attack may cost a server: its memory also changes by itself."""
MOST_DESCRIPTORS = 1200
"""Of a server with connections of strangers, of which it keeps at most 1,024."""
MOST_LINES = 20
"""Lines of a console that an attack of one kind may cost: a head also says steps and progress."""
MOST_CPU_SECONDS = 6.0
"""Of a server for one attack, whatever other programs do."""
SLOWEST_SECONDS = 0.2
"""In which health answers, without those in which other programs have the CPUs."""
VARIABLE = "HARMLESS_NAME"
"""No mask recognises it: it has to be kept from others' eyes by modes alone."""
CANARY = "canary-8d1f0c5e7a"
"""The value of that variable of the job."""
NAMED = "canary-by-name-31c0"
"""The value of options of the job whose names say that it is secret."""


@dataclass(slots=True)
class Server:
    """A server that runs, as an attacker reaches it."""

    name: str
    process: psutil.Process
    address: str
    port: int
    health: str
    path: str
    """What the key opens."""
    said: Callable[[], str]
    """Return all that the server has written to its console."""

    @property
    def memory(self) -> int:
        return int(self.process.memory_info().rss)

    @property
    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def url(self, path: str) -> str:
        return f"http://{self.address}:{self.port}{path}"

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url(path), headers=headers, timeout=5, trust_env=False)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.address, self.port), timeout=5)


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is attacked."""

    cluster: Cluster
    head: Server
    servers: tuple[Server, ...]
    """The head and the servers beside it."""
    directory: Path

    @property
    def token(self) -> str:
        return self.cluster.run.token.read_text().strip()

    @property
    def dashboard(self) -> int:
        return int(self.cluster.environment(HEAD)["ROLLCALL_DASHBOARD_PORT"])

    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def unwell(self) -> Iterator[str]:
        """What a token holder finds wrong with the head."""
        try:
            state = self.head.get("/v1/state", **self.bearer())
            state.raise_for_status()
            if not all(node["present"] for node in state.json()["nodes"]):
                yield "a worker is not present"
            self.head.get("/metrics", **self.bearer()).raise_for_status()
        except (httpx.HTTPError, ValueError) as error:
            yield f"the head does not serve its own: {error!r}"


@dataclass(slots=True)
class Watch:
    """Asks the health of servers all the time, in a process of its own."""

    servers: tuple[Server, ...]
    _popen: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        targets = [
            [one.name, one.process.pid, one.address, one.port, one.health] for one in self.servers
        ]
        self._popen = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ask_health.py")), json.dumps(targets)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._popen.stdout is not None
        self._popen.stdout.readline()  # it has begun

    def end(self) -> dict[str, tuple[float, float]]:
        """Return the seconds of each server's slowest answer, and those without other programs'."""
        out, _ = self._popen.communicate()
        found: dict[str, tuple[float, float]] = json.loads(out)
        return found


class Observed:
    """Servers while they are attacked: their memory, descriptors, consoles, CPUs and health."""

    def __init__(self, servers: tuple[Server, ...]) -> None:
        self.findings: list[str] = []
        self._servers = servers
        self._memory = {one.name: one.memory for one in servers}
        self._lines = {one.name: len(one.said().splitlines()) for one in servers}
        self._cpu = {one.name: one.cpu_seconds for one in servers}
        self._watch = Watch(servers)

    def look(self, what: str) -> None:
        """Note what the attack has cost by now; to be asked while its connections are open."""
        for one in self._servers:
            if (more := one.memory - self._memory[one.name]) > MOST_MEMORY:
                self.findings.append(f"{what}: {one.name} has {more / 2**20:.0f} MiB more")
            if (opened := one.process.num_fds()) > MOST_DESCRIPTORS:
                self.findings.append(f"{what}: {one.name} has {opened} descriptors")

    def end(self) -> None:
        """Note what the attack has cost in all."""
        slowest = self._watch.end()
        for one in self._servers:
            name, cpu = one.name, one.cpu_seconds - self._cpu[one.name]
            took, own = slowest[name]
            print(
                f"    {name}: slowest health {took:.3f} s, {own:.3f} s without other programs; "
                f"{cpu:.2f} s of CPU",
                flush=True,
            )
            if own > SLOWEST_SECONDS:
                self.findings.append(f"health of {name} needs {own:.2f} s")
            if cpu > MOST_CPU_SECONDS:
                self.findings.append(f"{name} needs {cpu:.1f} s of CPU")
            lines = one.said().splitlines()[self._lines[name] :]
            if len(lines) > MOST_LINES:
                self.findings.append(f"{name}: {len(lines)} lines of the console, {lines[0]!r} …")


@contextmanager
def observed(*servers: Server) -> Iterator[Observed]:
    """Yield what has, after the block, all that was found."""
    seen = Observed(servers)
    try:
        yield seen
    finally:
        seen.end()


@contextmanager
def scene(directory: Path) -> Iterator[Scene]:
    """Start a head with a worker and a job, and the servers."""
    variables = {"env_vars": {VARIABLE: CANARY}}
    secrets = ("--creds", NAMED, "-p", NAMED, "--auth", NAMED, f"--password={NAMED}")
    job = (f"{VARIABLE}_OF_DRIVER={CANARY}", sys.executable, str(JOB), *secrets)
    given = {"ROLLCALL_JOB": shlex.join(job), "ROLLCALL_RUNTIME_ENV": json.dumps(variables)}
    cluster = Cluster(directory / "cluster", workers=1, job=(), **given)
    cluster.own[HEAD] = {"ROLLCALL_PREEMPT_FILE": str(preempt_file(cluster))}
    with ExitStack() as stack:
        stack.callback(cluster.close)
        cluster.start(HEAD, WORKER)
        reward, retrieval = stack.enter_context(services(directory))
        cluster.goes_on(within=300)
        env = cluster.environment(HEAD)
        head = Server(
            "head",
            psutil.Process(cluster.nodes[HEAD].pid),
            env["ROLLCALL_HEAD_ADDRESS"],
            int(env["ROLLCALL_CONTROL_PORT"]),
            HEALTH_OF_HEAD,
            "/v1/state",
            lambda: cluster.said(HEAD),
        )
        yield Scene(cluster, head, (head, reward, retrieval), directory)


def preempt_file(cluster: Cluster) -> Path:
    """A file in a directory in which every user may make files."""
    return Path("/tmp") / f"rollcall-notice-{os.getpid()}-{cluster.layout.ports}"


@contextmanager
def services(directory: Path) -> Iterator[list[Server]]:
    """Start a reward server and a retrieval server, on all interfaces."""
    corpus, index = directory / "corpus.jsonl", directory / "index"
    corpus.write_text(json.dumps({"id": "0", "contents": "Aaron\nAaron is a prophet."}) + "\n")
    build = ["-m", "env.prepare", "index", "--corpus", str(corpus), "--out", str(index)]
    subprocess.run([sys.executable, *build], check=True, capture_output=True, timeout=120)
    reward = ("env.server", "--task", "arithmetic")
    retrieval = ("env.retrieval.server", "--index", str(index), "--host", "0.0.0.0")
    programs = (
        ("reward", reward, "/get_reward"),
        ("retrieval", retrieval, "/retrieve"),
    )
    with ExitStack() as stack:
        begun = [
            (*one, *stack.enter_context(started(one[0], one[1], directory))) for one in programs
        ]
        yield [_ready(name, popen, path, log) for name, _, path, popen, log in begun]


@contextmanager
def started(
    name: str, argv: tuple[str, ...], directory: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a server in a process of its own; yield it and its log."""
    log = directory / f"{name}.log"
    path = os.pathsep.join([str(Path.cwd()), str(ROOT)])
    environment = {**os.environ, "ROLLCALL_SERVICE_KEY": SERVICE_KEY, "PYTHONPATH": path}
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [sys.executable, "-m", *argv, "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
        )
    try:
        yield popen, log
    finally:
        popen.kill()
        popen.communicate()


def _ready(name: str, popen: subprocess.Popen[bytes], path: str, log: Path) -> Server:
    """Return the server once its health answers. It says its port itself."""
    until = time.monotonic() + 60
    while time.monotonic() < until and popen.poll() is None:
        if found := re.search(r" port (\d+)", log.read_text()):
            said = _reader(log)
            process = psutil.Process(popen.pid)
            server = Server(name, process, "127.0.0.1", int(found[1]), "/health", path, said)
            with suppress(httpx.HTTPError):
                server.get(server.health).raise_for_status()
                return server
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def _reader(log: Path) -> Callable[[], str]:
    return lambda: log.read_text(errors="replace")
