"""Real rank processes of two nodes on loopback, without Ray."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from contract.exit_codes import ExitCode
from tests.support.local_agents import LocalAgents, start
from trainer.cluster.launch import driver
from trainer.cluster.launch.agent import NodeAgent
from trainer.cluster.launch.driver import Ranks
from trainer.cluster.stop import StopRequest

pytestmark = pytest.mark.timeout(120)


def script(root: Path, text: str) -> str:
    path = root / "train.py"
    path.write_text("import os, signal, sys, time\n" + textwrap.dedent(text))
    return path.name


def log(root: Path, name: str) -> str:
    return (root / "logs" / f"attempt-1-{name}.log").read_text()


def until_said(root: Path, name: str, words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in (log(root, name) if (root / "logs").exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Following(threading.Thread):
    """The driver's loop, beside the test."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(daemon=True)
        self._ranks = ranks
        self.code: ExitCode | None = None
        self.start()

    def run(self) -> None:
        self.code = self._ranks.follow()

    def result(self) -> ExitCode | None:
        self.join(60)
        return self.code


@pytest.mark.cluster
def test_the_ranks_of_two_nodes_reduce_over_gloo_and_each_has_a_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = script(
        tmp_path,
        """
        import torch, torch.distributed as d
        d.init_process_group("gloo")
        number = torch.tensor([1.0 + d.get_rank()])
        d.all_reduce(number)
        print("the sum is", number.item(), "of", os.environ["LOCAL_RANK"], sys.argv[1:])
        d.destroy_process_group()  # without it, torch with gloo often aborts at the exit
        """,
    )
    words = ["torchrun", "--nproc-per-node", "2", name, "--lr", "1"]
    assert start(LocalAgents(2), words, tmp_path).follow() is ExitCode.FINISHED
    for rank in range(4):
        said = f"the sum is 10.0 of {rank % 2} ['--lr', '1']\n"
        assert log(tmp_path, f"rank-{rank}").endswith(said)
    printed = capfd.readouterr().out
    assert "\nthe sum is 10.0 of 0" in printed, "rank 0 speaks as the driver"
    assert "\n(rank 1) the sum is" in printed
    assert "\n(rank 3, ip=127.0.0.1) the sum is" in printed


OF_TORCH = (
    "import torch.distributed as d; "
    'd.init_process_group("gloo", rank=0, world_size=1, store=d.HashStore())'
)
"""After it, torch puts `[rank0]: ` before each line of an error that nothing has caught."""


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        ('raise ValueError("no such column")', "ValueError: no such column"),
        ('print("a.py: error: no model"); print("loading"); sys.exit(1)', "a.py: error: no model"),
        (f'{OF_TORCH}; {{}}["lr"]', "KeyError: 'lr'"),
    ],
)
def test_a_rank_that_fails_ends_all_others_and_is_named_with_its_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], fails: str, error: str
) -> None:
    name = script(tmp_path, f'if os.environ["RANK"] == "1":\n    {fails}\ntime.sleep(600)')
    assert start(LocalAgents(2), [name], tmp_path).follow() is ExitCode.JOB_FAILED
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith(f"rank 1 on node-1 ended with exit code 1: {error} (log: ")
    assert last.endswith("attempt-1-rank-1.log)")


ENDS_EARLY = """
    if os.environ["RANK"] == "1":
        os._exit(0)
    while not os.path.exists("go"):
        time.sleep(0.05)
    raise RuntimeError("Connection closed by peer") if {fails} else SystemExit(0)
"""


def test_a_rank_that_ended_with_0_before_another_failed_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "EARLY_SECONDS", 0.5)
    following = Following(
        start(LocalAgents(2), [script(tmp_path, ENDS_EARLY.format(fails=1))], tmp_path)
    )
    early, said = "rank 1 on node-1 ended with exit code 0", ""
    deadline = time.monotonic() + 60
    while f"{early}, as os._exit(0) does, 0.5 s ago, and another rank runs on" not in said:
        assert time.monotonic() < deadline
        said += capfd.readouterr().out
        time.sleep(0.05)
    (tmp_path / "go").touch()
    assert following.result() == ExitCode.JOB_FAILED
    last = (said + capfd.readouterr().out).strip().splitlines()[-1]
    assert last.startswith(
        "rank 0 on node-0 ended with exit code 1: RuntimeError: Connection closed"
    )
    assert last.endswith(f"; before it, {early}")


def test_all_ranks_of_all_nodes_must_have_ended_with_0(tmp_path: Path) -> None:
    following = Following(
        start(LocalAgents(2), [script(tmp_path, ENDS_EARLY.format(fails=0))], tmp_path)
    )
    time.sleep(2)
    assert following.code is None, "one of two has ended"
    (tmp_path / "go").touch()
    assert following.result() == ExitCode.FINISHED


def test_a_rank_that_ignores_sigterm_is_killed_when_another_has_failed(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
        print("ready", flush=True)
        while os.environ["RANK"] == "0":
            time.sleep(0.05)
        while not os.path.exists("go"):
            time.sleep(0.05)
        sys.exit(64)
        """,
    )
    following = Following(start(LocalAgents(2), [name], tmp_path))
    until_said(tmp_path, "rank-0", "ready")
    (tmp_path / "go").touch()
    assert following.result() is ExitCode.USAGE, "the exit code of the rank that failed"
    assert log(tmp_path, "rank-0") == "ready\nno\n"


def test_sigterm_reaches_every_rank_which_may_save(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        def save(*_):
            time.sleep(0.5)
            print("saved", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(600)
        """,
    )
    stop = StopRequest()
    following = Following(start(LocalAgents(2), [name], tmp_path, stop))
    for rank in ("rank-0", "rank-1"):
        until_said(tmp_path, rank, "ready")
    stop.requested = True
    assert following.result() is ExitCode.STOPPED
    assert {log(tmp_path, rank) for rank in ("rank-0", "rank-1")} == {"ready\nsaved\n"}


def test_a_killed_rank_is_named_by_its_signal_and_its_children_are_gone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = script(
        tmp_path,
        """
        import subprocess
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(os.getpid(), child.pid, flush=True)
        time.sleep(600)
        """,
    )
    following = Following(start(LocalAgents(1), [name], tmp_path))
    until_said(tmp_path, "rank-0", "\n")
    rank, child = map(int, log(tmp_path, "rank-0").split())
    os.kill(rank, signal.SIGKILL)
    assert following.result() is ExitCode.JOB_FAILED
    assert "rank 0 on node-0 was ended by SIGKILL" in capfd.readouterr().out
    assert gone(child)


@pytest.mark.parametrize("dies", ["agent", "keeper"])
def test_if_the_agent_or_the_keeper_dies_its_ranks_die(tmp_path: Path, dies: str) -> None:
    name = script(tmp_path, "print(os.getpid(), flush=True)\ntime.sleep(600)")
    agents = LocalAgents(1)
    ranks = start(agents, [name], tmp_path)
    while not ranks.outputs[0][0].offset:
        ranks._look()
        time.sleep(0.05)
    pid = int(log(tmp_path, "rank-0"))
    process = agents.agents[0]._keeper
    assert process is not None
    assert process.stdin is not None
    if dies == "keeper":
        process.kill()
        assert ranks.follow() is ExitCode.JOB_FAILED
    else:
        process.stdin.close()
    assert gone(pid)


def test_a_program_that_is_not_there_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start(LocalAgents(1), ["no-such-program"], tmp_path).follow() is ExitCode.JOB_FAILED
    last = capfd.readouterr().out.splitlines()[-1]
    assert "exit code 127: it cannot start: no-such-program: No such file" in last


def test_secrets_are_masked_in_a_ranks_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "do-not-tell")
    name = script(tmp_path, "print('it is', os.environ['MY_SECRET'])")
    assert start(LocalAgents(1), [name], tmp_path).follow() is ExitCode.FINISHED
    assert log(tmp_path, "rank-0") == "it is ********\n"


def test_what_is_copied_from_a_node_leaves_its_disk(tmp_path: Path) -> None:
    """The file has no name there: nobody could find what fills the disk."""
    name = script(tmp_path, "print(('x' * 999 + '\\n') * 5000)")
    agents = LocalAgents(1)
    assert start(agents, [name], tmp_path).follow() is ExitCode.FINISHED
    assert len(log(tmp_path, "rank-0")) > 5_000_000
    (output,) = agents.agents[0]._outputs
    assert os.fstat(output.fileno()).st_blocks * 512 < 100_000


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


SECRET = "of-this-worker-alone-4711"


class WorkerWithASecret(NodeAgent):
    def start(self, *given: Any) -> None:
        with patch.dict(os.environ, {"THE_API_KEY": SECRET}):
            super().start(*given)


def test_a_secret_that_only_a_worker_has_leaves_it_masked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also if the driver looks while half of the secret is written."""
    name = script(
        tmp_path,
        """
        if os.environ["RANK"] == "1":
            key = os.environ["THE_API_KEY"]
            print("at once:", key, flush=True)
            print(end="in parts: " + key[:9], flush=True)
            time.sleep(1)
            print(key[9:], flush=True)
            print(end="cut off: " + key[:9], flush=True)
        """,
    )
    agents = LocalAgents(2)
    agents.agents[1] = WorkerWithASecret()
    assert start(agents, [name], tmp_path).follow() is ExitCode.FINISHED
    lines = ["at once: ********", "in parts: ********", f"cut off: {SECRET[:9]}"]
    assert log(tmp_path, "rank-1").splitlines() == lines
    assert SECRET not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["loading", " 44%|████▍     | 7/16 [00:05<00:06,  1.4it/s]"], "loading"),
        (["loading", "7it [00:05,  1.4it/s]", "3/16 [00:02<00:09] rollcall: step 3/16"], "loading"),
        (["ValueError: broken", " 44%|████▍     | 7/1"], "ValueError: broken"),
        ([" 44%|████▍     | 7/16 [00:05<00:0"], ""),
    ],
)
def test_the_line_of_a_progress_bar_is_no_last_word_of_a_rank(lines: list[str], said: str) -> None:
    words = driver.LastWords()
    for line in lines:
        words.hear(line)
    assert words.line == said
