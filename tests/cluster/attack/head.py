"""What those try on the head who reach its Ray, read its page, or have the token of a node."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx
import psutil

from contract.files import fd_store
from contract.run_dir import RunFiles
from entrypoint.run import token as run_token
from tests.cluster.attack.attacks import Attack, Boundary, by
from tests.cluster.attack.targets import NAMED, WORKER, Scene, observed
from tests.support.node_cluster import HEAD, Cluster

BODY = 100_000_000
"""Bytes."""
TOKENLESS = ("/", "/metrics", "/v1/state", "/v1/outcome?node=worker-1", "/v1/events")
OF_RAY = ("/api/jobs/", "/api/v0/nodes", "/api/cluster_status", "/nodes?view=summary", "/logs/")
OF_GCS = (
    *("NodeInfoGcsService/GetAllNodeInfo", "JobInfoGcsService/GetAllJobInfo"),
    *("InternalKVGcsService/InternalKVKeys", "ActorInfoGcsService/GetAllActorInfo"),
)
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
LONG = 3_000_000
"""Characters of a sentence that another program writes into the journal."""
MOST_EVENT = 200_000
"""Characters."""


@by(Boundary.NETWORK)
def without_token(scene: Scene) -> Iterator[str]:
    """Questions to the head and to its Ray, without a token."""
    for path in TOKENLESS:
        with httpx.stream("GET", scene.head.url(path), timeout=5, trust_env=False) as answer:
            if answer.status_code != 401:  # its body may have no end
                yield f"{path} answers {answer.status_code} without a token"
    for path in OF_RAY:
        if (status := rays(scene, path)) not in (401, 403):
            yield f"Ray's {path} answers {status} without a token"


def rays(scene: Scene, path: str, **headers: str) -> int:
    url = f"http://{scene.head.address}:{scene.dashboard}{path}"
    return httpx.get(url, headers=headers, timeout=5, trust_env=False).status_code


@by(Boundary.NETWORK)
def calls_of_ray(scene: Scene) -> Iterator[str]:
    """gRPC calls to Ray's central store, without a token and with a wrong one."""
    port = scene.cluster.environment(HEAD)["ROLLCALL_RAY_PORT"]
    with grpc.insecure_channel(f"{scene.head.address}:{port}") as channel:
        for call in OF_GCS:
            for metadata in ((), (("authorization", "Bearer wrong-wrong-wrong-wrong"),)):
                try:
                    channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=5, metadata=metadata)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                        yield f"{call}: {error.code().name}"
                else:
                    yield f"{call} answers with {len(metadata)} wrong keys"


@by(Boundary.NETWORK)
def ports(scene: Scene) -> Iterator[str]:
    """Every port that the nodes listen on, and what answers there without a token."""
    for node in (HEAD, WORKER):
        env = scene.cluster.environment(node)
        first, last = map(int, env["ROLLCALL_WORKER_PORTS"].split("-"))
        own = {int(text) for name, text in env.items() if name.endswith("_PORT")}
        for port in sorted(listening(scene.cluster, node)):
            if not (first <= port <= last or (port in own and node == HEAD)):
                yield f"node {node} listens on {port}, which is not documented"
            elif port - first not in WITHOUT_TOKEN and port != scene.head.port:
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


@by(Boundary.NODE)
def body(scene: Scene) -> Iterator[str]:
    """A check-in without an end, with the token."""
    start = f"POST /v1/check-in HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {scene.token}\r\n"
    sent = 0
    with observed(scene.head) as seen, scene.head.connect() as connection:
        connection.sendall(f"{start}Content-Length: {BODY}\r\n\r\n".encode())
        try:
            while sent < BODY:
                sent += connection.send(b"[" * 100_000)
        except OSError:
            pass
        seen.look(f"a body of {sent} bytes")
    yield from seen.findings


@by(Boundary.NODE)
def check_ins(scene: Scene) -> Iterator[str]:
    """Check-ins that break what shows them, with the token."""
    row = {"node": "intruder", "address": "127.0.0.9", "versions": {}}
    bodies = [json.dumps({**row, **changes}).encode() for changes in BAD_CHECK_INS]
    for content in [*bodies, b"[" * 200_000, b"\xff", b""]:
        url, key = scene.head.url("/v1/check-in"), scene.bearer()
        answer = httpx.post(url, headers=key, content=content, trust_env=False)
        if answer.status_code != 400:
            yield f"the check-in … {content[-60:]!r} is answered with {answer.status_code}"
    yield from scene.unwell()


@by(Boundary.READER)
def weaker_keys(scene: Scene) -> Iterator[str]:
    """What the keys of duties open beyond their duty: a stop, jobs, packages, check-ins, Ray."""
    package = f"/v1/packages/_ray_pkg_{'0' * 64}.zip"
    beyond = {
        run_token.read_only(scene.token): (("POST", "/v1/stop"), ("POST", "/v1/jobs/a/stop")),
        run_token.for_page(scene.token): (("POST", "/v1/jobs"), ("PUT", package)),
        run_token.for_submit(scene.token): (("POST", "/v1/check-in"), ("GET", "/v1/outcome")),
    }
    keys = list(beyond)
    for at, key in enumerate(keys):
        bearer = {"Authorization": f"Bearer {key}"}
        for method, path in (more for stronger in keys[at:] for more in beyond[stronger]):
            url = scene.head.url(path)
            answer = httpx.request(method, url, headers=bearer, content=b"{}", trust_env=False)
            if answer.status_code not in (401, 403):
                yield f"{method} {path} answers {answer.status_code} to {key.rpartition('-')[0]}"
        for path in OF_RAY:
            if (status := rays(scene, path, **bearer)) not in (401, 403):
                yield f"Ray's {path} answers {status} to {key.rpartition('-')[0]}"


def reader(scene: Scene) -> dict[str, str]:
    return {"Authorization": f"Bearer {run_token.read_only(scene.token)}"}


@by(Boundary.READER)
def secrets_of_the_job(scene: Scene) -> Iterator[str]:
    """Values of the job's options with a secret's name, wherever the read-only key leads."""
    key = reader(scene)
    logs = scene.head.get("/v1/logs", **key).json()["logs"]
    names = [log["name"] if isinstance(log, dict) else log for log in logs]
    for path in ("/v1/state", "/metrics", "/v1/runs", *(f"/v1/logs/{name}" for name in names)):
        text = scene.head.get(path, **key).text
        yield from (f"{path} has {what}" for what in told(scene, text))
    for file in sorted(scene.cluster.run.root.rglob("*")):
        if file.is_file() and file != scene.cluster.run.token:
            text = file.read_bytes().decode(errors="replace")
            yield from (f"{file.name} has {what}" for what in told(scene, text))
    yield from (f"the console has {what}" for what in told(scene, scene.head.said()))


def told(scene: Scene, text: str) -> Iterator[str]:
    if scene.token in text:
        yield "the token"
    if NAMED in text:
        yield "a secret option's value"


@by(Boundary.LOG_LINE)
def page(scene: Scene) -> Iterator[str]:
    """Scripts that a log line or a node's name could bring: what the page lets run."""
    answer = scene.head.get("/", **reader(scene), Accept="text/html")
    policy = answer.headers.get("content-security-policy", "")
    if "default-src 'none'" not in policy or "'unsafe-" in policy:
        yield f"the page's policy is {policy[:100]!r}"
    if answer.headers.get("referrer-policy") != "no-referrer":
        yield "the page tells other sites its address"


@by(Boundary.STORAGE)
def linked_files(scene: Scene) -> Iterator[str]:
    """Logs and samples that are links to the run's token, read with the read-only key."""
    key, run = reader(scene), scene.cluster.run
    for name in ("soft", "hard"):
        log = run.logs / f"{name}.log"
        if name == "soft":
            log.symlink_to("../.token")
        else:
            log.hardlink_to(run.token)
        answer = scene.head.get(f"/v1/logs/{name}", **key)
        if scene.token in answer.text:
            yield f"/v1/logs/{name} shows the token to the read-only key"
        elif answer.status_code != 404:
            yield f"/v1/logs/{name} answers {answer.status_code}"
        log.unlink()
    real = scene.directory / "real"
    real.write_text(json.dumps({"prompt": "nobody"}) + "\n")
    run.samples.symlink_to(real)
    if "nobody" in scene.head.get("/v1/samples", **key).text:
        yield "/v1/samples follows a link"
    run.samples.unlink()


@by(Boundary.STORAGE)
def odd_files(scene: Scene) -> Iterator[str]:
    """Names that are not UTF-8, rows of another form, and a sentence of 3 MB."""
    key, run = scene.bearer(), scene.cluster.run
    odd = run.logs / "\udcff\udcfe.log"
    odd.write_text("x")
    run.samples.write_text(json.dumps({"step": 1, "prompt": "p" * 100_000, "turns": 7}) + "\n")
    paths = ("/v1/logs", "/v1/logs/%ff%fe", "/v1/logs/a%00b", f"/v1/logs/{'a' * 3000}")
    for path in (*paths, "/v1/samples"):
        if (status := scene.head.get(path, **key).status_code) >= 500:
            yield f"{path[:40]} answers {status} to odd files"
    (row,) = scene.head.get("/v1/samples", **key).json()["samples"]
    if not isinstance(row["turns"], list):
        yield "a row of samples reaches the page as another program wrote it"
    odd.unlink()
    run.samples.unlink()
    yield from long_sentence(scene, run)


def long_sentence(scene: Scene, run: RunFiles) -> Iterator[str]:
    last = json.loads(run.journal.read_text().splitlines()[-1])
    last.pop("crc", None)
    with run.journal.open("a") as journal:
        journal.write(json.dumps({**last, "kind": "note", "sentence": "s" * LONG}) + "\n")
    url, read = scene.head.url("/v1/events?last=50"), 0
    with httpx.stream("GET", url, headers=scene.bearer(), timeout=5, trust_env=False) as answer:
        for line in answer.iter_lines():
            read = max(read, len(line))
            if "sss" in line:
                break
    if read > MOST_EVENT:
        yield f"an event of {read} characters reaches browsers"


@by(Boundary.OTHER_USER)
def directories(scene: Scene) -> Iterator[str]:
    """Programs and sockets that every user of the machine may replace."""
    for node in (HEAD, WORKER):
        for process in scene.cluster.processes(node):
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


ATTACKS: tuple[Attack[Scene], ...] = (
    without_token,
    calls_of_ray,
    ports,
    body,
    check_ins,
    weaker_keys,
    page,
    linked_files,
    odd_files,
    directories,
    secrets_of_the_job,
)
