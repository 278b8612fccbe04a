"""Trackers of --log_with by accelerate's interface, MLflow, SwanLab, Trackio; and TensorBoard.

Each has a thread of its own, so that a server or a disk which is slow or down delays no step. What
a tracker does not take is in metrics.jsonl. The next attempt goes on with the same run of the
tracker, which `RUN/.trackers.json` names.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from contract.background import in_background
from contract.files import stored_json
from contract.redaction import redact, secret_texts
from contract.run_dir import name_of, write_atomically
from trainer.config.config import Config
from trainer.metrics.sinks import MetricRow, TensorBoard

CLOSE_SECONDS = 10.0
"""How long the end of a run waits until a tracker has taken what it was given."""

Act = Callable[["Tracker"], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """How a tracker of accelerate's is made."""

    make: Callable[[Config, str], Any]
    """Takes the flags and the id of a run that goes on, or of a new one."""
    fail: Callable[[Any], None]
    """Ends the run of a tracker as one that failed."""
    names_runs: bool = False
    """The tracker itself gives a new run its id."""


def _mlflow(config: Config, run_id: str) -> Any:
    import mlflow
    from accelerate.tracking import MLflowTracker

    if not os.environ.get("MLFLOW_TRACKING_URI"):
        # MLflow 3 asks for this word: its file store gets no new features.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow.set_tracking_uri((config.files.root / "mlruns").absolute().as_uri())
    return MLflowTracker(
        config.log_project, run_id=run_id or None, run_name=name_of(config.files.root)
    )


def _mlflow_failed(tracker: Any) -> None:
    import mlflow

    mlflow.end_run("FAILED")


def _swanlab(config: Config, run_id: str) -> Any:
    from accelerate.tracking import SwanLabTracker

    return SwanLabTracker(
        config.log_project,
        name=name_of(config.files.root),
        log_dir=str(config.files.root / "swanlab"),
        id=run_id,
        resume="allow",
    )


def _trackio(config: Config, run_id: str) -> Any:
    # Trackio reads it once, when it is imported.
    os.environ.setdefault("TRACKIO_DIR", str(config.files.root.absolute() / "trackio"))
    from accelerate.tracking import TrackioTracker

    name = f"{name_of(config.files.root)}-{run_id[:8]}"
    return TrackioTracker(config.log_project, name=name, resume="allow", embed=False)


def _finish(tracker: Any) -> None:
    tracker.finish()


KINDS: Mapping[str, Kind] = {
    "mlflow": Kind(_mlflow, _mlflow_failed, names_runs=True),
    "swanlab": Kind(_swanlab, lambda tracker: tracker.tracker.finish(state="crashed")),
    "trackio": Kind(_trackio, _finish),
}


def connect(config: Config, resumed_step: int) -> list[QueuedTracker]:
    """Return the trackers that the flags name. Each connects in its own thread."""
    known = _ids(config.files.trackers) if config.log_with else {}
    found = [
        QueuedTracker(f"--log_with {name}", partial(_opened, name, config, known.get(name, "")))
        for name in config.log_with
    ]
    if board := config.use_tensorboard:
        open_board = partial(TensorBoard, board, resumed_step)
        found.append(QueuedTracker("--use_tensorboard", open_board))
    return found


class Tracker(Protocol):
    """Takes rows of metrics. Every method may fail, and may take long."""

    def log(self, step: int, row: MetricRow) -> None: ...

    def close(self, exit_code: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _OfAccelerate:
    """A tracker of accelerate's."""

    kind: Kind
    tracker: Any

    def log(self, step: int, row: MetricRow) -> None:
        self.tracker.log(dict(row), step=step)

    def close(self, exit_code: int) -> None:
        (self.kind.fail if exit_code else _finish)(self.tracker)


def _opened(name: str, config: Config, run_id: str) -> Tracker:
    """Begin a run of a tracker. `run_id`: of the run that goes on; empty: a new one."""
    from accelerate import PartialState

    PartialState(cpu=True)  # its trackers ask it whether this is the main process
    kind = KINDS[name]
    own = run_id or ("" if kind.names_runs else uuid.uuid4().hex)
    tracker = kind.make(config, own)
    tracker.start()
    if not run_id:
        _keep(config.files.trackers, name, own or tracker.tracker.info.run_id)
        tracker.store_init_configuration(config.public())
    return _OfAccelerate(kind, tracker)


@dataclass(slots=True)
class QueuedTracker:
    """Hands rows to a tracker in a thread. A tracker that fails gets no further rows.

    All is done in this one thread: MLflow's run belongs to it.
    """

    name: str
    """The flag that asks for the tracker."""
    open: Callable[[], Tracker]
    _acts: queue.SimpleQueue[Act | None] = field(default_factory=queue.SimpleQueue)
    _end: Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self._end = in_background(f"tracker {self.name}", self._work)

    def log(self, step: int, row: MetricRow) -> None:
        if self._end.done():
            return  # it has failed
        values = dict(row)
        self._acts.put(lambda tracker: tracker.log(step, values))

    def close(self, exit_code: int) -> None:
        """Wait until all rows are taken, for CLOSE_SECONDS at most."""
        self._acts.put(lambda tracker: tracker.close(exit_code))
        self._acts.put(None)
        try:
            self._end.result(CLOSE_SECONDS)
        except TimeoutError:
            self._say(f"has not taken the last rows in {CLOSE_SECONDS:g} s")

    def _work(self) -> None:
        """Hand over what there is, until the end or the first failure, which is said at once."""
        try:
            tracker = self.open()
            while act := self._acts.get():
                act(tracker)
        except Exception as error:
            reason = redact(f"{type(error).__name__}: {error}", secret_texts(os.environ))
            self._say(f"takes no further rows in this attempt: {reason}")

    def _say(self, what: str) -> None:
        print(f"{self.name} {what}. metrics.jsonl has them all.", flush=True)


_ids_lock = threading.Lock()
"""Trackers begin at the same time, and all write their ids into one file."""


def _keep(path: Path, name: str, run_id: str) -> None:
    with _ids_lock:
        write_atomically(path, json.dumps(_ids(path) | {name: run_id}))


def _ids(path: Path) -> dict[str, str]:
    """Return the runs of the trackers by name; none if the file is absent or damaged."""
    try:
        found = stored_json.parsed(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    rows = found.items() if isinstance(found, dict) else ()
    return {name: text for name, text in rows if isinstance(text, str)}
