"""Where a run goes on from."""

from __future__ import annotations

from pathlib import Path

from env.prompts import PromptStream
from trainer.actors.base import Learner
from trainer.checkpoint.write import RunState
from trainer.config import Config
from trainer.contract import (
    append_event,
    checkpoint_path,
    fault_of,
    newest_checkpoint,
    read_events,
    steps_on_disk,
)
from trainer.events import attempt_number
from trainer.in_flight import FILE, InFlight
from trainer.team import Team
from trainer.types import ModelMismatchError


class ResumeError(ValueError):
    """The run directory holds another beginning than the one that was asked for."""


def begin(config: Config, team: Team, stream: PromptStream) -> RunState:
    """The state to train on from: of the newest whole checkpoint, or a fresh one.

    Restores actors and prompt cursor. Raises ResumeError where there are checkpoints but
    --load_checkpoint is not given, PromptError where the prompts are others than before.
    """
    fresh = RunState(step=0, seed=config.seed, prompts=stream.state_dict())
    if not config.load_checkpoint:
        _refuse_leftovers(config.checkpoints)
        return fresh
    found = _newest(config.checkpoints, config.files.journal)
    if found is None:
        return fresh
    state = RunState.read(found)
    stream.load_state_dict(state.prompts)
    try:
        for restored in [group.together(Learner.restore, found) for group in team.learners]:
            restored.result()
    except ModelMismatchError as error:
        raise ResumeError(
            f"--pretrain {config.pretrain} is not the model that {found} was made with: "
            f"{error}. Give the model of that run, or another --run_dir"
        ) from None
    return state


def in_flight(config: Config, step: int) -> InFlight | None:
    """Rollouts that were under way at the checkpoint of `step`; None: there are none.

    Raises ResumeError where there are, and this run would forget them.
    """
    file = checkpoint_path(config.checkpoints, step) / FILE
    if not (step and file.exists()):
        return None
    found = InFlight.parse(file.read_bytes())
    if (found.groups or found.prompts) and not config.async_train:
        prompts = len(found.groups) + len(found.prompts)
        raise ResumeError(
            f"--load_checkpoint: {prompts} prompts were under way at step {step}, and without "
            "--async_train they would be left out. Give --async_train; with --max_staleness 0 "
            "beside it the run goes on synchronously"
        )
    return found


def _refuse_leftovers(checkpoints: Path) -> None:
    """A later resume would take an older run's higher step for this run's newest."""
    if (step := newest_checkpoint(checkpoints, checksums=False)) is not None:
        raise ResumeError(
            f"--ckpt_path: {checkpoints} holds a checkpoint of step {step}. "
            "Give --load_checkpoint to go on from it, or another --run_dir to start afresh"
        )


def _newest(checkpoints: Path, journal: Path) -> Path | None:
    """The newest whole checkpoint. Each broken one on the way is named in the journal."""
    for step in steps_on_disk(checkpoints):
        directory = checkpoint_path(checkpoints, step)
        fault = fault_of(directory)
        if fault is None:
            _confirm(journal, step)
            return directory
        sentence = f"Checkpoint {directory.name} is broken and skipped: {fault}."
        details = {"step": step, "fault": fault}
        print(sentence, flush=True)
        append_event(journal, "checkpoint-skipped", sentence, details, attempt=attempt_number())
    return None


def _confirm(journal: Path, step: int) -> None:
    """A crash between a manifest and its event leaves a whole checkpoint unannounced."""
    announced = any(
        event["kind"] == "checkpoint" and event["details"].get("step") == step
        for event in read_events(journal)
    )
    if not announced:
        sentence = f"Checkpoint of step {step} found whole after a crash."
        append_event(journal, "checkpoint", sentence, {"step": step}, attempt=attempt_number())
