"""Where a stage's metrics go: variables that transformers' callbacks read, and the callbacks."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback, WandbCallback

from contract.options import FALSE, TRUE
from contract.redaction import redact, secret_texts
from trainer.metrics.sinks import FINISH_SECONDS, FINISH_TIMEOUT, answered
from trainer.supervised.options import StageFlags

TAKES_MODEL = ("checkpoint", "end")
"""The values of WANDB_LOG_MODEL with which transformers gives W&B the model."""


def wandb_wanted(flags: StageFlags, environ: Mapping[str, str]) -> bool:
    """Return whether metrics go to W&B: a flag says so, or the environment has a key."""
    text = flags.use_wandb.lower()
    return text not in FALSE if text else bool(environ.get("WANDB_API_KEY"))


def reports(flags: StageFlags, environ: Mapping[str, str]) -> list[str]:
    """Return the names of transformers' reporters."""
    wandb = ["wandb"] if wandb_wanted(flags, environ) else []
    return wandb + (["tensorboard"] if flags.use_tensorboard else [])


def variables(flags: StageFlags, run_id: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that W&B and TensorBoard read.

    `run_id`: the W&B run that goes on; None: each attempt is a run of its own. The end of a stage
    waits for W&B without limit only if WANDB_LOG_MODEL has it take the model.
    """
    limit = environ.get(FINISH_TIMEOUT) or str(FINISH_SECONDS)
    given = {
        "WANDB_PROJECT": flags.wandb_project,
        "WANDB_RUN_GROUP": flags.wandb_group,
        "WANDB_ENTITY": flags.wandb_org,
        "WANDB_API_KEY": flags.use_wandb if flags.use_wandb.lower() not in TRUE + FALSE else None,
        "WANDB_RUN_ID": run_id,
        "WANDB_RESUME": "allow" if run_id else None,
        FINISH_TIMEOUT: None if environ.get("WANDB_LOG_MODEL") in TAKES_MODEL else limit,
        "WANDB_DIR": str(flags.run_dir) if flags.run_dir else None,
        "TENSORBOARD_LOGGING_DIR": str(flags.use_tensorboard) if flags.use_tensorboard else None,
    }
    return {name: value for name, value in given.items() if value}


def run_id(run_dir: Path) -> str:
    """Return the id of a run's W&B run, which the run directory keeps from the first attempt."""
    file = run_dir / ".wandb-run"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex)
    return file.read_text()


class _BestEffort(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """A tracker's callback that gets no further rows after a failure, which is said once."""

    name = ""
    _is_lost = False

    def on_train_begin(self, *args: Any, **given: Any) -> None:
        self._do(super().on_train_begin, *args, **given)

    def on_log(self, *args: Any, **given: Any) -> None:
        self._do(super().on_log, *args, **given)

    def on_save(self, *args: Any, **given: Any) -> None:
        self._do(super().on_save, *args, **given)

    def on_train_end(self, *args: Any, **given: Any) -> None:
        self._do(super().on_train_end, *args, **given)

    def _do(self, act: Callable[..., None], *args: Any, **given: Any) -> None:
        if self._is_lost:
            return
        try:
            act(*args, **given)
        except Exception as error:
            self._is_lost = True
            why = redact(f"{type(error).__name__}: {error}", secret_texts(os.environ))
            print(f"{self.name} takes no further rows in this attempt: {why}", flush=True)


class Wandb(_BestEffort, WandbCallback):  # type: ignore[misc]
    """W&B as transformers has it, except that training goes on if W&B fails or is frozen."""

    name = "W&B"

    def _do(self, act: Callable[..., None], *args: Any, **given: Any) -> None:
        super()._do(answered, partial(act, *args, **given))
        if self._is_lost:  # and gets no model that the end would wait for
            os.environ.setdefault(FINISH_TIMEOUT, str(FINISH_SECONDS))


class TensorBoard(_BestEffort, TensorBoardCallback):  # type: ignore[misc]
    """TensorBoard as transformers has it, except that training goes on if its disk fails."""

    name = "TensorBoard"


BEST_EFFORT = {WandbCallback: Wandb, TensorBoardCallback: TensorBoard}
"""Maps transformers' callback to the one in its place."""
