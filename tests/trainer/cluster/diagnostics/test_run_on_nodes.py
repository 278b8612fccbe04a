"""A program on each node of Ray, with a stand-in for Ray that gives recorded answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import ray
from ray.exceptions import RayError, TaskUnschedulableError

from trainer.cluster.diagnostics import run_on_nodes

DEAD = TaskUnschedulableError(
    "The node specified via NodeAffinitySchedulingStrategy doesn't exist any more or is "
    "infeasible,\n and soft=False was specified."
)
ONE, TWO, THREE = (f"{number:02}" * 28 for number in (1, 2, 3))
SAID = {"exit_code": 0, "output": '{"clock": 1.5}\n'}


@dataclass
class Ray:
    """Answers in the order in which the nodes are listed; a node that is not listed is silent."""

    answers: dict[str, dict[str, Any] | RayError]
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Node → the options of its task; "all": those of every task."""

    def remote(self, **options: Any) -> Callable[[Any], Ray]:
        self.tasks["all"] = options
        return lambda function: self

    def options(self, **options: Any) -> Task:
        node = options["scheduling_strategy"].node_id
        self.tasks[node] = options
        return Task(node)

    def wait(self, asked: Sequence[str], timeout: float) -> tuple[list[str], list[str]]:
        ready = [node for node in self.answers if node in asked][:1]
        return ready, [node for node in asked if node not in ready]

    def get(self, node: str) -> dict[str, Any]:
        answer = self.answers[node]
        if isinstance(answer, RayError):
            raise answer
        return answer


@dataclass
class Task:
    node: str

    def remote(self, program: list[str], within: float) -> str:
        return self.node


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Ray:
    found = Ray({TWO: SAID, ONE: DEAD})
    for name in ("remote", "wait", "get"):
        monkeypatch.setattr(ray, name, getattr(found, name))
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.3")
    return found


def test_each_node_has_one_answer_also_if_it_is_dead_or_silent(cluster: Ray) -> None:
    found = list(run_on_nodes.answers([ONE, TWO, THREE], ["true"], 180))
    assert [node for node, _ in found] == [TWO, ONE, THREE]
    rows = dict(found)
    assert rows[TWO] == SAID
    assert rows[ONE]["error"].endswith("is infeasible, and soft=False was specified.")
    assert rows[THREE] == {"error": "Ray started nothing there within 180 s"}


def test_a_node_runs_the_program_once_takes_no_cpu_and_shows_it_its_gpus(cluster: Ray) -> None:
    list(run_on_nodes.answers([ONE], ["true"], 180))
    assert cluster.tasks["all"] == {"num_cpus": 0, "max_retries": 0}
    options = cluster.tasks[ONE]
    assert options["scheduling_strategy"].soft is False
    assert options["runtime_env"]["env_vars"] == {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def test_each_answer_is_a_line_of_json(
    cluster: Ray, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"run_on_nodes --nodes {ONE},{TWO} --within 180 -- python -c pass".split()
    monkeypatch.setattr(sys, "argv", words)
    assert run_on_nodes.main() == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["on_node"] for row in rows] == [TWO, ONE]
    assert {**SAID, "on_node": TWO, "at": rows[0]["at"]} == rows[0]


@pytest.mark.parametrize(
    ("program", "within", "row"),
    [
        (
            ["sh", "-c", "echo at $ROLLCALL_NODE_ADDRESS; echo a warning >&2"],
            20,
            {"exit_code": 0, "output": "at 10.0.0.3\n"},
        ),
        (
            ["sh", "-c", "echo a line; echo No module named entrypoint >&2; exit 3"],
            20,
            {"exit_code": 3, "output": "a line\nNo module named entrypoint\n"},
        ),
        (["/no/program"], 20, {"error": "[Errno 2] No such file or directory: '/no/program'"}),
        (["sleep", "9"], 0.1, {"error": "Command '['sleep', '9']' timed out after 0.1 seconds"}),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_the_answer_of_a_program_that_ends_fails_or_hangs(
    program: list[str], within: float, row: dict[str, Any]
) -> None:
    assert run_on_nodes.run(program, within) == row


@pytest.mark.usefixtures("cluster")
def test_the_last_words_of_a_failed_program_are_kept() -> None:
    long = "import sys; print('x' * 9000); sys.exit('the error')"
    row = run_on_nodes.run([sys.executable, "-c", long], 20)
    assert len(row["output"]) == run_on_nodes.LAST_WORDS
    assert row["output"].endswith("the error\n")
