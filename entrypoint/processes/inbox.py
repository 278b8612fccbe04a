"""The queue that a node's main thread waits on: signals, ended processes, other nodes' news."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from contract.exit_codes import ExitCode
from contract.files import notice, private_dir

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StopAsked:
    why: str
    job: str = ""
    """The submitted job that is to stop; "" if the node itself is to stop."""
    by_person: bool = False
    """`rollcall stop`, or what else asks the control port: nothing but a person is to go on."""
    has_successor: bool = False
    """This head is to stop because a later one has the run: its node may go on as a worker."""


ENDED = "Ray on the head ended"


@dataclass(frozen=True, slots=True)
class RayEnded:
    exit_code: int
    why: str = ""
    """The reason, if this node ended its Ray."""


class RayFailedError(Exception):
    """Ray did not start or died; the sentence, of one line, ends with its last words."""

    def __init__(self, sentence: str, exit_code: ExitCode = ExitCode.RETRY) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class UnfitRayError(Exception):
    """A Ray that this node did not start cannot run the job, or does not let this node in."""

    def __init__(self, sentence: str, exit_code: ExitCode = ExitCode.UNFIT) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class JobEnded:
    submission_id: str


@dataclass(frozen=True, slots=True)
class HeadSaid:
    """The outcome of the run."""

    outcome: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class HeadLost:
    why: str


@dataclass(frozen=True, slots=True)
class JoinAgain:
    """The head lives, and this node is on its roll no more."""


@dataclass(frozen=True, slots=True)
class WorkerLeaves:
    """A worker's machine is about to be taken away."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class StacksAsked:
    """The head is about to end a hung attempt."""

    attempt: int
    job: str = ""
    """The submitted job that hangs; "" for the head's own."""


@dataclass(frozen=True, slots=True)
class JobOver:
    """A job has ended: what it has left on this node is to end, too."""

    submission_id: str
    at: float = field(default=0.0, compare=False)
    """When this node heard it, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class SpareTold:
    """Whether this node is a spare now."""

    is_spare: bool


@dataclass(frozen=True, slots=True)
class SpareUnfit:
    """A check of this node, while it was a spare, has failed."""

    why: str


@dataclass(frozen=True, slots=True)
class RanksAsked:
    """The head asks where the ranks on this node stand."""

    number: int


AboutJob = StacksAsked | RanksAsked | JobOver | SpareTold | SpareUnfit
"""What a worker hears about the job; its membership goes on."""
Message = (
    StopAsked | RayEnded | JobEnded | HeadSaid | HeadLost | JoinAgain | WorkerLeaves | AboutJob
)

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A terminal that closes sends SIGHUP. Users configure batch systems to send one of the last two
before the end of a job."""
FILE_POLL_SECONDS = 1.0
PIPE_BYTES = 2**16


class Inbox:
    """Any thread may `put`, but no signal handler; the main thread takes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.stop = threading.Event()
        """Set once this node, or its present job, was asked to stop: all waits end at once."""
        self.node_stop: StopAsked | None = None
        """The first request to stop the node itself."""
        self._node_stopping = threading.Event()

    def put(self, message: Message) -> None:
        if isinstance(message, StopAsked):
            if not message.job:
                if self.node_stop is None or self.node_stop.has_successor:
                    self.node_stop = message
                if not message.has_successor:
                    self._node_stopping.set()
            self.stop.set()
        self._queue.put(message)

    def with_reason(self, sentence: str) -> str:
        """Return the sentence of an interrupted wait, with why the node is to stop before it."""
        return f"{self.node_stop.why}: {sentence}" if self.node_stop else sentence

    def take(self, timeout: float | None = None) -> Message | None:
        """The next message; None after `timeout` seconds without one."""
        try:
            return self._queue.get(block=timeout != 0, timeout=timeout or None)
        except queue.Empty:
            return None

    def forget(self, *kinds: type[Message]) -> None:
        """Drop what is left of earlier times, or of these kinds; a request to stop stays."""
        kept = []
        while (message := self.take(timeout=0)) is not None:
            if isinstance(message, StopAsked) or (kinds and not isinstance(message, kinds)):
                kept.append(message)
        for message in kept:
            self._queue.put(message)

    def after_job(self) -> None:
        """Drop the messages about a submitted job that is over, so that the next can begin."""
        kept = []
        while (message := self.take(timeout=0)) is not None:
            of_job = isinstance(message, StopAsked) and message.job
            if not of_job and not isinstance(message, JobEnded):
                kept.append(message)
        for message in kept:
            self._queue.put(message)
        self.stop.clear()
        if self.node_stop:  # looked at last: it is noted before `stop` is set
            self.stop.set()

    def follow_successor(self) -> bool:
        """Forget that a later head was a reason to stop; return whether there is no other one."""
        kept = []
        while (message := self.take(timeout=0)) is not None:
            if isinstance(message, StopAsked) and not message.has_successor:
                kept.append(message)
        for message in kept:
            self._queue.put(message)
        if self.node_stop is None or self.node_stop.has_successor:
            self.node_stop = None
            self.stop.clear()
        if self.node_stop:  # looked at last: it is noted before `stop` is set
            self.stop.set()
        return self.node_stop is None

    def listen_to_signals(self) -> None:
        """Turn signals into messages, in a thread of its own.

        A handler interrupts the main thread and may take no lock, which that thread may hold. So
        the handlers do nothing, and Python writes each signal's number into a pipe. SIGHUP stays
        ignored if it is ignored already, as under nohup.
        """
        arrived, arrives = os.pipe()
        os.set_blocking(arrives, False)
        signal.set_wakeup_fd(arrives, warn_on_full_buffer=False)
        for number in STOPPING:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _do_nothing)

        def pass_on() -> None:
            while numbers := os.read(arrived, PIPE_BYTES):
                for number in dict.fromkeys(numbers):  # a burst of one signal is one message
                    self.put(StopAsked(signal.Signals(number).name))

        threading.Thread(target=pass_on, name="signals", daemon=True).start()

    def listen_to_file(self, path: Path) -> None:
        """Its appearance, or that it is there already, is a request to stop.

        An error of its storage is not an appearance, and does not end the watch. A file of another
        user is none either: a warning names it.
        """

        def watch() -> None:
            said = ""
            while (why := _not_a_notice(path)) is not None:
                if why and why != said:
                    log.warning("%s is there, and is not heeded: %s", path, why)
                said = why or said
                if self._node_stopping.wait(FILE_POLL_SECONDS):
                    return
            self.put(StopAsked(f"{path} is there (ROLLCALL_PREEMPT_FILE)"))

        threading.Thread(target=watch, name="preempt-file", daemon=True).start()


def _not_a_notice(path: Path) -> str | None:
    """Return why a file is no request to stop; "" if it is not there, None if it is one."""
    try:
        return notice.refused(path) or None
    except private_dir.NotPrivateError as error:
        return str(error)
    except OSError:
        return ""


def _do_nothing(number: int, frame: FrameType | None) -> None:
    return
