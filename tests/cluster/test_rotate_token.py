"""Another token for a real cluster while its job runs, without TLS and with ROLLCALL_TLS=auto.

The head listens at one address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from contract.exit_codes import ExitCode
from entrypoint.cluster.client import ControlClient
from entrypoint.cluster.trust import Trust, WrongTokenError
from entrypoint.commands.demo import PORTS
from entrypoint.config.parsers import Tls
from entrypoint.net.http import bearer
from entrypoint.run import token as run_token
from tests.support.listener import Listener
from tests.support.node_cluster import HEAD, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

OWN, OTHER = "127.0.0.2", "127.0.0.1"
WORKER, LATE = 1, 2
JOINS_SECONDS = 400


class Overheard(Cluster):
    """Somebody listens to its network."""

    def __init__(self, root: Path, **env: str) -> None:
        super().__init__(root, workers=1, **env)
        self.listener: Listener | None = None
        with suppress(PermissionError):
            self.listener = Listener(range(self.layout.ports, self.layout.ports + PORTS))
        self.tokens: list[str] = []


@pytest.fixture(scope="module", params=[pytest.param(Tls.OFF, marks=pytest.mark.faults), Tls.AUTO])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Overheard]:
    root = tmp_path_factory.mktemp(f"rotate-{request.param}")
    cluster = Overheard(root, ROLLCALL_TLS=str(request.param))
    cluster.own[HEAD] = {"ROLLCALL_BIND": OWN}
    with cluster.listener or nullcontext():
        try:
            cluster.start(HEAD, WORKER)
            cluster.goes_on(within=JOINS_SECONDS)
            yield cluster
        finally:
            cluster.close()


def state(cluster: Cluster, token: str, host: str = OWN) -> httpx.Response:
    """What the head answers to whoever takes any certificate."""
    port = cluster.environment(HEAD)["ROLLCALL_CONTROL_PORT"]
    address = f"{trust(cluster).scheme}://{host}:{port}/v1/state"
    return httpx.get(address, headers=bearer(token), trust_env=False, verify=False)


def trust(cluster: Cluster) -> Trust:
    return Trust(Tls(cluster.environment(HEAD)["ROLLCALL_TLS"]))


def client(cluster: Cluster, token: str) -> ControlClient:
    port = int(cluster.environment(HEAD)["ROLLCALL_CONTROL_PORT"])
    return ControlClient(OWN, port, token, trust=trust(cluster))


def told(root: Path) -> str:
    """All texts below a directory, but for the token's own file."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != ".token")
    return "".join(path.read_text(errors="replace") for path in files)


def command_lines() -> str:
    found = psutil.process_iter(["cmdline"])
    return "\n".join(" ".join(one.info["cmdline"] or ()) for one in found)


def test_the_head_is_at_its_address_alone(cluster: Cluster) -> None:
    token = cluster.run.token.read_text()
    assert state(cluster, token).json()["present"] == 1
    with pytest.raises(httpx.ConnectError):
        state(cluster, token, OTHER)
    asked = cluster.ask("status", ROLLCALL_HEAD_ADDRESS="")
    assert asked.returncode == 0, asked.stderr
    assert f"{trust(cluster).scheme}://{OWN}:" in asked.stdout


def test_the_run_goes_on_with_another_token(cluster: Overheard) -> None:
    old = cluster.run.token.read_text()
    known = client(cluster, old)
    assert known.command("GET", "/v1/state")["present"] == 1
    asked = cluster.ask("rotate-token", str(cluster.run.root))
    assert asked.returncode == 0, asked.stderr
    assert "the old one opens nothing; worker-1 has it" in asked.stdout
    new = cluster.run.token.read_text()
    assert new != old
    cluster.tokens = [old, new]
    assert (state(cluster, old).status_code, state(cluster, new).status_code) == (401, 200)
    for key in (old, *run_token.keys(old)):
        for one in (known, client(cluster, key)):
            with pytest.raises(WrongTokenError, match=r"replaced at .* by `rollcall rotate-token`"):
                one.command("GET", "/v1/state")
    for key in (new, *run_token.keys(new)):
        assert client(cluster, key).command("GET", "/v1/state")["present"] == 1
    refused = cluster.ask("status", ROLLCALL_TOKEN=old)
    assert refused.returncode == ExitCode.NOT_ALLOWED
    assert "was replaced at" in refused.stderr
    assert cluster.ask("status").returncode == 0
    cluster.goes_on(within=60)
    assert state(cluster, new).json()["present"] == 1
    assert len(cluster.events("attempt")) == 1
    changed = cluster.events("token")[-1]["details"]
    assert (changed["told"], changed["not_told"]) == (["worker-1"], [])
    for text in (told(cluster.layout.root), command_lines(), asked.stdout + asked.stderr):
        assert new not in text

    cluster.own[LATE] = {"ROLLCALL_TOKEN": old}
    cluster.start(LATE)
    late = cluster.nodes[LATE]
    cluster.until(lambda: not late.running, "end of the late worker", within=120)
    assert late.exit_code == ExitCode.NOT_ALLOWED
    said = cluster.said(LATE)
    assert "was replaced at" in said
    assert "by `rollcall rotate-token`: set ROLLCALL_TOKEN to the head's token" in said


def test_a_worker_that_starts_again_joins_the_ray_of_before(cluster: Cluster) -> None:
    attempts = len(cluster.events("attempt"))
    cluster.kill(WORKER)
    cluster.start(WORKER)
    cluster.resumes(attempts, within=JOINS_SECONDS)
    assert state(cluster, cluster.run.token.read_text()).json()["present"] == 1


@pytest.mark.faults
def test_a_head_that_starts_again_has_the_new_token_for_ray_too(cluster: Cluster) -> None:
    attempts = len(cluster.events("attempt"))
    cluster.kill(HEAD)
    cluster.start(HEAD)
    cluster.resumes(attempts, within=JOINS_SECONDS)
    assert cluster.nodes[WORKER].running
    assert "does not prove" not in cluster.said(WORKER)
    (cluster.run.root / "finish").touch()
    del cluster.nodes[LATE]
    assert set(cluster.exit_codes(within=60).values()) == {0}


def test_who_listens_on_the_network_learns_no_key_if_there_is_tls(cluster: Overheard) -> None:
    """Of the tests above: starts, a rotation, commands and clients with each key.

    A head asks its own dashboard and agents without TLS, which no packet to another machine is.
    """
    if (listener := cluster.listener) is None:
        pytest.skip("only who has CAP_NET_RAW may listen")
    env = cluster.environment(HEAD)
    names = ("ROLLCALL_CONTROL_PORT", "ROLLCALL_RAY_PORT")
    assert all(listener.packets[int(env[name])] > 50 for name in names)
    first = int(env["ROLLCALL_WORKER_PORTS"].partition("-")[0])
    own = {int(env["ROLLCALL_DASHBOARD_PORT"]), first + 3, first + 5}
    keys = {key[-48:] for token in cluster.tokens for key in (token, *run_token.keys(token))}
    assert len(keys) == 8
    heard = {key for key in keys if listener.keys.get(key, set()) - own}
    assert heard == (keys if trust(cluster).mode is Tls.OFF else set())
