"""A node's watch of its own parts, from the kernel's files to the head's journal, once each."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.machine.view import Machine
from entrypoint.node.health_watch import HealthWatch
from entrypoint.preflight.changes import Change, HealthKind
from tests.support import machines
from tests.support.control import Head, node_info
from tests.support.waiting import eventually

PORT = "class/infiniband/mlx5_0/ports/1"


def port(root: Path, downed: int) -> None:
    files: dict[str, str | int] = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "counters/link_downed": downed,
    }
    machines.write(root / "sys" / PORT, files)


def test_a_link_that_goes_down_on_a_worker_is_known_to_the_head_once(
    head: Head, tmp_path: Path
) -> None:
    port(tmp_path, 3)
    machine = Machine(dev=tmp_path / "dev", sys=tmp_path / "sys", proc=tmp_path / "proc")
    watch = HealthWatch(read_settings({}), machine, every=0.05)
    client = head.client()
    client.check_in(node_info("a"), joined=True)
    downed = itertools.count(4)

    def goes_down() -> bool:
        new = tmp_path / "link_downed"
        new.write_text(f"{next(downed)}\n")
        new.replace(tmp_path / "sys" / PORT / "counters" / "link_downed")  # never half written
        return head.control.health.known("a") != []

    with watch.telling(lambda found: client.tell_health("a", found)), watch.watching():
        eventually(goes_down)
    (told,) = head.control.health.take()
    assert told.sentence.startswith("a: mlx5_0:1: the link went down ")
    client.tell_health("a", [told.change])  # as after another join
    assert head.control.health.take() == []
    (row,) = head.control.state()["health"]
    assert (row["node"], row["kind"], row["part"]) == ("a", "port-down", "mlx5_0:1")


@pytest.mark.parametrize(
    ("again", "known"), [("first", 1), ("", 1), ("second", 0)], ids=["same", "unknown", "anew"]
)
def test_what_was_worse_is_over_once_the_node_has_passed_its_checks_anew(
    head: Head, again: str, known: int
) -> None:
    client = head.client()
    node = node_info("a")
    client.check_in(replace(node, examined="first"), joined=True)
    client.tell_health("a", [Change(HealthKind.GPU_LINK, "GPU 1", "17 links are up")])
    client.tell_health("b", [Change(HealthKind.GPU_LINK, "GPU 2", "17 links are up")])
    client.check_in(replace(node, examined=again), joined=False)
    client.check_in(replace(node, examined=again), joined=True)
    assert [one.node for one in head.control.health.known()] == ["a"] * known + ["b"]


def test_a_new_head_hears_what_is_known_already(head: Head) -> None:
    watch = HealthWatch(read_settings({}))
    change = Change(HealthKind.GPU_LINK, "GPU 1", "17 links are up, and 18 were")
    watch._known[change.kind, change.part] = change
    heard: list[list[Change]] = [[], []]
    for told in heard:
        with watch.telling(told.extend):
            watch.send()
            watch.send()
    assert heard == [[change], [change]]


@pytest.mark.parametrize("kind", ["nothing", 3])
def test_a_kind_that_no_head_knows_is_declined(head: Head, kind: object) -> None:
    answer = head.client().ask(
        "POST", "/v1/health", json={"node": "a", "changes": [[kind, "GPU 1", "it is lost"]]}
    )
    assert answer.status_code == 400
    assert "changes.0" in answer.json()["error"]
