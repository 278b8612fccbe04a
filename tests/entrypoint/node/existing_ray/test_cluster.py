"""The roll of a Ray that exists already, with a stand-in for what Ray's dashboard says."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from contract.journal import read_events
from contract.run_dir import RunFiles
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry
from entrypoint.cluster.storage_proof import StorageProof
from entrypoint.net.wait import InterruptedWaitError, NotYetError
from entrypoint.node import ray_state
from entrypoint.node.existing_ray import cluster as existing_ray
from entrypoint.node.existing_ray import ray_roll
from entrypoint.node.existing_ray.cluster import ExistingRay
from entrypoint.node.ray_state import Alive
from entrypoint.processes.inbox import Inbox, RayEnded, UnfitRayError
from entrypoint.run.journal import Journal
from tests.support.hurried import hurried
from tests.support.waiting import eventually

VERSIONS = {"python": "3.11.7", "ray": "2.55.0", "image": "abc"}


def node(number: int, **more: Any) -> Alive:
    resources = {"CPU": 4.0, "GPU": 8.0, "memory": 1e9, f"node:10.0.0.{number}": 1.0, "v100": 2.0}
    values = {"name": f"10.0.0.{number}", "is_head": number == 0, "resources": resources, **more}
    return Alive(f"{number:02}" * 14, address=f"10.0.0.{number}", **values)


@dataclass
class Dashboard:
    """What Ray says, and what its nodes say of themselves."""

    run: RunFiles
    nodes: list[Alive]
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Address → what differs in its answer."""
    silent: bool = False
    examined: list[str] = field(default_factory=list)

    def alive(self, dashboard: str, token: str) -> list[Alive]:
        if self.silent:
            raise NotYetError("no answer")
        return [*self.nodes]

    def examine(self, jobs: Any, nodes: Sequence[Alive], *_: object) -> dict[str, NodeInfo]:
        self.examined += [one.address for one in nodes]
        return {one.id: self.info(one) for one in nodes}

    def info(self, one: Alive) -> NodeInfo:
        values = {"versions": VERSIONS, **self.answers.get(one.address, {})}
        proof = values.pop("storage", None)
        storage = StorageProof(self.run.root).show() if proof is None else proof
        gpus = {"cpus": one.resources["CPU"], "gpus": one.resources["GPU"]}
        return NodeInfo(
            node=one.name,
            address=one.address,
            inventory=gpus,
            resources=one.custom,
            storage=storage,
            **values,
        )


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dashboard:
    found = Dashboard(RunFiles(tmp_path), [node(n) for n in range(3)])
    monkeypatch.setattr(ray_state, "alive_nodes", found.alive)
    monkeypatch.setattr(ray_state, "version", lambda *_: "2.55.0")
    monkeypatch.setattr(ray_state, "installed", lambda _: "2.55.0")
    monkeypatch.setattr(existing_ray, "collect_node_reports", found.examine)
    monkeypatch.setattr(existing_ray, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(ray_roll, "STORAGE_GRACE_SECONDS", 0.1)
    return found


@pytest.fixture
def ray(dashboard: Dashboard) -> Iterator[ExistingRay]:
    environ = {
        "ROLLCALL_RAY_ADDRESS": "http://127.0.0.1:9",
        "ROLLCALL_RUN_DIR": str(dashboard.run.root),
        "ROLLCALL_RECIPE": "command",
        "ROLLCALL_NODE_NAME": "supervisor",
        "EXPECTED_WORKERS": "2",
        "ROLLCALL_NODE_TIMEOUT": "1s",
    }
    settings = hurried(environ)
    me = NodeInfo(node="supervisor", address="10.0.0.9", versions=VERSIONS, storage="life")
    registry = NodeRegistry(me, 2, "life")
    journal = Journal(dashboard.run.journal, "supervisor")
    with ExistingRay(settings, journal, registry, Inbox()) as ray:
        yield ray


def present(ray: ExistingRay) -> Callable[[], tuple[str, ...]]:
    return lambda: ray.registry.roll_state().present


def test_rays_living_nodes_are_the_roll_and_its_head_is_the_heads_offer(
    ray: ExistingRay, dashboard: Dashboard
) -> None:
    ray.wait_ready()
    state = ray.registry.roll_state()
    assert state.complete
    assert state.present == ("10.0.0.1", "10.0.0.2")
    head, *_ = ray.registry.node_infos()
    assert (head.node, head.address, head.offer.gpus) == ("supervisor", "10.0.0.0", 8)
    assert state.node_infos[0].offer.resources == {"v100": 2.0}
    assert len(ray.alive()) == 3
    assert not [*dashboard.run.root.glob(".storage-*")]
    kinds = [event["kind"] for event in read_events(dashboard.run.journal)]
    assert kinds == ["check-in", "check-in"]


def test_a_node_that_dies_is_missing_at_once_and_a_new_one_is_examined_before_it_counts(
    ray: ExistingRay, dashboard: Dashboard
) -> None:
    ray.wait_ready()
    dashboard.nodes.pop()
    eventually(lambda: present(ray)() == ("10.0.0.1",))
    assert len(ray.alive()) == 2
    dashboard.nodes.append(node(7))
    eventually(lambda: present(ray)() == ("10.0.0.1", "10.0.0.7"))
    assert dashboard.examined[-1] == "10.0.0.7"


def test_nobody_waits_for_rays_nodes_to_hear_the_outcome(ray: ExistingRay) -> None:
    ray.wait_ready()
    assert ray.registry.unacknowledged() == set()


def test_a_node_whose_file_the_storage_shows_late_is_on_the_roll_then(
    ray: ExistingRay, dashboard: Dashboard
) -> None:
    name = f".storage-{'0' * 32}"
    dashboard.answers["10.0.0.2"] = {"storage": name}
    ray.wait_ready()
    assert present(ray)() == ("10.0.0.1",)
    (dashboard.run.root / name).touch()
    eventually(lambda: present(ray)() == ("10.0.0.1", "10.0.0.2"))
    assert not (dashboard.run.root / name).exists()


def test_a_stop_while_the_head_of_ray_is_asked_for_its_storage_is_no_fault(
    ray: ExistingRay, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_roll, "STORAGE_GRACE_SECONDS", 60)
    dashboard.answers["10.0.0.0"] = {"storage": ""}
    threading.Timer(0.2, ray.inbox.stop.set).start()
    with pytest.raises(InterruptedWaitError):
        ray.wait_ready()


def test_two_nodes_of_one_name_have_two_names_on_the_roll(
    ray: ExistingRay, dashboard: Dashboard
) -> None:
    dashboard.nodes[2] = replace(dashboard.nodes[2], name="10.0.0.1")
    ray.wait_ready()
    assert present(ray)() == ("10.0.0.1", "10.0.0.1-020202")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"versions": VERSIONS | {"image": "other"}}, "image other here, abc on the head"),
        ({"unfit": ["FAIL gpu.ecc: 3 errors"]}, "is not fit: FAIL gpu.ecc"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_and_is_not_alive(
    ray: ExistingRay, dashboard: Dashboard, answer: dict[str, Any], reason: str
) -> None:
    dashboard.answers["10.0.0.2"] = answer
    ray.wait_ready()
    state = ray.registry.roll_state()
    assert state.present == ("10.0.0.1",)
    assert reason in str(state)
    assert len(ray.alive()) == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"versions": VERSIONS | {"image": "other"}}, "use one image everywhere"),
        ({"storage": ""}, "mount one shared storage"),
        ({"unfit": ["it cannot run Rollcall"]}, "it cannot run Rollcall"),
    ],
)
def test_a_head_of_ray_that_does_not_fit_ends_the_start(
    ray: ExistingRay, dashboard: Dashboard, answer: dict[str, Any], reason: str
) -> None:
    dashboard.answers["10.0.0.0"] = answer
    with pytest.raises(UnfitRayError, match=reason) as error:
        ray.wait_ready()
    assert error.value.exit_code == ExitCode.UNFIT


def test_another_version_of_ray_is_refused_with_both_versions(
    ray: ExistingRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_state, "version", lambda *_: "2.54.0")
    with pytest.raises(UnfitRayError, match=r"is 2\.54\.0, and this image has 2\.55\.0"):
        ray.wait_ready()


def test_a_new_head_of_ray_is_told_as_its_end_and_waited_for(
    ray: ExistingRay, dashboard: Dashboard
) -> None:
    ray.wait_ready()
    dashboard.nodes[0] = replace(dashboard.nodes[0], id="ff" * 28)
    assert isinstance(ray.inbox.take(5), RayEnded)
    assert ray.ended()
    ray.registry.new_incarnation()
    ray.revive()
    assert not ray.ended()
    assert present(ray)() == ("10.0.0.1", "10.0.0.2")
    assert len(ray.alive()) == 3


def test_a_ray_that_is_silent_for_long_has_ended_and_its_roll_stays_until_then(
    ray: ExistingRay, dashboard: Dashboard
) -> None:
    ray.wait_ready()
    dashboard.silent = True
    assert ray.inbox.take(1) is None
    assert len(present(ray)()) == 2
    ended = ray.inbox.take(5)
    assert isinstance(ended, RayEnded)
    assert re.search(r"has not answered for [23](\.\d)? s", ended.why)


def test_an_evicted_node_is_examined_again(ray: ExistingRay, dashboard: Dashboard) -> None:
    ray.wait_ready()
    before = len(dashboard.examined)
    ray.registry.forget("10.0.0.1")
    eventually(lambda: dashboard.examined[before:] == ["10.0.0.1"])
    eventually(lambda: len(present(ray)()) == 2)
