"""The failure classes: how each is recognised, what Rollcall does, and what a person does.

A line of a log maps to a class by `patterns`, for any framework. For every class with patterns,
tests/data/failures has a line that a program really printed. The class of an attempt is chosen in
entrypoint/job/failures/classes.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from contract.exit_codes import CORRECT, RESUMES, STORAGE, ExitCode
from contract.launch.log_lines import CORRUPTION, KILLED_RANK


class FailureClass(StrEnum):
    FINISHED = "finished"
    USAGE = "usage"
    WRONG_START = "wrong_start"
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    COLLECTIVE = "collective"
    NODE_LOST = "node_lost"
    GPU_FAULT = "gpu_fault"
    SERVICE = "service"
    NOT_TAKEN = "not_taken"
    HANG = "hang"
    STORAGE = "storage"
    CODE = "code"
    PREEMPTED = "preempted"
    SCALED_UP = "scaled_up"
    """No failure: an attempt with fewer workers was ended, so that the next one uses all."""
    STRAGGLER = "straggler"
    """No failure: an attempt was ended, so that a slow node leaves for a spare."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """All facts of a class."""

    evidence: str
    """What shows it, and `answer`: what Rollcall does; the row of docs/recovery.md."""
    answer: str
    reason: str = ""
    """Why the run goes on or ends, as a sentence."""
    remedy: str = ""
    """What to do if the run has ended with it; empty: nothing."""
    driver_code: ExitCode | None = None
    """The exit code by which a job says that it ended with this class."""
    exit_code: ExitCode = ExitCode.JOB_FAILED
    """The exit code of a run that ends with it."""
    is_final: bool = False
    """Another attempt cannot change it."""
    is_cause: bool = False
    """Evidence alone shows it. With evidence for several such classes, the first of FAILURES is the
    cause and the others are its effects: a process that dies breaks its peers' collectives."""
    patterns: tuple[str, ...] = ()
    """Of a line. If a line fits several classes, the first of FAILURES counts."""


NOT_THE_NETWORK = r"(?!.*(invalid (usage|argument)|EADDRINUSE|[Aa]ddress already in use))"
"""Of a line that names NCCL or torch.distributed: a setting or a port is wrong, no node is lost."""

FAILURES: Mapping[FailureClass, Failure] = {
    FailureClass.FINISHED: Failure(
        evidence="exit code 0, with a proof that the job has finished ([below](#exit-code-0))",
        answer="stop, exit 0",
        driver_code=ExitCode.FINISHED,
        exit_code=ExitCode.FINISHED,
    ),
    FailureClass.PREEMPTED: Failure(
        evidence=(
            "SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, `ROLLCALL_PREEMPT_FILE`, `stop`, exit"
            " code 143"
        ),
        answer="the trainer saves at the next step boundary; exit 143",
        driver_code=ExitCode.STOPPED,
        exit_code=ExitCode.STOPPED,
    ),
    FailureClass.GPU_FAULT: Failure(
        evidence=(
            "ECC or Xid errors in the log, a GPU fallen off the bus. Or "
            "[wrong bits](faulty-machines.md#silent-data-corruption) for the second time on a node"
        ),
        answer=(
            "evict the worker (it exits with 76), resume with another worker, or with the "
            "remaining ones"
        ),
        reason="a GPU failed",
        remedy=f"Have the GPU examined, or start without its node. {RESUMES}",
        is_cause=True,
        patterns=(
            r"uncorrectable (ECC|NVLink) error",
            r"CUDA_ERROR_ECC_UNCORRECTABLE",
            r"fallen off the bus",
            r"Unable to determine the device handle for GPU",
            CORRUPTION,
        ),
    ),
    FailureClass.GPU_OOM: Failure(
        evidence="log lines such as `CUDA out of memory`",
        answer="resume with advice; stop if that brings no new step",
        remedy=f"Change what the first line says. {RESUMES}",
        is_cause=True,
        patterns=(
            r"(CUDA|HIP)( driver)?( error:|\]:)? out of memory",
            r"Cuda failure .*out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"No available memory for the cache blocks",
            r"is less than desired GPU memory utilization",
            r"larger than the (available KV cache|maximum number of tokens that can be stored)",
        ),
    ),
    FailureClass.HOST_OOM: Failure(
        evidence=(
            "the log, or the kernel's count of OOM kills in a node's container (event `oom-kill`)"
        ),
        answer="wait (about 10 s), then resume with advice; stop if that brings no new step",
        remedy=f"Change what the first line says. {RESUMES}",
        is_cause=True,
        patterns=(
            r"ray\.exceptions\.OutOfMemoryError",
            r"due to the node running low on memory",
            r"[Cc]an(not|'t) allocate memory",
            r"^MemoryError\b",
            r"DataLoader worker .*killed by signal: (Killed|Bus error)",
            r"Detected \d+ oom[-_]kill event",
            r"ObjectStoreFullError",
            r"failed to extend /dev/shm|NCCL WARN .*(posix_fallocate failed|shared memory segment)",
        ),
    ),
    FailureClass.STORAGE: Failure(
        evidence=(
            "exit code 73, disk full, read-only, stale handle. Or a file that the job names is "
            "missing or still being written"
        ),
        answer=(
            "wait until the run directory is writable and the job's files exist, then resume. "
            "Exit 73 after `ROLLCALL_REWARD_TIMEOUT` for each, or after the last restart"
        ),
        reason="storage failed",
        remedy=STORAGE,
        driver_code=ExitCode.RUN_DIR,
        exit_code=ExitCode.RUN_DIR,
        is_cause=True,
        patterns=(
            r"\[Errno (5|28|30|116|122)\]",
            r"\(os error (28|30|116|122)\)",
            r"No space left on device",
            r"Disk quota exceeded",
            r"Stale (NFS )?file handle",
            r"PytorchStreamWriter failed writing",
            r"inline_container\.cc:\d+\] \. unexpected pos",
            r"OutOfDiskError",
        ),
    ),
    FailureClass.NODE_LOST: Failure(
        evidence="silent workers, nodes that Ray reports dead",
        answer=(
            "wait for all nodes, or continue with fewer "
            "([below](#fewer-nodes-and-more-again)), then resume"
        ),
        reason="a node was lost",
        remedy=f"Look at the lost node and its network. {RESUMES}",
        is_cause=True,
        patterns=(
            r"NodeDiedError",
            r"because its node has died",
            r"marked dead because the detector has missed too many heartbeats",
            r"LocalRayletDiedError",
            r"ActorUnavailableError",
            r"Owner's node has crashed",
        ),
    ),
    FailureClass.COLLECTIVE: Failure(
        evidence="errors of NCCL or gloo in the log",
        answer=(
            "test all nodes together ([the collective "
            "check](preflight.md#the-collective-check)), evict the node at fault, resume"
        ),
        reason="the nodes lost each other on the network",
        remedy=f"Look at the network between the nodes: rollcall doctor. {RESUMES}",
        is_cause=True,
        patterns=(
            r"collective operation timeout",
            r"ProcessGroupNCCL's watchdog got stuck",
            rf"NCCL error{NOT_THE_NETWORK}",
            r"nccl(UnhandledCuda|System|Remote|Internal)Error",
            rf"Dist(Backend|Network|Store)Error{NOT_THE_NETWORK}",
            r"gloo/transport/.*([Tt]imed out|Connection (reset|closed|refused))",
            r"connectFullMesh failed",
            r"rank \S+ \(.*\) does not answer",
        ),
    ),
    FailureClass.SERVICE: Failure(
        evidence="exit code 69, the model hub unreachable",
        answer="wait for the service, then resume; for the hub once, after 15 s",
        reason="a service did not answer",
        remedy=f"Look at the service that the cause names, and its log. {RESUMES}",
        driver_code=ExitCode.UNREACHABLE,
        is_cause=True,
        patterns=(
            r"We couldn't connect to 'http",
            r"LocalEntryNotFoundError",
            r"\b(429 Client|50[0234] Server) Error",
        ),
    ),
    FailureClass.USAGE: Failure(
        evidence=(
            "exit code 64. Before the first step also import errors, unknown arguments, missing "
            "files, and the shell's exit codes 126 and 127. Or a model that the libraries refuse, "
            "and two ranks on one GPU"
        ),
        answer="stop at once, exit 64",
        reason="the job cannot run as it is configured; another try would end the same way",
        remedy=CORRECT,
        driver_code=ExitCode.USAGE,
        exit_code=ExitCode.USAGE,
        is_final=True,
        patterns=(
            r"^(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|FileNotFoundError):",
            r"^\S*(python|pypy)[\d.]*: (can't (open file|find '__main__')|No module named )",
            r"^\S*exec: .*: not found$",
            r"^error: Failed to spawn: ",
            r"error: (unrecognized arguments|the following arguments are required|argument \S+:)",
            r"(GatedRepo|RepositoryNotFound)Error",
            r"is not a valid model identifier",
            r"Could not override '",
            r"ZeRORuntimeException: The checkpoint being loaded used a DP world size",
            # Of the settings.
            r"(omegaconf|hydra)\.errors\.\w+: ",
            r"([Ee]rror:|error,) .{0,200}\bdivisible by\b",
            r"UsageError: api_key not configured",
            r"^(requests|httpx|huggingface_hub)\.\S+: 40[13] Client Error",
            # Of the ranks and their GPUs.
            r"Duplicate GPU detected",
            r"CUDA error: (invalid device ordinal|no kernel image is available)",
            r"Error: (Cannot re-initialize CUDA|The NVIDIA driver on your system is too old)",
            r"Error: FlashAttention only supports|Bfloat16 is only supported on GPUs with",
            # Of the model and the data.
            r"Model architectures \[.*\] .*are not supported|does not recognize this architecture",
            r"set the option `trust_remote_code=True`",
            r"Error\(s\) in loading state_dict for ",
            r"jinja2\.exceptions\.\w+: |tokenizer\.chat_template is not set",
            r"DatasetNotFoundError: |pyarrow\.lib\.ArrowInvalid: ",
        ),
    ),
    FailureClass.NOT_TAKEN: Failure(
        evidence="Ray refuses the job, or does not take it within 2 min: the job has not begun",
        answer="wait (longer after each failure), then submit it again",
        reason="Ray did not take the job",
        remedy="Read logs/head.log and the head's logs/ray-NAME.log. End other work on the head if "
        f"it is busy, or give it more memory. {RESUMES}",
    ),
    FailureClass.HANG: Failure(
        evidence=(
            "no progress for much longer than this phase of a step usually takes. The message "
            "names the last phase seen"
        ),
        answer="record the stacks of every process, stop the job, resume",
        reason="the job made no progress",
        remedy="Read the file stacks-attempt-N.txt beside the log: it says where each process was. "
        f"Raise ROLLCALL_HANG_TIMEOUT if the job was only slow. {RESUMES}",
    ),
    FailureClass.WRONG_START: Failure(
        evidence="the first step of an attempt is not the step after its checkpoint",
        answer="stop at once, exit 70",
        reason=(
            "the job does not go on from its checkpoint; it would do steps twice, and "
            "overwrite them"
        ),
        remedy="Have the job resume from the checkpoint that Rollcall names.",
        is_final=True,
    ),
    FailureClass.CODE: Failure(
        evidence=(
            "an error of Python, such as `KeyError`, at a line of your own code. The message names "
            "the line"
        ),
        answer=(
            "wait, then resume. Stop if the same error comes at the same line twice in a row, "
            "also after new steps"
        ),
        reason="the user's code failed",
        remedy=f"Correct the line that the message names. {RESUMES}",
    ),
    FailureClass.UNKNOWN: Failure(
        evidence="anything else",
        answer=(
            "wait (longer after each failure), then resume. Stop if the same error of the code "
            "comes twice in a row"
        ),
        reason="the job died",
        remedy=f"Read the log, and repair the cause. {RESUMES}",
        patterns=(
            r"EngineDeadError",
            r"Engine core initialization failed",
            r"its worker process has died",
            r"WorkerCrashedError",
            r"Fatal Python error",
            r"(CUDA|HIP) error: ",
            r"Memory access fault by GPU",
            r"exits with return code = ",
            r"NCCL error.*invalid (usage|argument)|The server socket has failed to listen on any",
            r"can't start new thread",
            KILLED_RANK.pattern,
        ),
    ),
    FailureClass.SCALED_UP: Failure(
        evidence=(
            "no failure: the head ended an attempt with fewer workers, because the missing "
            "ones are back"
        ),
        answer="resume with all workers",
    ),
    FailureClass.STRAGGLER: Failure(
        evidence=(
            "no failure: [a slow node](faulty-machines.md#slow-ranks) leaves for a spare "
            "(`ROLLCALL_STRAGGLERS=replace`)"
        ),
        answer="save, evict the node (it exits 76), resume with the spare",
    ),
}
"""UNKNOWN has patterns that name what died, not why."""

HUB = "hub"
"""The service that a failure's event names if models and data sets come from it."""
OF_HUB = re.compile(
    r"not whole in the cache|LocalEntryNotFoundError"
    r"|We couldn't connect to 'http|//huggingface\.co/"
)
"""Evidence of SERVICE that tells of the hub: first the sentence of trainer/models/hub.py."""
REMEDY_OF_HUB = (
    "Run `hf download NAME` where there is a network, with HF_HOME on storage that all nodes see. "
    f"Or set HF_ENDPOINT to a mirror of the hub, or give a local path. {RESUMES}"
)
REMEDIES: Mapping[str, str] = {str(name): row.remedy for name, row in FAILURES.items()}
"""Class of the failure that has ended the run → what to do."""


def service_of(failure: FailureClass, evidence: str) -> str:
    """Return which service did not answer, if it is known; else ""."""
    return HUB if failure is FailureClass.SERVICE and OF_HUB.search(evidence) else ""


def evidence_of(details: Mapping[str, Any], sentence: str) -> str:
    """Return the evidence of a failure event, without its class.

    A journal of an earlier version has it in the event's sentence alone.
    """
    return str(details.get("evidence", sentence.removeprefix(f"{details['failure']}: ")))


def cause_of(details: Mapping[str, Any], sentence: str) -> str:
    """Return the evidence of a failure event, with its class if that says something."""
    says_all = details["failure"] in (FailureClass.UNKNOWN, FailureClass.CODE)
    return evidence_of(details, sentence) if says_all else sentence


def for_people(details: Mapping[str, Any], sentence: str) -> str:
    """Return the sentence of a failure event as people read it: without the class `unknown`.

    Before a cause, that word would deny it.
    """
    is_unknown = details.get("failure") == FailureClass.UNKNOWN
    return sentence.removeprefix(f"{FailureClass.UNKNOWN}: ") if is_unknown else sentence
