"""A head that waits for jobs: real control port, queue and journal; its jobs are scripted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.config.read import read_settings
from entrypoint.job.failures.outcome import Outcome
from entrypoint.job.job_loop import JobLoop
from entrypoint.job.job_queue import JobQueue
from entrypoint.job.recipes import base as recipes
from entrypoint.job.run_context import RunContext
from entrypoint.processes.inbox import Inbox, RayFailedError, StopAsked
from entrypoint.run.journal import Journal
from tests.support.control import TOKEN, Head, answers, node_info
from tests.support.waiting import eventually

Act = Callable[[RunContext], Outcome]
FINISHED = Outcome("finished", ExitCode.FINISHED, "the job has finished")


def finishes(run: RunContext) -> Outcome:
    (run.files.logs / "attempt-1.log").write_text(f"{' '.join(run.settings.job)} was here\n")
    return FINISHED


def fails(run: RunContext) -> Outcome:
    return Outcome("failed", ExitCode.JOB_FAILED, "ValueError: broken")


def until_stopped(run: RunContext) -> Outcome:
    """A job that ends only if it, or the node, is asked to stop."""
    run.inbox.stop.wait(30)
    return Outcome("stopped", ExitCode.STOPPED, "step 7 is saved")


def soon(check: Callable[[], bool]) -> None:
    """Fails if `check` is not true within a time that is long on a busy machine, too."""
    eventually(check, 60)


class JobHead:
    """A `Cluster` whose Ray does nothing. `acts`: what a job does, by its first word."""

    remedy = "restarting Ray on all nodes"

    def __init__(self, root: Path, port: int = 0, **acts: Act) -> None:
        self.root = root
        self.run = RunFiles(root)
        self.head = Head(root, port)
        self.settings = read_settings(
            {
                "ROLLCALL_WAIT_FOR_JOBS": "1",
                "ROLLCALL_RUN_DIR": str(root),
                "ROLLCALL_NODE_NAME": "gn1",
            }
        )
        self.inbox = Inbox()
        self.journal = Journal(self.run.journal, "gn1")
        recipe = recipes.load("command")
        self.context = RunContext(
            self.settings, recipe, self.journal, self.head.control, self.inbox
        )
        registry = self.head.control._registry
        self.queue = JobQueue(self.settings, self.journal, self.inbox, registry)
        self.revived = 0
        self.acts = acts
        self.ran: list[str] = []
        self.outcome: Outcome | None = None
        self.error: Exception | None = None
        """What ended the loop instead of an outcome."""
        self.broken = False
        """Whether Ray does not start again."""
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> JobHead:
        self.head.control.jobs.queue = self.queue  # a waiting client asks the new head at once
        self.head.control.__enter__()
        soon(lambda: answers(self.head.port))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """As SIGTERM ends the node."""
        self.inbox.put(StopAsked("SIGTERM"))
        self._thread.join(10)
        self.head.control.__exit__()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of whoever asks from outside."""
        url = f"http://127.0.0.1:{self.head.port}"
        return {"ROLLCALL_URL": url, "ROLLCALL_TOKEN": TOKEN, "ROLLCALL_RUN_DIR": "/none"}

    def alive(self) -> set[str]:
        return set()

    def ended(self) -> str:
        return ""

    def mark_dead(self, name: str, why: str) -> bool:
        return True

    def revive(self) -> None:
        if self.broken:
            raise RayFailedError("Ray does not start")
        self.revived += 1

    def joins(self, name: str, gpus: int) -> None:
        """A worker joins the roll, which expects two, and stays there."""
        inventory = {"gpus": gpus, "cpus": 8}
        info = replace(node_info(name), inventory=inventory, joined=True)
        assert self.head.control._registry.check_in(info, "").refusal is None
        self.head.control._registry.poll_opened(name)

    def state(self, job: str) -> str:
        return str(json.loads((self.run.jobs / job / "job.json").read_text())["state"])

    def kinds(self, run: RunFiles | None = None) -> list[str]:
        journal = Journal((run or self.run).journal, "gn1")
        return [event["kind"] for event in journal.events()]

    def _serve(self) -> None:
        try:
            self.outcome = JobLoop(self.context, self.queue, self).serve(self._supervise)
        except Exception as error:
            self.error = error

    def _supervise(self, run: RunContext) -> Outcome:
        self.ran.append(run.job)
        return self.acts.get(run.settings.job[0], finishes)(run)


@pytest.fixture
def job_head(tmp_path: Path) -> Iterator[JobHead]:
    with JobHead(tmp_path, sleep=until_stopped) as head:
        yield head
