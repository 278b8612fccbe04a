"""Patterns that map a line of a job's log to a failure class, for any framework.

For every pattern, tests/data/failures has a line that a program really printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from contract.launch.log_lines import KILLED_RANK
from entrypoint.job.failures.classes import Evidence, FailureClass
from entrypoint.job.failures.error_lines import ErrorLines
from entrypoint.machine import oom_kills, xid

CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""Terminal control sequences (ECMA-48): colours, cursor movements, titles."""
SPEAKER = re.compile(
    r"^(?:\((?:[^()]*?\bpid=\d+)?(?:[^()]*?\bip=(?P<ip>[^(),\s]+))?[^()]*\) ?"
    r"|\[(?:rank|default)\d+\]: ?)+"
)
"""Prefix that names the process of a line: (PolicyActor pid=7, ip=10.0.0.2), (raylet), [rank3]:,
[default0]: of torch's launcher.
Ray omits the address if the process runs on the head."""
NOISE = re.compile(r"^wandb:|^ {4}|^[│╭╰]")
"""Lines that never end a job: a logger's own trouble, source code quoted in a traceback."""

NO_ERROR = re.compile(
    r"^\s|^wandb:|^[│╭╰]|^(?:\S+:\s*)?(?i:warning|info|debug)\b|\w+Warning: |^\[?[IW]\d{4}"
    r"|^\d{4}-\d\d-\d\d[ T]\S+\s.*?(?:\b(?:INFO|WARNING|DEBUG)\b|\S+\.py:\d+ -- )"
)
"""Lines of the driver that are not errors: frames of a traceback, warnings, log lines."""

NOT_OWN = ("wandb:", "Running entrypoint for job ")
"""Beginnings of lines that a tracker prints, or Ray before the driver's first line."""
LONGEST_LINE = 400
STALE_STEPS = 2
"""Steps after which an error has not ended the job."""

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
        KILLED_RANK.pattern,
    ),
}
"""If a line fits several classes, the first counts. UNKNOWN: it names what died, not why."""

COMPILED = {failure: re.compile("|".join(words)) for failure, words in PATTERNS.items()}


def plain(text: str) -> str:
    """Return the text without terminal control sequences."""
    return CODES.sub("", text)


class EvidenceLog:
    """The evidence of one attempt. It keeps the first line of each class; later ones are echoes.

    Evidence expires when two more steps have finished: then it did not end the job.
    """

    def __init__(
        self,
        step_now: Callable[[], int],
        hint: Callable[[str], FailureClass | None] = lambda line: None,
    ) -> None:
        """`step_now`: returns the finished steps; `hint`: classifies the framework's own lines."""
        self._step_now = step_now
        self._hint = hint
        self._first: dict[FailureClass, Evidence] = {}
        self.last_error = ""
        """The driver's last own line that is not a warning."""
        self._lines = ErrorLines()
        self._error_step = 0
        """When the driver's newest error was printed."""

    def read(self, line: str) -> None:
        text, address = spoken(line)
        is_new = self._read_own(own_line(line))
        failure = self._hint(line) or _failure_in(text)
        if not is_new and not failure:
            return
        step = self._step_now()
        if is_new:
            self._error_step = step
        if failure:
            self._add(Evidence(failure, text[:LONGEST_LINE], address, step=step))

    def _read_own(self, line: str) -> bool:
        """Read a line of the driver itself; return whether it is its newest error."""
        mild, before = NO_ERROR.search(line) is not None, self._lines.newest
        self._lines.read(line, mild=mild)
        newest = self._lines.newest
        if line and (not mild or (before and not newest)):  # the training has gone on after it
            self.last_error = line
        return newest not in ("", before)

    def read_ray_message(self, message: str) -> None:
        """Add what Ray says about a driver that it could not start, or has lost.

        Such errors are Ray's own: they are not evidence of a usage error.
        """
        for text, address in map(spoken, message.splitlines()):
            if (failure := _failure_in(text)) and failure is not FailureClass.USAGE:
                self._add(Evidence(failure, text[:LONGEST_LINE], address, step=self._step_now()))

    def add_oom_kills(self, node: str, kills: int) -> str:
        """Add that the kernel has killed `kills` processes on `node`; return that as a sentence."""
        sentence = oom_kills.sentence(node, kills)
        self._add(Evidence(FailureClass.HOST_OOM, sentence, node=node, step=self._step_now()))
        return sentence

    def told_error(self, step: int) -> str:
        """Return the driver's newest error if the job ends after `step` finished steps, or ""."""
        return self._lines.newest if step - self._error_step < STALE_STEPS else ""

    def _add(self, found: Evidence) -> None:
        known = self._first.get(found.failure)
        if known is None or not _counts(known, found.step):
            self._first[found.failure] = found

    def at(self, step: int) -> tuple[Evidence, ...]:
        """Return the evidence that counts if the job ends after `step` finished steps."""
        return tuple(found for found in self._first.values() if _counts(found, step))


def own_line(line: str) -> str:
    """Return the line if the driver itself has printed it, else "".

    Ray relays the output of all processes of the job, each line with a prefix and in colours.
    """
    # Cut first: the time of the search grows with the square of a word's length.
    text = plain(line[: 10 * LONGEST_LINE]).rstrip()[:LONGEST_LINE]
    return "" if SPEAKER.match(text) or text.startswith(NOT_OWN) else text


def _counts(found: Evidence, step: int) -> bool:
    return step - found.step < STALE_STEPS


def spoken(line: str) -> tuple[str, str | None]:
    """Return the line without its prefix, and the process's address if the prefix has one."""
    text = plain(line).rstrip()
    match = SPEAKER.match(text)
    if match is None:
        return text, None
    return text[match.end() :], match["ip"]


def _failure_in(text: str) -> FailureClass | None:
    if NOISE.search(text):
        return None
    if action := xid.action(text):
        return _of_xid(action)
    for failure, pattern in COMPILED.items():
        if pattern.search(text):
            return failure
    return None


def _of_xid(action: xid.XidAction) -> FailureClass | None:
    if action is xid.XidAction.IGNORE:
        return None
    return FailureClass.GPU_FAULT if action.node_is_unfit else FailureClass.UNKNOWN
