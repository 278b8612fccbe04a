"""Can the run directory, the store and Ray's own directory be written? Is there space in them?"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import time
from pathlib import Path

from contract.background import in_background
from contract.durations import duration
from contract.exit_codes import ExitCode
from contract.files import ray_home
from contract.run_dir import RunFiles
from entrypoint.config.check_names import CheckName
from entrypoint.config.role import Head, Worker
from entrypoint.machine.limits import GIB, MIB, sized
from entrypoint.preflight import file_calls
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict
from entrypoint.run import errors
from entrypoint.run.object_store import Store, StoreError, UnusableStoreError

SMALLEST_RUN_DIR, ENOUGH_RUN_DIR = 256 * MIB, 5 * GIB
SMALLEST_TEMP, ENOUGH_TEMP = 512 * MIB, 5 * GIB
OTHER_RAY_DIR = "set ROLLCALL_RAY_TEMP_DIR to another directory"
SHORTER_RAY_DIR = "set ROLLCALL_RAY_TEMP_DIR to a shorter path"
RAY_FULL = 0.95
"""Share of the disk in use at which Ray refuses to write objects to it."""
CLOCK_SKEW_SECONDS = 5.0
STORE_REMEDY = (
    "check ROLLCALL_STORAGE, and the store's own variables: AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL"
)
STORE_SECONDS = 20.0
"""Limit of the store's answer."""
PROBE_BLOCK, PROBE_BYTES, PROBE_SECONDS = 1 * MIB, 16 * MIB, 0.3
SLOW = 50e6
"""Bytes a second below which saving holds the training up."""
CHECKPOINT = 84e9
"""Bytes: 7e9 parameters with 12 bytes each: FP32 weights and both moments of Adam."""


def run_dir(context: Context) -> Finding:
    """Answers every call of a run, has space, and agrees on the time."""
    path, settings = context.settings.run_dir, context.settings
    unmade = ""
    try:
        own = settings.store or (isinstance(context.role, Worker) and not settings.shares_run_dir)
        if own or (not path.exists() and is_mounted(path)):
            unmade = _make(path)
        if not path.is_dir():
            what = "is not a directory" if path.exists() else f"does not exist{unmade}"
            whose = "all nodes share" if settings.shares_run_dir else "outlives the head"
            remedy = f"mount storage that {whose} at {path}, or set ROLLCALL_RUN_DIR"
            if not path.exists() and not unmade:
                made, mounted = f"`mkdir -p {shlex.quote(str(path))}`", "mount it from outside"
                if settings.variable("run_dir") is None:
                    made = "`mkdir run`, and set ROLLCALL_RUN_DIR=$PWD/run"
                    mounted = f"mount a directory at {path}"
                if isinstance(context.role, Head) and not context.role.expected_workers:
                    remedy = f"{made}; in a container, {mounted}"
                elif settings.expected_workers is None and settings.platform.nodes is None:
                    remedy += f". For this machine alone: set EXPECTED_WORKERS=0, {made}"
            return Finding(Verdict.FAIL, f"{path} {what}", remedy)
    except OSError as error:
        evidence = f"{path} cannot be looked into: {error.strerror}"
        return Finding(Verdict.FAIL, evidence, f"{errors.remedy(error)}, or set ROLLCALL_RUN_DIR")
    began = time.time()
    trials = file_calls.tried(path, file_calls.OF_STORAGE)
    if found := file_calls.judged(path, trials, "set ROLLCALL_RUN_DIR to another directory"):
        return found
    changed = path.stat().st_mtime  # in the storage's time; in ours between `began` and now
    skew = max(began - changed, changed - time.time())
    if skew > CLOCK_SKEW_SECONDS:
        evidence = f"{path} and this node differ by {duration(skew)} in their clocks"
        return Finding(Verdict.WARN, evidence, "set both clocks (NTP)")
    return judge_space(path, SMALLEST_RUN_DIR, ENOUGH_RUN_DIR)


def is_mounted(path: Path) -> bool:
    """Return whether a path that is missing would lie on storage that is mounted.

    A new volume has no run directory yet. On the root file system, a container's own disk for
    example, the volume itself is missing.
    """
    existing = next(parent for parent in path.parents if parent.exists())
    return existing.stat().st_dev != Path("/").stat().st_dev


def _make(path: Path) -> str:
    """Make a directory; return why it cannot be made, or "". Other nodes may do the same."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f" and cannot be made: {error.strerror}"
    return ""


def speed(context: Context) -> Finding:
    """As a checkpoint is written: large blocks, then fsync."""
    path = context.settings.run_dir
    try:
        rate = written(path)
    except OSError:
        return Finding(Verdict.SKIP, f"{path} cannot be written, which host.run_dir tells")
    return judge_speed(path, rate)


def judge_speed(path: Path, rate: float) -> Finding:
    """`rate` in bytes a second."""
    evidence = f"{path} takes {rate / 1e6:.0f} MB/s"
    if rate < SLOW:
        needed = duration(CHECKPOINT / rate)
        evidence += f": a checkpoint of a 7B model ({CHECKPOINT / 1e9:.0f} GB) takes {needed}"
        return Finding(Verdict.WARN, evidence, "use faster storage, or save less often")
    return Finding(Verdict.PASS, evidence)


def written(directory: Path) -> float:
    """Bytes a second, over at most PROBE_BYTES and about PROBE_SECONDS, and the fsync.

    Raises OSError; nothing is left behind.
    """
    block, done = os.urandom(PROBE_BLOCK), 0
    with tempfile.NamedTemporaryFile(prefix=".rollcall-probe-", dir=directory, buffering=0) as file:
        began = time.perf_counter()
        while done < PROBE_BYTES and time.perf_counter() - began < PROBE_SECONDS:
            done += file.write(block)
        os.fsync(file.fileno())
        return done / (time.perf_counter() - began)


def store(context: Context) -> Finding:
    """Write, read and delete a small file in the store of ROLLCALL_STORAGE."""
    url = context.settings.store
    if url is None or isinstance(context.role, Worker):
        return Finding(Verdict.SKIP, "this node uploads no checkpoints")
    try:
        _probe(Store(url))
    except UnusableStoreError as error:
        return Finding(Verdict.FAIL, f"{url} cannot be used: {error}", STORE_REMEDY)
    except StoreError as error:
        evidence = f"{url} does not answer: {error}"
        if RunFiles(context.settings.run_dir).run.exists():
            return Finding(Verdict.WARN, evidence, "the run goes on without it; restore it")
        return Finding(Verdict.FAIL, evidence, STORE_REMEDY)
    return Finding(Verdict.PASS, f"{url} takes a file and returns it")


def _probe(store: Store) -> None:
    """Raises StoreError; before the check's own timeout, which would fail a run that has begun."""
    try:
        in_background("probe", store.probe).result(STORE_SECONDS)
    except TimeoutError:
        raise StoreError(f"no answer for {STORE_SECONDS:.0f} s") from None


def judge_space(path: Path, least: int, enough: int) -> Finding:
    """`least` and `enough` in bytes."""
    volume = os.statvfs(path)
    free = volume.f_bavail * volume.f_frsize
    evidence = f"{path}: {sized(free)} free"
    if volume.f_files and not volume.f_favail:
        return Finding(Verdict.FAIL, f"{evidence}, but no inodes", "delete files there")
    if free < least:
        return Finding(Verdict.FAIL, evidence, f"free at least {sized(least)}")
    if free < enough:
        return Finding(Verdict.WARN, evidence, f"{sized(enough)} is the least for real models")
    return Finding(Verdict.PASS, evidence)


def temp_dir(context: Context) -> Finding:
    """Ray's directory, or its nearest parent that exists, and that of Python's temporary files."""
    path = context.settings.ray_dir
    # os.path.exists, unlike Path.exists, answers for what this user may not look into.
    parents = (path, *path.parents)
    existing = next(parent for parent in parents if os.path.exists(parent))  # noqa: PTH110
    if not existing.is_dir():
        evidence = f"{existing} is not a directory"
        return Finding(Verdict.FAIL, evidence, f"make it one, or {OTHER_RAY_DIR}")
    if (length := len(os.fsencode(path.parent))) > ray_home.LONGEST:
        evidence = f"{path.parent} has {length} bytes, and Ray's sockets there allow "
        return Finding(Verdict.FAIL, f"{evidence}{ray_home.LONGEST}", SHORTER_RAY_DIR)
    try:
        temporary = Path(tempfile.gettempdir())
    except OSError as error:
        evidence = f"no temporary directory can be used: {error.strerror}"
        return Finding(Verdict.FAIL, evidence, "set TMPDIR to a directory that takes files")
    places = {temporary: "set TMPDIR to another directory", existing: OTHER_RAY_DIR}
    for place, elsewhere in places.items():
        trials = file_calls.tried(place, file_calls.OF_TEMP)
        if found := file_calls.judged(place, trials, elsewhere):
            return found
    given = context.environ.get("TMPDIR")
    if given and Path(given).absolute() != temporary.absolute():
        evidence = f"TMPDIR={given} takes no files, and {temporary} is used"
        return Finding(Verdict.WARN, evidence, "correct TMPDIR, or make the directory")
    if os.statvfs(existing).f_flag & os.ST_NOEXEC:
        evidence = (
            f"{existing} starts no programs (noexec): those of a job's working directory fail"
        )
        return Finding(Verdict.WARN, evidence, f"mount it with exec, or {OTHER_RAY_DIR}")
    usage = shutil.disk_usage(existing)
    if usage.used > RAY_FULL * usage.total:
        evidence = f"{existing} is {usage.used / usage.total:.0%} full; Ray stops at {RAY_FULL:.0%}"
        return Finding(Verdict.WARN, evidence, f"free space, or {OTHER_RAY_DIR}")
    return judge_space(existing, SMALLEST_TEMP, ENOUGH_TEMP)


CHECKS = (
    Check(
        CheckName.HOST_RUN_DIR,
        "can the run directory be written?",
        run_dir,
        timeout=20.0,
        exit_code=ExitCode.RUN_DIR,
    ),
    Check(
        CheckName.HOST_RUN_DIR_SPEED,
        "is the run directory fast enough for checkpoints?",
        speed,
        timeout=15.0,
    ),
    Check(
        CheckName.HOST_STORE,
        "can checkpoints be uploaded to the store?",
        store,
        timeout=30.0,
        exit_code=ExitCode.RUN_DIR,
    ),
    Check(CheckName.HOST_TEMP_DIR, "can Ray's own directory be written?", temp_dir, timeout=30.0),
)
