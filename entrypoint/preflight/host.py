"""Is this machine, or its container, large enough and whole: memory, limits, clock, process 1."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path

from contract.durations import counted
from entrypoint.config.check_names import CheckName
from entrypoint.machine import infiniband, limits
from entrypoint.machine.limits import GIB, MIB, sized
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict
from entrypoint.processes import process

OBJECT_STORE_SHARE = 0.3
"""Share of the memory that Ray gives its object store, which is in /dev/shm."""
SMALLEST_SHM = 32 * MIB
SMALLEST_SHM_WITH_GPU = 1 * GIB
"""NCCL's own buffers; with the 64 MiB that containers have by default it ends in a bus error."""

FEWEST_FILES, ENOUGH_FILES = 4096, 65536
FEWEST_PROCESSES, ENOUGH_PROCESSES = 1024, 16384
LEAST_LOCKED = 1 * GIB
SMALLEST_MEMORY, ENOUGH_MEMORY = 512 * MIB, 2 * GIB
CLOCK_TOLERANCE_SECONDS = 24 * 3600.0
REAP_SECONDS = 5.0


def shm(context: Context) -> Finding:
    volume = os.statvfs(context.machine.shm)
    memory = limits.memory_limit(context.machine.proc, context.machine.cgroup)
    gpus = context.gpus
    return judge_shm(volume.f_frsize * volume.f_blocks, memory, len(gpus))


def judge_shm(size: int, memory: int, gpus: int) -> Finding:
    """`size` of /dev/shm and `memory`, both in bytes."""
    need = int(memory * OBJECT_STORE_SHARE)
    least = SMALLEST_SHM_WITH_GPU if gpus else SMALLEST_SHM
    evidence = f"/dev/shm has {sized(size)}; Ray asks for {sized(need)}, 30 % of the memory"
    remedy = f"start the container with --shm-size={max(1, round(need / GIB))}g or --ipc=host"
    if size < least:
        return Finding(Verdict.FAIL, f"{evidence}, and the minimum is {sized(least)}", remedy)
    if size < need:
        return Finding(Verdict.WARN, f"{evidence}: Ray's object store goes to disk", remedy)
    return Finding(Verdict.PASS, evidence)


def nofile(context: Context) -> Finding:
    """Engines and ranks on GPUs open tens of thousands of files; a node without any needs few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    evidence = f"open files: {_raisable(soft, hard)}"
    remedy = f"start the container with --ulimit nofile={ENOUGH_FILES}:{ENOUGH_FILES}"
    enough = FEWEST_FILES if context.why_no_gpu else ENOUGH_FILES
    return _judge(_number(hard), FEWEST_FILES, enough, evidence, remedy)


def nproc(context: Context) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    pids = limits.pids_limit(context.machine.proc, context.machine.cgroup)
    evidence = f"processes and threads: {_limit(soft)}"
    evidence += "" if pids is None else f", {pids} in this cgroup"
    least = min(_number(soft), _number(pids))
    remedy = f"start the container with --ulimit nproc={ENOUGH_PROCESSES} --pids-limit=-1"
    return _judge(least, FEWEST_PROCESSES, ENOUGH_PROCESSES, evidence, remedy)


def memlock(context: Context) -> Finding:
    """RDMA pins the memory that it sends from."""
    if not infiniband.ports(context.machine.sys):
        return Finding(Verdict.SKIP, "no InfiniBand or RoCE device on this machine")
    if why := context.why_no_gpu:
        return Finding(Verdict.SKIP, f"{why}, so nothing is sent by RDMA")
    if infiniband.disabled(context.environ):
        return Finding(Verdict.SKIP, "NCCL_IB_DISABLE is set, so nothing is sent by RDMA")
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    evidence = f"memory that may be locked: {_raisable(soft, hard)}"
    remedy = "start the container with --ulimit memlock=-1:-1"
    return _judge(_number(soft), LEAST_LOCKED, float("inf"), evidence, remedy)


def memory(context: Context) -> Finding:
    usable = limits.memory_limit(context.machine.proc, context.machine.cgroup)
    visible = limits.visible_memory()
    evidence = f"{sized(usable)} of memory"
    evidence += "" if usable == visible else f" by the container's limit, of {sized(visible)}"
    remedy = "give the container more memory (--memory), or take it off its limit"
    return _judge(usable, SMALLEST_MEMORY, ENOUGH_MEMORY, evidence, remedy)


def cpus(context: Context) -> Finding:
    usable = limits.cpu_limit(context.machine.proc, context.machine.cgroup)
    visible = os.cpu_count() or 1
    offered = context.settings.num_cpus
    evidence = f"{usable:g} of {counted(visible, 'CPU')} may be used"
    if offered is not None and offered > usable:
        evidence += f", and ROLLCALL_NUM_CPUS offers {offered} to Ray"
        return Finding(Verdict.WARN, evidence, "give more CPUs (--cpus), or offer fewer")
    if usable < 1:
        return Finding(Verdict.WARN, evidence, "give the container at least one CPU (--cpus)")
    return Finding(Verdict.PASS, evidence)


def clock(context: Context) -> Finding:
    return judge_clock(time.time(), Path(__file__).stat().st_mtime)


def judge_clock(now: float, built: float) -> Finding:
    """`now` against the time at which this program was installed, both in seconds of the epoch."""
    today = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < built - CLOCK_TOLERANCE_SECONDS:
        evidence = f"the clock says {today}, which is before this program was installed"
        return Finding(Verdict.FAIL, evidence, "set the host's clock (NTP)")
    return Finding(Verdict.PASS, f"the clock says {today}")


def reaper(context: Context) -> Finding:
    """Make an orphan process and check that the process which inherits it reaps it."""
    with tempfile.TemporaryDirectory() as directory:
        parent = process.Process(
            "orphan",
            ["/bin/sh", "-c", "sleep 0.05 & echo $!"],
            env=os.environ,
            log_to=Path(directory) / "pid",
        )
        parent.wait(10 * REAP_SECONDS)
        orphan = int(parent.tail())
    died_at = None
    while (state := _state(context.machine.proc, orphan)) is not None:
        if died_at is None and state[0] == "Z":  # a busy machine may let it live for seconds
            died_at = time.monotonic()
        if died_at is not None and time.monotonic() > died_at + REAP_SECONDS:
            break
        time.sleep(0.02)
    if state is None:
        return Finding(Verdict.PASS, "orphaned processes are reaped")
    evidence = f"an orphaned process stays in state {state[0]} below process {state[1]}"
    remedy = "start the container with --init, or keep tini as its first process"
    return Finding(Verdict.WARN, evidence, remedy)


def _state(proc: Path, pid: int) -> tuple[str, str] | None:
    """State and parent of a process; None if it is gone."""
    try:
        _, _, tail = (proc / str(pid) / "stat").read_text().rpartition(")")
    except OSError:
        return None
    state, parent, *_ = tail.split()
    return state, parent


def _judge(value: float, least: float, enough: float, evidence: str, remedy: str) -> Finding:
    if value < least:
        return Finding(Verdict.FAIL, evidence, remedy)
    if value < enough:
        return Finding(Verdict.WARN, evidence, remedy)
    return Finding(Verdict.PASS, evidence)


def _number(limit: int | None) -> float:
    return float("inf") if limit in (None, resource.RLIM_INFINITY) else float(limit or 0)


def _raisable(soft: int, hard: int) -> str:
    return _limit(soft) + (f", and may be raised to {_limit(hard)}" if hard != soft else "")


def _limit(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


CHECKS = (
    Check(CheckName.HOST_SHM, "is /dev/shm large enough for Ray's object store?", shm),
    Check(CheckName.HOST_NOFILE, "may enough files be open?", nofile),
    Check(CheckName.HOST_NPROC, "may enough processes and threads run?", nproc),
    Check(CheckName.HOST_MEMLOCK, "may memory be locked for RDMA?", memlock),
    Check(CheckName.HOST_MEMORY, "is there enough memory?", memory),
    Check(CheckName.HOST_CPUS, "may this node use the CPUs that it sees?", cpus),
    Check(CheckName.HOST_CLOCK, "is the clock right?", clock),
    Check(CheckName.HOST_REAPER, "does process 1 reap orphans?", reaper, timeout=15.0),
)
