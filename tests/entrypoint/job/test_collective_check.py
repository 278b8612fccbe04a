"""Before which attempts the nodes are tried together, what the answer means, what follows."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from contract.exit_codes import ExitCode
from contract.files.child_variables import NODE_MARK
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.read import read_settings
from entrypoint.job import collective, collective_check
from entrypoint.job.collective import CollectiveResult
from entrypoint.job.collective_check import CollectiveCheck
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.failures.policy import Replace, Resume, unreachable
from entrypoint.net import wait
from entrypoint.preflight.verdict import Verdict
from entrypoint.processes.inbox import StopAsked
from entrypoint.processes.process import find_marked
from entrypoint.run.failure_classes import FailureClass
from tests.support.waiting import eventually
from tests.support.world import DIED, FINISHED, World, ends

F = FailureClass
H100 = {"gpu": "NVIDIA H100 80GB HBM3"}
GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.3]:5"
HANGS = [sys.executable, "-c", "import time; time.sleep(60)"]


def node_info(name: str, gpus: int = 0, link: float = 0.0, versions: Any = H100) -> NodeInfo:
    inventory = {"gpus": gpus, "link_gbits": link}
    return NodeInfo(node=name, address="127.0.0.9", versions=versions, inventory=inventory)


def row(gbs: float | None = 300.0, *faults: dict[str, Any], nodes: int = 2) -> dict[str, Any]:
    names = ["a", "head", *"bcdef"][:nodes]
    return {"verdict": "", "nodes": names, "gbs": gbs, "faults": list(faults), "seconds": 1.0}


def fault(*nodes: str, silent: bool = False, unstarted: bool = False) -> dict[str, Any]:
    said = f"{' and '.join(nodes)} at fault"
    return {"nodes": nodes, "sentence": said, "silent": silent, "unstarted": unstarted}


@pytest.mark.parametrize(
    ("after", "on_cpus", "on_gpus"),
    [
        (None, False, True),
        (F.COLLECTIVE, True, True),
        (F.NODE_LOST, False, True),
        (F.GPU_FAULT, False, True),
        (F.HANG, False, True),
        (F.USAGE, False, False),
        (F.SERVICE, False, False),
        (F.GPU_OOM, False, False),
        (F.UNKNOWN, False, False),
    ],
)
def test_it_precedes_the_first_attempt_on_gpus_and_those_after_failures_of_the_network(
    after: FailureClass | None, on_cpus: bool, on_gpus: bool
) -> None:
    assert collective.due(after, [node_info("head"), node_info("a")]) is on_cpus
    assert collective.due(after, [node_info("head", 8), node_info("a", 8)]) is on_gpus
    assert not collective.due(after, [node_info("head", 8)])


def test_where_some_nodes_have_gpus_those_are_tried_together() -> None:
    head, *workers = [node_info("head"), node_info("a", 8), node_info("b", 8)]
    assert collective.members([head, *workers]) == workers
    assert collective.members([head, node_info("c")]) == [head, node_info("c")]
    assert not collective.due(None, collective.members([head, workers[0]]))


@pytest.mark.parametrize(
    ("node_infos", "gbs"),
    [
        ([node_info("head", 8, 3200), node_info("a", 8, 3200)], 400.0),
        ([node_info("head", 8, 3200), node_info("a", 8, 400)], 50.0),
        ([node_info("head", 8, 6400), node_info("a", 8, 6400)], 460.0),  # the GPUs' own limit
        ([node_info("head", 8, 3200), node_info("a", 8)], 0.0),
        ([node_info("head", 8, 3200, versions={}), node_info("a", 8, 3200, versions={})], 400.0),
        ([node_info("head", 0, 10), node_info("a", 0, 10)], 0.0),
    ],
)
def test_what_can_be_reached_is_what_the_weakest_nodes_link_and_gpus_allow(
    node_infos: list[NodeInfo], gbs: float
) -> None:
    assert collective.expected(node_infos) == gbs


@pytest.mark.parametrize(
    ("told", "allowed", "verdict", "faulty"),
    [
        (row(300.0), 400.0, Verdict.PASS, ()),
        (row(150.0), 400.0, Verdict.WARN, ()),
        (row(90.0), 400.0, Verdict.FAIL, ()),
        (row(0.001), 0.0, Verdict.PASS, ()),
        (row(None), 0.0, Verdict.FAIL, ()),
        (row(0.2, fault("a"), nodes=4), 0.0, Verdict.FAIL, ("a",)),
        (row(0.2, fault("a", "b"), nodes=4), 0.0, Verdict.WARN, ()),
        (row(0.2, fault("a", "b", silent=True), nodes=4), 0.0, Verdict.FAIL, ()),
    ],
)
def test_the_answer_is_judged_by_what_can_be_reached_and_by_what_pairs_show(
    told: dict[str, Any], allowed: float, verdict: Verdict, faulty: tuple[str, ...]
) -> None:
    answer = collective.judge(told, allowed)
    assert (answer.verdict, answer.faulty) == (verdict, faulty)


def test_the_sentence_has_bandwidth_share_seconds_and_who_is_at_fault() -> None:
    assert collective.judge(row(300.0), 400.0).sentence == (
        "all-reduce over 2 nodes: 300 GB/s, 75% of what their links and GPUs allow, in 1.0 s"
    )
    silent = row(None, fault("a", "b", silent=True))
    assert collective.judge(silent, 0.0).sentence == (
        "all-reduce over 2 nodes: no answer, in 1.0 s; a and b at fault"
    )


def test_nodes_at_fault_are_sent_away_links_tried_again_and_the_budget_ends_it() -> None:
    def answer(sentence: str, *faulty: str) -> CollectiveResult:
        return CollectiveResult(Verdict.FAIL, sentence, faulty)

    on_roll = ["a", "b"]
    (first, second) = unreachable(answer("slow", "a", "head", "b"), on_roll, 1, 3)
    assert isinstance(first, Replace)
    assert isinstance(second, Replace)
    assert (first.worker, second.worker) == ("a", "b")
    (again,) = unreachable(answer("a and head"), on_roll, 3, 3)
    assert isinstance(again, Resume)
    assert again.first_pause
    (stop,) = unreachable(answer("a and head", "a"), on_roll, 4, 3)
    assert isinstance(stop, Outcome)
    assert stop.exit_code is ExitCode.UNFIT
    assert "4 times in a row: a and head" in stop.sentence


def prints(*rows: dict[str, Any]) -> list[str]:
    """A program in the place of the all-reduce's: at its n-th start it prints the n-th row."""
    program = (
        "import os, sys; n = os.path.getsize('{0}') if os.path.exists('{0}') else 0; "
        "open('{0}', 'a').write('x'); print({1!r}[n])"
    )
    return [sys.executable, "-c", program.format("count", [json.dumps(one) for one in rows])]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A head with a worker `a`, whose first attempt loses its collective at step 3."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wait, "backoff", lambda failures, **_: 0.01 * failures)
    breaks = ends(DIED, at_step=3, says=[GLOO])
    world = World(tmp_path, breaks, ends(FINISHED), workers=1, minimum=1)
    world.later(0.05, lambda: world.check_in("a", "127.0.0.3"))
    return world


def examined_by(world: World, *rows: dict[str, Any], **env: str) -> CollectiveCheck:
    settings = read_settings({**world.settings.environ, **env}, ["true"])
    world.context.settings = settings
    check = CollectiveCheck(settings, "127.0.0.2:1", os.environ, prints(*rows))
    world.rendezvous.collective = check
    return check


def test_after_a_broken_collective_the_nodes_are_tried_before_the_next_attempt(
    world: World,
) -> None:
    examined_by(world, row(0.5))
    assert world.lives().name == "finished"
    assert world.kinds() == (
        ["roll", "attempt", "failure", "decision", "roll", "collective", "attempt"]
    )
    assert world.sentences("collective") == ["all-reduce over 2 nodes: 0.5 GB/s, in 1.0 s"]


def test_a_worker_at_fault_is_sent_away_and_tried_again_once_it_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined_by(world, row(0.5, fault("a")), row(0.5))
    evict = world.control.evict

    def evict_and_come_back(worker: str, why: str) -> None:
        evict(worker, why)
        world.later(0.1, lambda: world.check_in("a", "127.0.0.4"))

    monkeypatch.setattr(world.control, "evict", evict_and_come_back)
    assert world.lives().name == "finished"
    assert world.kinds()[4:] == ["roll", "collective", "decision", "roll", "collective", "attempt"]
    assert "a does not reach the others" in world.sentences("decision")[1]


@pytest.mark.parametrize("node", ["a", "head"])
def test_a_node_whose_ray_starts_no_process_has_its_ray_started_anew_and_none_is_sent_away(
    world: World, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined_by(world, row(None, fault(node, silent=True, unstarted=True)), row(0.5))
    back: list[str] = []

    def joins_again() -> None:
        said = world.control.state()["nodes"]
        back.append(f"{said}")
        world.check_in("a", "127.0.0.3")

    world.when_revived = joins_again
    renew = world.control.renew

    def renew_and_join_again(worker: str) -> None:
        renew(worker)
        world.later(0.1, joins_again)

    monkeypatch.setattr(world.control, "renew", renew_and_join_again)
    assert world.lives().name == "finished"
    assert back == ["[]"]
    assert world.revived == (node == "head")
    decisions = list(world.journal.events("decision"))
    assert decisions[1]["sentence"] == f"Ray on {node} starts no process: restarting it there"
    assert [one["details"]["answer"] for one in decisions] == ["resume", "renew"]


def test_a_link_that_stays_silent_ends_the_run_as_unfit_and_names_it(world: World) -> None:
    silent = row(None, fault("a", "head", silent=True))
    examined_by(world, silent, silent, silent, ROLLCALL_MAX_RESTARTS="2")
    outcome = world.lives()
    assert outcome.exit_code is ExitCode.UNFIT
    assert "a and head at fault" in outcome.sentence
    assert world.kinds().count("attempt") == 1


@pytest.mark.parametrize(
    ("env", "examinations"),
    [
        ({"ROLLCALL_PREFLIGHT": "warn"}, 1),
        ({"ROLLCALL_PREFLIGHT": "off"}, 0),
        ({"ROLLCALL_PREFLIGHT_SKIP": "nodes.collective"}, 0),
    ],
)
def test_where_a_failed_check_is_not_to_stop_a_node_the_run_goes_on(
    world: World, env: dict[str, str], examinations: int
) -> None:
    examined_by(world, row(None, fault("a")), **env)
    assert world.lives().name == "finished"
    assert world.kinds().count("collective") == examinations
    assert "decision" in world.kinds()
    assert world.control.roll().complete


def test_one_that_hangs_breaks_or_does_not_start_tells_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective_check, "LONGEST_SECONDS", 0.3)
    environ = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_NODE_NAME": f"hanging-{os.getpid()}"}
    settings = read_settings(environ)
    node_infos = [node_info("head", 8), node_info("a", 8)]
    for program in (HANGS, ["false"], ["/no/such/program"]):
        check = CollectiveCheck(settings, "127.0.0.2:1", os.environ, program)
        check._begin(node_infos)
        assert check.ask(node_infos, threading.Event()) is None
    assert find_marked(settings.node_mark) == []
    assert os.environ.get(NODE_MARK) != settings.node_mark


def test_on_gpus_it_begins_with_the_roll_call_and_its_answer_counts_for_that_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_NODE_NAME": f"gpus-{os.getpid()}"}
    settings = read_settings(own)
    node_infos, stop = [node_info("head", 8, 3200), node_info("a", 8, 3200)], threading.Event()
    check = CollectiveCheck(settings, "127.0.0.2:1", os.environ, prints(row(300.0), row(1.0)))
    check.warm_up(node_infos[0], 1)
    eventually(Path("count").exists)  # it may end before it is looked for
    answer = check.ask(node_infos, stop)
    assert answer is not None
    assert answer.verdict is Verdict.PASS
    assert Path("count").read_text() == "x"
    assert check.ask(node_infos, stop) is None  # once is enough, until an attempt fails
    check.ended(F.NODE_LOST)
    again = check.ask(node_infos, stop)
    assert again is not None
    assert again.verdict is Verdict.FAIL


def test_an_answer_of_other_nodes_than_those_on_the_roll_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = read_settings({"ROLLCALL_RUN_DIR": str(tmp_path)})
    node_infos = [node_info("head", 8), node_info("a", 8)]
    rows = (row(1.0, nodes=3), row(2.0))
    check = CollectiveCheck(settings, "127.0.0.2:1", os.environ, prints(*rows))
    check.warm_up(node_infos[0], 2)
    answer = check.ask(node_infos, threading.Event())
    assert answer is not None
    assert "over 2 nodes: 2 GB/s" in answer.sentence


def test_a_stop_during_the_check_ends_it_at_once(world: World) -> None:
    world.rendezvous.collective.argv = HANGS
    world.later(0.8, lambda: world.inbox.put(StopAsked("SIGTERM")))
    assert world.lives().exit_code is ExitCode.STOPPED
    assert find_marked(world.settings.node_mark) == []
