"""W&B and TensorBoard.

accelerate's classes for both cannot do what a run with restarts needs: to go on with the same W&B
run at an earlier step, and to hide TensorBoard's rows of a lost attempt. `trackers` has the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

from contract.background import in_background
from contract.options import ended
from contract.redaction import redact, secret_texts
from trainer.cluster.driver_exit import LEAVE_SECONDS
from trainer.config.config import Config

MetricRow = Mapping[str, float]
COLUMNS = ("row", "prompt", "label", "turns", "reward", "metrics", "stop", "versions", "error")
"""Of the table of samples: fields of samples.jsonl."""
FINISH_TIMEOUT = "WANDB_FINISH_TIMEOUT"
FINISH_SECONDS = 30
"""How long the end of a run waits for W&B, unless FINISH_TIMEOUT says so. W&B's own default is to
wait without end."""
ANSWER_SECONDS = 30.0
"""W&B's process is asked how it is after so long, and has as long again to answer."""


def answered(act: Callable[[], object]) -> None:
    """Do `act`, however long W&B works at it. Raises TimeoutError if its process is frozen.

    Raises what `act` raises.
    """
    import wandb

    done = in_background("wandb", act)
    while not futures.wait([done], ANSWER_SECONDS).done:
        if wandb.run is None:
            continue  # it begins, and has a limit of its own
        status = in_background("wandb", wandb.run.status)
        if not futures.wait([status], ANSWER_SECONDS).done:
            raise TimeoutError(f"its process has not answered for {2 * ANSWER_SECONDS:g} s")
    done.result()


def finish_limit(environ: Mapping[str, str]) -> float | None:
    """Return for how many seconds the end of a process waits for W&B; None: without limit."""
    try:
        seconds = float(environ.get(FINISH_TIMEOUT, "0"))
    except ValueError:
        return None  # W&B refuses it
    return seconds if seconds > 0 else None


def connect(config: Config, run_id: str | None) -> Wandb | None:
    """Return the W&B run of `run_id`, or a new run. If W&B does not begin one, says so: None.

    Honours WANDB_MODE=offline.
    """
    import wandb

    if config.wandb_key:
        os.environ["WANDB_API_KEY"] = config.wandb_key
    os.environ.setdefault(FINISH_TIMEOUT, str(FINISH_SECONDS))
    try:
        run = wandb.init(
            project=config.wandb_project,
            name=config.wandb_run_name,
            group=config.wandb_group,
            entity=config.wandb_org,
            dir=config.run_dir,
            id=run_id,
            resume="allow",
            config=config.public(),
            settings={"finish_timeout_raises": True},
        )
    except Exception as error:  # also of its settings, such as an address that is none
        why = redact(str(error), secret_texts(os.environ))
        print(f"No W&B in this attempt: {ended(why)} Metrics go to metrics.jsonl.", flush=True)
        return None
    return Wandb(run)


class Wandb:
    """A W&B run. After a resume it is the same run.

    W&B has a process of its own. If that was killed, as for memory, or is frozen, training goes on
    without it.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._is_lost = False
        # A resumed run repeats steps: they must not be W&B's own, which never go back.
        self._do(lambda: run.define_metric("train/global_step"))
        self._do(lambda: run.define_metric("*", step_metric="train/global_step"))

    @property
    def run_id(self) -> str:
        return str(self._run.id)

    def log(self, step: int, row: MetricRow) -> None:
        content: dict[str, Any] = {**row, "train/global_step": step}
        self._do(lambda: self._run.log(content))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log samples of a step as a table: one row a sample, long values as JSON."""
        import wandb

        if not rows:
            return
        data = [[_cell(row.get(name)) for name in COLUMNS] for row in rows]
        table = wandb.Table(columns=list(COLUMNS), data=data, allow_mixed_types=True)
        self._do(lambda: self._run.log({"samples": table, "train/global_step": step}))

    def failed(self, sentence: str) -> None:
        """Send an alert: W&B mails it, or posts it to Slack, as the user has chosen there."""
        title = "The training attempt failed"
        self._do(lambda: self._run.alert(title=title, text=sentence, level="ERROR"))

    def close(self, exit_code: int) -> None:
        """Wait until all rows are taken, for the seconds of FINISH_TIMEOUT at most.

        W&B's process keeps that limit. If it is frozen, the wait is LEAVE_SECONDS longer.
        """
        self._try(lambda: self._finish(exit_code))

    def _finish(self, exit_code: int) -> None:
        seconds = finish_limit(os.environ)
        finished = in_background("wandb", lambda: self._run.finish(exit_code=exit_code))
        try:
            finished.result(None if seconds is None else seconds + LEAVE_SECONDS)
        except TimeoutError:
            limit = f"{os.environ[FINISH_TIMEOUT]} s ({FINISH_TIMEOUT})"
            remedy = f"`wandb sync {Path(self._run.dir).parent}` sends them"
            print(f"W&B has not taken the last rows in {limit}: {remedy}.", flush=True)

    def _do(self, act: Callable[[], object]) -> None:
        self._try(lambda: answered(act))

    def _try(self, act: Callable[[], object]) -> None:
        """Do one thing after another, up to the first failure, which is said once."""
        if self._is_lost:
            return
        try:
            act()
        except Exception as error:
            self._is_lost = True
            why = redact(f"{type(error).__name__}: {error}", secret_texts(os.environ))
            sentence = f"W&B takes no further rows in this attempt: {why}"
            print(f"{sentence}. metrics.jsonl has them all.", flush=True)


def _cell(value: Any) -> Any:
    """Return a value as a table of W&B takes it: a column has one type."""
    return value if isinstance(value, str | int | float | None) else json.dumps(value)


class TensorBoard:
    """TensorBoard event files. Hides rows of a lost attempt after the resumed step."""

    def __init__(self, directory: Path, resumed_step: int) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=resumed_step + 1)

    def log(self, step: int, row: MetricRow) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, exit_code: int) -> None:
        self._writer.close()
