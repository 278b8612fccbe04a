"""What a head tells its workers, and the head that a worker becomes by it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from contract.journal import append_event
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.config.role import decide
from entrypoint.config.settings import Settings, declared
from entrypoint.job import command_identity
from entrypoint.node import heritage
from entrypoint.node.heritage import Heritage
from entrypoint.run.lease import Lease

JOB = ("python", "train.py", "--lr", "0.1")
KEY = "a1b2" * 10
ON_HEAD = {
    "ROLLCALL_HEAD_FAILOVER": "auto",
    "ROLLCALL_HEAD_ADDRESS": "head",
    "ROLLCALL_NODE_NAME": "head",
    "ROLLCALL_NODE_ADDRESS": "10.0.0.1",
    "ROLLCALL_RECIPE": "command",
    "ROLLCALL_NUM_CPUS": "64",
    "ROLLCALL_REWARD_URL": "http://head:5000/get_reward",
    "ROLLCALL_RETRIEVER_URL": "http://elsewhere:8000/retrieve",
    "ROLLCALL_MAX_RESTARTS": "9",
    "EXPECTED_WORKERS": "2",
    "WANDB_API_KEY": KEY,
}


def head(run_dir: Path, **more: str) -> Settings:
    return read_settings({**ON_HEAD, "ROLLCALL_RUN_DIR": str(run_dir), **more}, JOB)


def worker(run_dir: Path, **more: str) -> Settings:
    own = {
        "RAY_WORKER": "1",
        "ROLLCALL_HEAD_ADDRESS": "head",
        "ROLLCALL_NODE_NAME": "worker-1",
        "ROLLCALL_RUN_DIR": str(run_dir),
        "ROLLCALL_NUM_CPUS": "8",
        "ROLLCALL_MAX_RESTARTS": "1",
        "HF_HOME": "/models",
    }
    return read_settings({**own, **more})


def told(settings: Settings) -> Heritage | None:
    role = decide(settings)
    row = heritage.told(settings, role, "10.0.0.1")  # type: ignore[arg-type]
    return Heritage.read(json.loads(json.dumps(row)))


def test_a_worker_leads_the_heads_job_with_the_heads_settings_on_its_own_machine(
    tmp_path: Path,
) -> None:
    first = head(tmp_path)
    inherited = told(first)
    assert inherited is not None
    append_event(RunFiles(tmp_path).journal, "roll", "all", {"present": ["worker-1", "worker-2"]})
    settings, role = heritage.heir(worker(tmp_path), inherited, "10.0.0.2")
    assert command_identity.fingerprint(settings) == command_identity.fingerprint(first)
    assert settings.wandb_api_key is not None
    assert settings.wandb_api_key.reveal() == KEY
    assert (settings.node_name, settings.node_address) == ("worker-1", "10.0.0.2")
    assert (settings.num_cpus, settings.max_restarts) == (8, 9)
    assert settings.environ["HF_HOME"] == "/models"
    assert settings.reward_url == "http://10.0.0.2:5000/get_reward"
    assert settings.retriever_url == "http://elsewhere:8000/retrieve"
    assert (role.expected_workers, role.min_workers, role.known) == (2, 1, ("worker-2",))


def test_the_next_heir_may_go_on_with_one_node_fewer_again(tmp_path: Path) -> None:
    inherited = told(head(tmp_path))
    assert inherited is not None
    settings, role = heritage.heir(worker(tmp_path), inherited, "10.0.0.2")
    again = Heritage.read(heritage.told(settings, role, "10.0.0.2"))
    assert again is not None
    second = worker(tmp_path, ROLLCALL_NODE_NAME="worker-2")
    settings, role = heritage.heir(second, again, "10.0.0.3")
    assert (role.takeovers, role.expected_workers, role.min_workers) == (2, 2, 0)
    assert settings.reward_url == "http://10.0.0.3:5000/get_reward"


def test_the_least_number_of_workers_that_the_user_gives_stays(tmp_path: Path) -> None:
    inherited = told(head(tmp_path, ROLLCALL_MIN_WORKERS="2"))
    assert inherited is not None
    assert heritage.heir(worker(tmp_path), inherited, "10.0.0.2")[1].min_workers == 2


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"ROLLCALL_HEAD_FAILOVER": "off"}, "off"),
        ({"EXPECTED_WORKERS": "0"}, "no workers"),
        ({"ROLLCALL_STORAGE": "head", "ROLLCALL_TOKEN": KEY}, "ROLLCALL_STORAGE=head"),
        ({"ROLLCALL_PREFLIGHT_SKIP": "nodes.storage"}, "nodes.storage"),
        ({"ROLLCALL_PREFLIGHT": "warn"}, "nodes.storage"),
        ({"ROLLCALL_RAY_ADDRESS": "http://ray:8265"}, "ROLLCALL_RAY_ADDRESS"),
    ],
)
def test_where_a_worker_could_not_go_on_it_is_told_nothing_and_the_reason_is_known(
    tmp_path: Path, more: Mapping[str, str], why: str
) -> None:
    own = {"ROLLCALL_NUM_CPUS": ""} if "ROLLCALL_RAY_ADDRESS" in more else {}
    settings = head(tmp_path, **{**own, **more})
    assert told(settings) is None
    assert why in heritage.why_off(settings, decide(settings).expected_workers)  # type: ignore[union-attr]


@pytest.mark.parametrize(("given", "seconds"), [("", 120.0), ("auto", 0.0), ("10m", 600.0)])
def test_a_worker_is_told_how_long_the_head_has_to_come_back(
    tmp_path: Path, given: str, seconds: float
) -> None:
    inherited = told(head(tmp_path, ROLLCALL_HEAD_FAILOVER=given))
    assert inherited is not None
    assert inherited.patience == seconds


def test_a_head_that_comes_back_joins_where_the_lease_says(tmp_path: Path) -> None:
    settings = heritage.as_worker(head(tmp_path), "10.0.0.2")
    role = decide(settings)
    assert (role.name, settings.node_name) == ("worker", "head")
    assert settings.head_address == "10.0.0.2"


@pytest.mark.parametrize(("given", "leads"), [("auto", "10.0.0.2"), ("off", "")])
def test_a_head_that_starts_again_finds_the_worker_that_leads_while_it_lives(
    tmp_path: Path, given: str, leads: str
) -> None:
    settings = head(tmp_path, ROLLCALL_HEAD_FAILOVER=given)
    assert heritage.leader(settings) == ""
    with Lease(RunFiles(tmp_path).leases, address="10.0.0.2", was_worker=True) as own:
        assert heritage.leader(settings) == leads
        assert own._descriptor is not None
        fcntl.flock(own._descriptor, fcntl.LOCK_UN)  # as the kernel does when the holder dies
        assert heritage.leader(settings) == ""


def test_a_node_keeps_what_is_its_own_and_no_such_setting_is_unknown() -> None:
    assert heritage.OF_NODE | set(heritage.OF_JOB) <= declared().keys()


def test_what_another_version_tells_counts_as_nothing() -> None:
    assert Heritage.read(None) is None
    assert Heritage.read({"job": ["x"]}) is None
