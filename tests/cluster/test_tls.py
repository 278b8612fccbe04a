"""A cluster with ROLLCALL_TLS=auto: real nodes on loopback, and one that lacks it."""

from __future__ import annotations

import json
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from tests.support.node_cluster import HEAD, Cluster
from tests.support.tiny_job import tiny_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WORKER, LACKS_IT = 1, 2
STEPS = 4
PACED = """
import pathlib, time

def reward_func(queries, prompts, labels):
    while not pathlib.Path({hurry!r}).exists():
        time.sleep(0.1)
    return [float(len(query) % 3) for query in queries]
"""
"""Rewards that keep a run from its first step until a file is there."""


@pytest.fixture
def hurry(tmp_path: Path) -> Path:
    return tmp_path / "hurry"


@pytest.fixture
def cluster(tmp_path: Path, hurry: Path) -> Iterator[Cluster]:
    (tmp_path / "paced.py").write_text(PACED.format(hurry=str(hurry)))
    job = [
        *tiny_job(tmp_path, STEPS, str(tmp_path / "paced.py")),
        *("--actor_num_nodes", "2", "--actor_num_gpus_per_node", "1", "--vllm_num_engines", "1"),
    ]
    cluster = Cluster(
        tmp_path / "run",
        workers=1,
        job=job,
        ROLLCALL_RECIPE="builtin",
        ROLLCALL_TLS="auto",
        ROLLCALL_CHECK_CODE="0",
    )
    try:
        yield cluster
    finally:
        cluster.close()


def speaks_tls(host: str, port: int) -> bool:
    try:
        ssl.get_server_certificate((host, port))
    except ssl.SSLError as error:
        return error.reason == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    return True


@pytest.mark.faults
def test_nodes_with_tls_train_to_the_end_and_one_that_lacks_it_is_refused_by_name(
    cluster: Cluster, hurry: Path
) -> None:
    cluster.own[LACKS_IT] = {"ROLLCALL_TLS": "off"}
    cluster.start(HEAD, WORKER)
    cluster.event("attempt", within=300)
    cluster.start(LACKS_IT)
    refused = cluster.event("refused", within=120)
    assert refused["sentence"].startswith("refused worker-2 at ")
    assert "set the same ROLLCALL_TLS or ROLLCALL_TLS_CA" in refused["sentence"]
    env = cluster.environment(HEAD)
    for port in ("ROLLCALL_CONTROL_PORT", "ROLLCALL_RAY_PORT"):
        assert speaks_tls("127.0.0.2", int(env[port]))
    raylet = int(cluster.environment(WORKER)["ROLLCALL_WORKER_PORTS"].split("-")[0])
    assert speaks_tls("127.0.0.3", raylet)
    for number in (HEAD, WORKER):
        key = cluster.ray_home(number) / "tls" / "key.pem"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    state = cluster.ask("status", "--json")
    assert json.loads(state.stdout)["phase"] == "training", state.stderr
    without = cluster.ask("status", ROLLCALL_TLS="off")
    assert without.returncode == ExitCode.USAGE
    assert "speaks TLS, and this side does not" in without.stderr
    assert cluster.ask("open", "--no-browser").stdout.startswith("https://127.0.0.2:")
    hurry.touch()
    codes = cluster.exit_codes(within=300)
    assert codes == {HEAD: 0, WORKER: 0, LACKS_IT: ExitCode.UNFIT}, cluster.consoles()
    assert cluster.step == STEPS
