"""What the nodes of an existing Ray say of themselves, as a real job printed it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job.existing_ray_jobs import ExistingRayJobs
from entrypoint.job.ray_jobs import JobInfo, JobRefusedError
from entrypoint.net.wait import GaveUpError, NotYetError
from entrypoint.node.existing_ray.collect_node_reports import collect_node_reports, name_of
from entrypoint.node.ray_state import Alive
from entrypoint.processes.inbox import Inbox, UnfitRayError

AT = 1795466046.75
SAID = """\
{"versions": {"python": "3.11.7", "ray": "2.55.0", "torch": "2.13.0+cpu", "vllm": "", \
"transformers": "5.15.0", "rollcall": "0.1.0", "cuda": "", "rocm": "", "nccl": "", "rccl": "", \
"driver": "", "gpu": "", "image": ""}, "inventory": {"cpus": 2, "memory_bytes": 25276510208, \
"gpus": 0, "mtu": 0, "link_gbits": 0.0}, "warnings": [], "unfit": [], "environment": {}, \
"storage": ".storage-6a73bd9b9fd143bbb65414f9c487400c", "clock": 1795466046.5534859}
"""
BESIDE = """\
2026-11-23 20:34:05,112\tINFO worker.py:1692 -- Using address 10.0.0.2:6379 set in the environment
2026-11-23 20:34:05,121\tINFO worker.py:1833 -- Connecting to existing Ray cluster at address: \
10.0.0.2:6379...
"""
"""What Ray itself prints in a job."""

HEAD = Alive("00" * 28, "10.0.0.2", "10.0.0.2", is_head=True, resources={"CPU": 4.0})
WORKER = Alive(
    *("01" * 28, "gpu node/1", "10.0.0.3"),
    resources={"CPU": 64.0, "GPU": 8.0, "v100": 2.0, "node:10.0.0.3": 1.0, "memory": 1e9},
)


def answer(node: Alive, **row: Any) -> str:
    return json.dumps({"on_node": node.id, **row, "at": AT}) + "\n"


def good(node: Alive, **other: Any) -> str:
    said = json.dumps(json.loads(SAID) | other)
    return answer(node, exit_code=0, output=f"a warning of some library\n{said}\n")


@dataclass
class Jobs:
    """Gives a recorded output for each job."""

    output: str = ""
    status: str = "SUCCEEDED"
    error: Exception | None = None
    argv: list[str] = field(default_factory=list)

    def output_of(
        self, name: str, argv: Sequence[str], timeout: float, stop: threading.Event
    ) -> tuple[JobInfo, str]:
        self.argv = list(argv)
        if self.error is not None:
            raise self.error
        return JobInfo(self.status, "the driver has failed"), BESIDE + self.output


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    environ = {
        "ROLLCALL_RAY_ADDRESS": "http://10.0.0.2:8265",
        "ROLLCALL_RUN_DIR": str(tmp_path),
        "ROLLCALL_NODE_NAME": "supervisor",
        "ROLLCALL_RECIPE": "command",
        "ROLLCALL_PREFLIGHT_SKIP": "host.clock",
        "EXPECTED_WORKERS": "1",
        "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    }
    return read_settings(environ)


def ask(jobs: Jobs, settings: Settings) -> dict[str, Any]:
    return dict(
        collect_node_reports(cast(ExistingRayJobs, jobs), [HEAD, WORKER], settings, Inbox())
    )


def test_each_node_answers_with_what_a_worker_says_at_its_check_in(settings: Settings) -> None:
    worker = ask(Jobs(good(WORKER, warnings=["host.nofile"])), settings)[WORKER.id]
    assert (worker.node, worker.address) == ("gpu-node-1", "10.0.0.3")
    assert worker.versions["ray"] == "2.55.0"
    assert worker.storage == ".storage-6a73bd9b9fd143bbb65414f9c487400c"
    assert (worker.inventory["memory_bytes"], worker.inventory["mtu"]) == (25276510208, 0)
    assert worker.warnings == ["host.nofile"]
    assert not worker.unfit


def test_an_evicted_node_may_come_back_only_after_every_check(settings: Settings) -> None:
    """Each examination is as a new process of a worker, if it left out no check."""
    every = replace(settings, preflight_skip=frozenset())
    first, second = (ask(Jobs(good(WORKER)), every)[WORKER.id].examined for _ in range(2))
    assert first
    assert second not in ("", first)
    assert ask(Jobs(good(WORKER)), settings)[WORKER.id].examined == ""


def test_a_nodes_resources_are_those_that_it_has_offered_to_ray(settings: Settings) -> None:
    worker = ask(Jobs(good(WORKER)), settings)[WORKER.id]
    assert (worker.offer.cpus, worker.offer.gpus) == (64, 8)
    assert worker.offer.resources == {"v100": 2.0}


def test_a_nodes_clock_is_compared_with_the_moment_of_its_answer(settings: Settings) -> None:
    worker = ask(Jobs(good(WORKER, clock=AT + 90)), settings)[WORKER.id]
    assert worker.clock == pytest.approx(time.time() + 90, abs=5)


def test_the_nodes_are_asked_with_the_supervisors_settings_and_no_secret(
    settings: Settings,
) -> None:
    jobs = Jobs(good(HEAD) + good(WORKER))
    ask(jobs, settings)
    assert jobs.argv[jobs.argv.index("--nodes") + 1] == f"{HEAD.id},{WORKER.id}"
    given = json.loads(jobs.argv[-1])
    assert given["ROLLCALL_RUN_DIR"] == str(settings.run_dir)
    assert given["ROLLCALL_PREFLIGHT_SKIP"] == "host.clock"
    assert "WANDB_API_KEY" not in given


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "have not finished: the output of the job that asked it has no line of this node"),
        (
            answer(WORKER, error="Ray started nothing there within 180 s"),
            "its checks have not finished: Ray started nothing",
        ),
        (
            answer(WORKER, error="Command '['python']' timed out after 180 seconds"),
            "its checks have not finished: Command '['python']' timed out after 180 seconds",
        ),
        (
            answer(WORKER, error="[Errno 2] No such file or directory: '/opt/venv/bin/python'"),
            "whose image each node of Ray must have ([Errno 2]",
        ),
        (
            answer(WORKER, exit_code=1, output="python: No module named entrypoint.node\n"),
            "(python: No module named entrypoint.node)",
        ),
        (answer(WORKER, exit_code=0, output=""), "not finished: the program there printed no line"),
        (answer(WORKER, exit_code=0, output="Segmentation fault\n"), "its answer cannot be read"),
        (answer(WORKER, exit_code=0, output="[]\n"), "its answer cannot be read"),
        (good(WORKER, clock="noon"), "its answer cannot be read (clock: "),
    ],
)
def test_a_node_that_cannot_answer_is_unfit_in_words(
    settings: Settings, said: str, reason: str
) -> None:
    found = ask(Jobs(good(HEAD) + said), settings)
    (sentence,) = found[WORKER.id].unfit
    assert reason in sentence
    assert not found[HEAD.id].unfit


@pytest.mark.parametrize(
    "said",
    [
        "/usr/bin/python: Error while finding module specification (ModuleNotFoundError: No module "
        "named 'trainer')\n",
        "/bin/sh: 1: exec: /opt/rollcall/venv/bin/python: not found\n",
        "/bin/sh: 1: cd: can't cd to /workspace\n",
    ],
)
def test_a_head_of_ray_without_the_image_ends_the_start(settings: Settings, said: str) -> None:
    with pytest.raises(UnfitRayError, match=r"its image must be the one that runs here"):
        ask(Jobs(said, "FAILED"), settings)


@pytest.mark.parametrize(
    "jobs",
    [
        Jobs("ConnectionError: could not find the GCS\n", "FAILED"),
        Jobs(error=JobRefusedError("no memory")),
        Jobs(error=GaveUpError("Ray to take the job: not there after 120 s")),
    ],
)
def test_a_job_that_ray_did_not_run_is_tried_again(settings: Settings, jobs: Jobs) -> None:
    with pytest.raises(NotYetError, match=r"Ray's nodes cannot be examined: (Conn|no mem|Ray to)"):
        ask(jobs, settings)


@pytest.mark.parametrize("characters", [12, 40, 300])
def test_a_job_that_was_killed_while_it_wrote_is_tried_again(
    settings: Settings, characters: int
) -> None:
    """The node whose answer is cut off is not at fault."""
    said = good(HEAD) + good(WORKER)[:characters]
    with pytest.raises(NotYetError, match=r"cannot be examined: the answer of a node is cut off"):
        ask(Jobs(said, "FAILED"), settings)


@pytest.mark.parametrize(("told", "missing"), [(HEAD, "gpu-node-1"), (WORKER, "10.0.0.2")])
def test_a_job_that_ended_before_it_told_of_each_node_is_tried_again(
    settings: Settings, told: Alive, missing: str
) -> None:
    """No node is at fault, least of all Ray's head, whose fault would end the start."""
    with pytest.raises(NotYetError, match=f"the job ended without a line of {missing} "):
        ask(Jobs(good(told), "FAILED"), settings)


@pytest.mark.parametrize(
    ("given", "name"),
    [("10.0.0.3", "10.0.0.3"), ("gpu node/1", "gpu-node-1"), ("", "fd00--3"), ("x" * 99, "x" * 64)],
)
def test_a_nodes_name_has_only_characters_that_a_log_has(given: str, name: str) -> None:
    assert name_of(Alive("01", given, "fd00::3")) == name
