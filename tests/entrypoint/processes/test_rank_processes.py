"""Where the ranks of a program that knows nothing of Rollcall stand: real processes over gloo."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from contract.files.child_variables import NODE_MARK
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.job import ranks_behind
from entrypoint.processes import rank_processes
from entrypoint.processes.process import Process
from tests.support.entry_points import NEEDS_ENTRY_POINT
from tests.support.waiting import eventually

pytestmark = NEEDS_ENTRY_POINT

RANKS = 3
PROGRAM = """
import os
import sys
import threading
import time
import torch
from torch import distributed

def loops():
    while True:
        pass

place = f"file://{sys.argv[2]}"
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def leave_record():  # as NCCL's watchdog at a timeout: its writer adds the rank to the name
    while not os.path.exists(sys.argv[3]):
        time.sleep(0.05)
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace())
    os._exit(134)

threading.Thread(target=leave_record, daemon=True).start()
distributed.init_process_group("gloo", place, rank=rank, world_size=world)
for _ in range(3):
    distributed.all_reduce(torch.ones(4))
if sys.argv[1] == os.environ["RANK"]:
    print("is behind", flush=True)
    loops()
distributed.all_reduce(torch.ones(4))
"""


FORKS = """
import os
import sys
import time
import torch
from torch import distributed

for rank in range(2):
    if os.fork():
        continue
    distributed.init_process_group("gloo", f"file://{sys.argv[1]}", rank=rank, world_size=2)
    if rank == 0:
        if os.fork() == 0:  # as the workers of a DataLoader, which are no ranks
            open(f"{sys.argv[1]}-no-rank", "w").write(str(os.getpid()))
            time.sleep(300)
        distributed.all_reduce(torch.ones(4))
    time.sleep(300)
print("has forked", flush=True)
time.sleep(300)
"""


@contextmanager
def node(root: Path) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # Ray allows 37 characters
        yield read_settings(
            {
                "ROLLCALL_RUN_DIR": str(root),
                "ROLLCALL_NODE_NAME": f"node-{os.getpid()}",
                "ROLLCALL_RAY_TEMP_DIR": short,
            }
        )


@contextmanager
def ranks(root: Path, behind: int) -> Iterator[tuple[Settings, list[Process]]]:
    """A node with the ranks of a program, of which one does not enter the fourth collective."""
    program = root / "program.py"
    program.write_text(PROGRAM)
    with ExitStack() as stack:
        settings = stack.enter_context(node(root))
        started = []
        for rank in range(RANKS):
            own = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
            env = {**os.environ, NODE_MARK: settings.node_mark, **own}
            files = [str(root / name) for name in ("meeting", "timeout")]
            argv = [sys.executable, str(program), str(behind), *files]
            said = root / f"said-{rank}"
            child = Process(f"rank {rank}", argv, env=env, log_to=said)
            stack.callback(child.stop, grace=0.1)
            started.append(child)
        eventually(lambda: "is behind" in started[behind].tail(), seconds=120)
        yield settings, started


def told(settings: Settings) -> list[ranks_behind.Told]:
    return ranks_behind.behind({"worker-1": rank_processes.of_node(settings)})


def test_the_rank_that_loops_elsewhere_is_named_with_its_line(tmp_path: Path) -> None:
    with ranks(tmp_path, behind=1) as (settings, started):
        eventually(lambda: bool(told(settings)), seconds=60)
        eventually(lambda: "2 others" in told(settings)[0].sentence, seconds=60)
        (found,) = told(settings)
    named = rf"rank 1 on worker-1 \(process {started[1].pid}\) has not entered all-reduce 4 "
    where = r"\(it is at program.py:\d+ in loops\); 2 others wait in all-reduce 4 since "
    assert re.match(named + where, found.sentence)
    assert found.details["processes"] == [started[1].pid]


def test_a_stopped_rank_is_named_by_what_its_launcher_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ranks(tmp_path, behind=2) as (settings, started):
        eventually(
            lambda: "2 others" in "".join(one.sentence for one in told(settings)), seconds=60
        )
        os.kill(started[2].pid, signal.SIGSTOP)
        (found,) = told(settings)
    named = rf"rank 2 on worker-1 \(process {started[2].pid}\) does not say where it is, and has "
    assert re.match(named + "not completed all-reduce 4; 2 others wait", found.sentence)


def test_a_process_that_is_no_rank_is_none(tmp_path: Path) -> None:
    with ranks(tmp_path, behind=0) as (settings, started):
        env = {**os.environ, NODE_MARK: settings.node_mark}
        code = "import torch; print('ready', flush=True); import time; time.sleep(300)"
        other = Process("other", [sys.executable, "-c", code], env=env, log_to=tmp_path / "other")
        try:
            eventually(lambda: "ready" in other.tail(), seconds=60)
            found = {one.pid for one in rank_processes.of_node(settings)}
        finally:
            other.stop(grace=0.1)
    assert found == {one.pid for one in started}


def test_ranks_that_a_timeout_has_ended_are_told_of_by_their_records(tmp_path: Path) -> None:
    with ranks(tmp_path, behind=1) as (settings, started):
        eventually(lambda: "2 others" in "".join(one.sentence for one in told(settings)))
        (tmp_path / "timeout").touch()
        eventually(lambda: all(not child.running for child in started))
        (found,) = told(settings)
    named = rf"rank 1 on worker-1 \(process {started[1].pid}\) has not entered all-reduce 4; "
    assert re.match(named + "2 others wait in all-reduce 4 since ", found.sentence)


def test_a_forked_rank_answers_and_a_fork_of_a_rank_is_none(tmp_path: Path) -> None:
    program, meeting = tmp_path / "forks.py", tmp_path / "meeting"
    program.write_text(FORKS)
    with node(tmp_path) as settings:
        env = {**os.environ, NODE_MARK: settings.node_mark}
        argv = [sys.executable, str(program), str(meeting)]
        parent = Process("forks", argv, env=env, log_to=tmp_path / "said")
        try:
            eventually(lambda: bool(told(settings)), seconds=120)
            (found,) = told(settings)
            answered = {one.pid: one.rank for one in rank_processes.of_node(settings)}
        finally:
            parent.stop(grace=0.1)
    assert found.sentence.startswith("rank 1 on worker-1")
    assert sorted(rank for rank in answered.values() if rank is not None) == [0, 1]
    assert int((tmp_path / "meeting-no-rank").read_text()) not in answered
