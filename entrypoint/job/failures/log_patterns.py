"""What the lines of a job's log point to, whatever the framework.

Every pattern is met by a line that a program really printed: see tests/data/failures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from entrypoint.job.failures.classes import FailureClass, Sign
from entrypoint.machine import oom_kills, xid

CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""What a terminal acts on and does not show (ECMA-48): colours, movements, titles."""
SPEAKER = re.compile(
    r"^(?:\((?:[^()]*?\bpid=\d+)?(?:[^()]*?\bip=(?P<ip>[^(),\s]+))?[^()]*\) ?|\[rank\d+\]: ?)+"
)
"""Whose line it is: (PolicyActor pid=7, ip=10.0.0.2), (raylet), [rank3]:. On the head's own lines
Ray leaves the address out."""
NOISE = re.compile(r"^wandb:|^ {4}|^[│╭╰]")
"""A logger's own trouble, and source code that a traceback quotes: it ends no job."""

NO_ERROR = re.compile(
    r"^\s|^wandb:|^[│╭╰]|^(?:\S+:\s*)?(?i:warning|info|debug)\b|\w+Warning: |^\[?[IW]\d{4}"
    r"|^\d{4}-\d\d-\d\d[ T]\S+\s.*?(?:\b(?:INFO|WARNING|DEBUG)\b|\S+\.py:\d+ -- )"
)
"""Of a driver's own lines: a frame of a traceback, a warning, a line of a log, of Ray's for one."""

LONGEST_LINE = 400

PATTERNS: Mapping[FailureClass, tuple[str, ...]] = {
    FailureClass.GPU_OOM: (
        r"(CUDA|HIP) out of memory",
        r"CUDA error: out of memory",
        r"Cuda failure .*out of memory",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"No available memory for the cache blocks",
        r"is less than desired GPU memory utilization",
    ),
    FailureClass.GPU_FAULT: (
        r"uncorrectable ECC error",
        r"CUDA_ERROR_ECC_UNCORRECTABLE",
        r"fallen off the bus",
        r"Unable to determine the device handle for GPU",
    ),
    FailureClass.HOST_OOM: (
        r"ray\.exceptions\.OutOfMemoryError",
        r"due to the node running low on memory",
        r"[Cc]an(not|'t) allocate memory",
        r"^MemoryError\b",
        r"DataLoader worker .*killed by signal: (Killed|Bus error)",
        r"Detected \d+ oom[-_]kill event",
        r"ObjectStoreFullError",
        r"failed to extend /dev/shm|NCCL WARN .*(posix_fallocate failed|shared memory segment)",
    ),
    FailureClass.STORAGE: (
        r"\[Errno (5|28|30|116|122)\]",
        r"\(os error (28|30|116|122)\)",
        r"No space left on device",
        r"Disk quota exceeded",
        r"Stale (NFS )?file handle",
        r"PytorchStreamWriter failed writing",
        r"inline_container\.cc:\d+\] \. unexpected pos",
        r"OutOfDiskError",
    ),
    FailureClass.NODE_LOST: (
        r"NodeDiedError",
        r"because its node has died",
        r"marked dead because the detector has missed too many heartbeats",
        r"LocalRayletDiedError",
        r"ActorUnavailableError",
        r"Owner's node has crashed",
    ),
    FailureClass.COLLECTIVE: (
        r"collective operation timeout",
        r"ProcessGroupNCCL's watchdog got stuck",
        r"NCCL error",
        r"nccl(UnhandledCuda|System|Remote|Internal)Error",
        r"Dist(Backend|Network|Store)Error",
        r"gloo/transport/.*([Tt]imed out|Connection (reset|closed|refused))",
        r"connectFullMesh failed",
        r"rank \S+ \(.*\) does not answer",
    ),
    FailureClass.SERVICE: (
        r"We couldn't connect to 'http",
        r"LocalEntryNotFoundError",
        r"\b(429 Client|50[0234] Server) Error",
    ),
    FailureClass.USAGE: (
        r"^(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|FileNotFoundError):",
        r"error: (unrecognized arguments|the following arguments are required|argument \S+:)",
        r"(GatedRepo|RepositoryNotFound)Error",
        r"is not a valid model identifier",
        r"Could not override '",
        r"ZeRORuntimeException: The checkpoint being loaded used a DP world size",
    ),
    FailureClass.UNKNOWN: (
        r"EngineDeadError",
        r"Engine core initialization failed",
        r"its worker process has died",
        r"WorkerCrashedError",
        r"Fatal Python error",
        r"(CUDA|HIP) error: ",
        r"Memory access fault by GPU",
        r"exits with return code = ",
    ),
}
"""In this order, for a line that fits several. UNKNOWN: it names what died, not why."""

SIGNS = {failure: re.compile("|".join(words)) for failure, words in PATTERNS.items()}


def plain(text: str) -> str:
    """The text without a terminal's codes."""
    return CODES.sub("", text)


def sign(line: str) -> FailureClass | None:
    """What one line of a job's log points to."""
    text, _ = _spoken(line)
    return _sign_of(text)


class Signs:
    """The signs of one attempt, the first of each class: what follows is most often its echo.

    A sign counts while it can still be what ends the job: once two more steps are finished, it
    was not.
    """

    def __init__(
        self,
        step_now: Callable[[], int],
        hint: Callable[[str], FailureClass | None] = lambda line: None,
    ) -> None:
        """`step_now`: finished steps of the run; `hint`: what the framework's own lines mean."""
        self._step_now = step_now
        self._hint = hint
        self._first: dict[FailureClass, Sign] = {}
        self.last_error = ""
        """What the driver itself said last, and is no warning; whoever reads its end reads that."""

    def read(self, line: str) -> None:
        text, address = _spoken(line)
        self.last_error = own_error(line) or self.last_error
        if failure := self._hint(line) or _sign_of(text):
            self._add(Sign(failure, text[:LONGEST_LINE], address, step=self._step_now()))

    def told_by_ray(self, message: str) -> None:
        """Why it could not start the driver, or stay with it. What it lacks for that is its own:
        no sign that the job is used wrongly."""
        for text, address in map(_spoken, message.splitlines()):
            if (failure := _sign_of(text)) and failure is not FailureClass.USAGE:
                self._add(Sign(failure, text[:LONGEST_LINE], address, step=self._step_now()))

    def killed(self, node: str, kills: int) -> str:
        """The kernel has ended so many processes there for want of memory. In a sentence."""
        told = oom_kills.sentence(node, kills)
        self._add(Sign(FailureClass.HOST_OOM, told, node=node, step=self._step_now()))
        return told

    def _add(self, found: Sign) -> None:
        known = self._first.get(found.failure)
        if known is None or not _counts(known, found.step):
            self._first[found.failure] = found

    def at(self, step: int) -> tuple[Sign, ...]:
        """Those that count when the job ends with so many finished steps."""
        return tuple(one for one in self._first.values() if _counts(one, step))


def own_error(line: str) -> str:
    """The line, where it may be the error of the driver itself; empty for any other.

    Ray relays what all processes of the job print, each line with its speaker and in colours.
    """
    # Cut before the search, whose time grows with the square of a word's length.
    text = plain(line[: 10 * LONGEST_LINE]).rstrip()[:LONGEST_LINE]
    other = SPEAKER.match(text) or NO_ERROR.search(text)
    return "" if other else text


def _counts(one: Sign, step: int) -> bool:
    return step - one.step < 2


def _spoken(line: str) -> tuple[str, str | None]:
    """The line without its speaker, and the speaker's address where that is given."""
    text = plain(line).rstrip()
    match = SPEAKER.match(text)
    if match is None:
        return text, None
    return text[match.end() :], match["ip"]


def _sign_of(text: str) -> FailureClass | None:
    if NOISE.search(text):
        return None
    if action := xid.action(text):
        return _of_xid(action)
    for failure, pattern in SIGNS.items():
        if pattern.search(text):
            return failure
    return None


def _of_xid(action: xid.XidAction) -> FailureClass | None:
    if action is xid.XidAction.IGNORE:
        return None
    return FailureClass.GPU_FAULT if action.node_is_unfit else FailureClass.UNKNOWN
