"""The use of the cluster's GPUs: from a worker's poll to the state, and over time, thinned."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoint.cluster.gpu_history import MOST_POINTS, POINT_SECONDS, GpuHistory, as_dict
from entrypoint.machine.gpus.use import Condition, GpuUse
from entrypoint.processes.inbox import Message
from tests.support.control import Head, head, node_info
from tests.support.waiting import eventually

__all__ = ["head"]

HOT = Condition(clock=1200, watts=350, degrees=86, held_by=("the power limit",))
IDLE, BUSY = GpuUse(0.0, 1000, 81920), GpuUse(0.9, 41000, 81920, HOT)


def test_a_point_has_the_least_the_mean_and_the_most_over_all_gpus() -> None:
    history = GpuHistory()
    history.add([IDLE, BUSY], at=100)
    history.add([BUSY], at=101)
    history.add([], at=102)
    history.add([GpuUse(None, 41000, 81920)], at=110)
    found = history.rows()
    assert found["steps"] == [100, 110]
    assert found["series"] == {
        **{"busy/least": [0.0, None], "busy/mean": [60.0, None], "busy/most": [90.0, None]},
        **{"memory/least": [1.0, 43.0], "memory/mean": [29.0, 43.0], "memory/most": [43.0, 43.0]},
    }


def test_a_long_history_is_thinned_and_keeps_its_peaks() -> None:
    history = GpuHistory()
    for place in range(3 * MOST_POINTS):
        history.add([BUSY if place == 5 else IDLE], at=place * POINT_SECONDS)
    found = history.rows()
    assert MOST_POINTS // 2 <= len(found["steps"]) <= MOST_POINTS
    assert max(found["series"]["busy/most"]) == 90
    assert found["steps"][-1] >= (3 * MOST_POINTS - 4) * POINT_SECONDS


def test_a_reader_gets_only_what_it_has_not_and_all_of_another_version() -> None:
    history = GpuHistory()
    for at in (100, 105, 110):
        history.add([IDLE], at=at)
    version = history.rows()["version"]
    assert history.rows(105, version)["steps"] == [105, 110]
    assert history.rows(105, "of another head")["steps"] == [100, 105, 110]
    for place in range(MOST_POINTS + 1):
        history.add([IDLE], at=100 + place * POINT_SECONDS)
    assert history.rows()["version"] != version


def test_a_node_without_gpus_has_no_use() -> None:
    assert as_dict([]) == {}
    assert as_dict([IDLE, BUSY]) == {
        **{"busy": [0.0, 45.0, 90.0], "memory": [1.0, 22.0, 43.0], "total": 86},
    }


def state_of(head: Head, node: str) -> dict[str, Any]:
    rows = {row["node"]: row for row in head.get("/v1/state").json()["nodes"]}
    found: dict[str, Any] = rows[node]["gpu_use"]
    return found


def test_a_worker_tells_the_use_of_its_gpus_with_its_sign_of_life(head: Head) -> None:
    client, heard = head.client(), list[Message]()
    incarnation = client.check_in(node_info("gpu-1")).incarnation
    client.watch("gpu-1", incarnation, heard.append, gpus=lambda: [IDLE, BUSY])
    eventually(lambda: state_of(head, "gpu-1") == as_dict([IDLE, BUSY]))
    series = head.get("/v1/gpus").json()["series"]
    assert series["busy/mean"] == [45.0]
    assert head.control.gpu_uses() == {"head": (), "gpu-1": [IDLE, BUSY]}
    head.control._registry.own_gpus([IDLE])
    assert head.get("/v1/state").json()["head_node"]["gpu_use"] == as_dict([IDLE])
    assert head.get("/v1/gpus").json()["series"]["busy/least"][-1] == 0
    client.close()
    eventually(lambda: bool(heard))


WRONG = (
    *("0.5", "0.5,0,0", "2,0,0,[null,null,null,[]]", "0.5,-1,0,[null,null,null,[]]"),
    *("0.5,0,0,[-1,null,null,[]]", "0.5,0,0,[1,1,1]", '0.5,0,0,[1,1,1,"hot"]'),
)


@pytest.mark.parametrize("wrong", ["x", "{}", *(f"[[{one}]]" for one in WRONG), "[" * 3000])
def test_a_use_that_cannot_be_is_refused_with_its_field(head: Head, wrong: str) -> None:
    head.client().check_in(node_info("gpu-1"))
    answer = head.client().ask("GET", "/v1/outcome", params={"node": "gpu-1", "gpus": wrong})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("gpus")
