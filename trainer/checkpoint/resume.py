"""Where a run goes on from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.journal import append_event, attempt_number, newest_finished, read_events
from contract.manifest import (
    MANIFEST,
    checkpoint_path,
    fault_of,
    leave,
    newest_checkpoint,
    put_aside,
    steps_on_disk,
)
from contract.progress import Progress
from env.prompts import PromptStream
from trainer.checkpoint import openrlhf
from trainer.checkpoint.openrlhf import OpenRLHF
from trainer.checkpoint.writer import DriverState, RunState
from trainer.config.config import Config
from trainer.rollout.rollout_state import FILE, PendingRollouts
from trainer.types import ModelMismatchError, SnapshotLostError, UnreadableCheckpointError
from trainer.workers.groups import WorkerGroups
from trainer.workers.protocols import Learner

if TYPE_CHECKING:
    from trainer.checkpoint.openrlhf import Position
    from trainer.checkpoint.replication import Peers, Snapshot
    from trainer.workers.protocols import Source


class ResumeError(ValueError):
    """The run directory holds another beginning than the one that was asked for."""


def begin(
    config: Config, workers: WorkerGroups, stream: PromptStream, peers: Peers | None = None
) -> DriverState:
    """The state to train on from: the newest that is whole, or a fresh one.

    It is looked for in the memory of the nodes and among the checkpoints; with --load_step it is
    that checkpoint. Restores actors and prompt cursor. Raises ResumeError where there are
    checkpoints and --load_checkpoint is false, or where the one that is named is not whole,
    PromptError where the prompts are others than before.
    """
    fresh = DriverState(RunState(step=0, seed=config.seed, prompts=stream.state_dict()))
    if not config.load_checkpoint:
        _refuse_leftovers(config.checkpoints)
        return fresh
    to = _Beginning(config, workers, stream, peers)
    if config.load_step:
        return _named_step(to, config.load_step)
    found = _newest_held(to) or _from_openrlhf(to, fresh.run)
    return fresh if found is None else found


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What is brought to where the run goes on from."""

    config: Config
    workers: WorkerGroups
    stream: PromptStream
    peers: Peers | None


def _named_step(to: _Beginning, step: int) -> DriverState:
    """That of the checkpoint of `step`. The run is there again: what came after it is put aside."""
    config, directory = to.config, checkpoint_path(to.config.checkpoints, step)
    if fault := fault_of(directory):
        raise ResumeError(f"--load_step {step}: {directory} is no whole checkpoint: {fault}")
    found = _from_disk(to, step)
    for one in steps_on_disk(config.checkpoints):
        later = checkpoint_path(config.checkpoints, one)
        if one > step and (later / MANIFEST).exists():
            sentence = f"The checkpoint of step {one} is put aside: --load_step {step} goes back."
            _tell(config, "checkpoint-skipped", sentence, {"step": one})
            leave(later)
    return found


def _newest_held(to: _Beginning) -> DriverState | None:
    """What is newest in the nodes' memory and on disk; where both have it, that in memory."""
    config, peers = to.config, to.peers
    told, finished = Progress.read(config.files.progress), finished_before(config)
    # A node that was away may come back with steps that the run has since gone back from.
    known = [finished if finished is not None else -1, told.step if told else -1]
    at_most = max(known) + 1 if max(known) >= 0 else None
    snapshot = peers.newest(at_most) if peers else None
    in_memory = snapshot.step if snapshot else 0
    steps = steps_on_disk(config.checkpoints)
    # A checkpoint is read as a whole to be trusted: the older ones only where they are needed.
    on_disk = _newest(config, [step for step in steps if step >= in_memory])
    if snapshot and on_disk in (None, in_memory):
        if found := _from_memory(to, snapshot):
            return found
        on_disk = on_disk or _newest(config, [step for step in steps if step < in_memory])
        if on_disk is None:
            _start_anew(to.workers)
    return None if on_disk is None else _from_disk(to, on_disk)


def _start_anew(workers: WorkerGroups) -> None:
    """Some learners may have been restored before the share of another was missed.

    Raises NoSeatError where they cannot be started anew.
    """
    for group in workers.learners.values():
        group.restart(range(len(group)))


def finished_before(config: Config) -> int | None:
    """The step that the run has finished last; None where none is known of. Raises OSError."""
    finished = newest_finished(read_events(config.files.journal))
    if finished is None and (told := Progress.read(config.files.progress)):
        return told.step  # the journal is lost
    return finished


def _from_disk(to: _Beginning, step: int) -> DriverState:
    config, directory = to.config, checkpoint_path(to.config.checkpoints, step)
    run, file = RunState.read(directory), directory / FILE
    to.stream.load_state_dict(run.prompts)
    _restore(config, to.workers, directory)
    _tell(config, "restore", f"Restored from {directory.name}.", {"step": run.step})
    return DriverState(run, file.read_bytes() if file.exists() else None)


def _from_memory(to: _Beginning, snapshot: Snapshot) -> DriverState | None:
    """None where no node has all of it any more; the prompts are then where they were."""
    config, details = to.config, {"step": snapshot.step}
    before = to.stream.state_dict()
    to.stream.load_state_dict(snapshot.driver.run.prompts)  # before it is said to be found
    try:
        _restore(config, to.workers, snapshot)
    except SnapshotLostError as error:
        sentence = f"Step {snapshot.step} in {snapshot.place} is not used: {error}."
        _tell(config, "snapshot-skipped", sentence, details)
        to.stream.load_state_dict(before)
        return None
    if to.peers:
        to.peers.goes_on_from(snapshot)
    _confirm_step(config, snapshot.driver.run)
    _tell(config, "restore", f"Restored step {snapshot.step} from {snapshot.place}.", details)
    return snapshot.driver


def _from_openrlhf(to: _Beginning, fresh: RunState) -> DriverState | None:
    """What OpenRLHF has left in --ckpt_path."""
    config, workers = to.config, to.workers
    if not openrlhf.is_there(config.checkpoints):
        return None
    try:
        found = openrlhf.find(config.checkpoints, workers.learners)
        position = _restore(config, workers, found)
    except (openrlhf.IncompleteError, UnreadableCheckpointError) as error:
        raise ResumeError(f"--ckpt_path: OpenRLHF's checkpoint cannot be read: {error}") from None
    if position is None:
        raise ResumeError(f"--ckpt_path: {found} does not say of which step it is (global_step)")
    sentence = (
        f"Goes on from OpenRLHF's {found}: step {position.step}, {position.prompts} prompts dealt. "
        "Their order within an epoch is another here."
    )
    _tell(config, "restore", sentence, {"step": position.step})
    prompts = openrlhf.prompts_at(position, fresh.prompts)
    to.stream.load_state_dict(prompts)
    return DriverState(replace(fresh, step=position.step, prompts=prompts))


def _restore(config: Config, workers: WorkerGroups, source: Source) -> Position | None:
    """Raises ResumeError for another model's, SnapshotLostError where a share is lost."""
    groups = workers.learners.values()
    try:
        answers = [group.call_ranks(Learner.restore, source) for group in groups]
        said = [answer.result()[0] for answer in answers]
    except ModelMismatchError as error:
        raise ResumeError(
            f"--pretrain {config.pretrain} is not the model that {_named(source)} was made with: "
            f"{error}. Give the model of that run, or another --run_dir"
        ) from None
    _tell_of_rates(config, workers)
    return said[0]  # the policy's files have it


def _tell_of_rates(config: Config, workers: WorkerGroups) -> None:
    """Flags that say another learning rate than what is gone on from was trained with."""
    by_flags = {
        "policy": config.policy_optimizer.learning_rate,
        "critic": config.critic_optimizer.learning_rate,
    }
    for role, group in workers.learners.items():
        before, now = group.call_rank0(Learner.restored_rate).result(), by_flags[role]
        if before is not None and before != now:
            sentence = (
                f"The {role}'s learning rate was {before:g} at its peak until now; from here on it "
                f"is {now:g}, as the flags say."
            )
            _tell(config, "learning-rate", sentence, {"role": role, "before": before, "now": now})


def _named(source: Source) -> str:
    known = isinstance(source, Path | OpenRLHF)
    return str(source) if known else "the snapshot in the nodes' memory"


def _tell(config: Config, kind: str, sentence: str, details: Mapping[str, Any]) -> None:
    print(sentence, flush=True)
    append_event(config.files.journal, kind, sentence, details, attempt=attempt_number())


def pending_rollouts(config: Config, beginning: DriverState) -> PendingRollouts | None:
    """Rollouts that were under way where the run goes on from; None: there are none.

    Raises ResumeError where there are, and this run would forget them.
    """
    if beginning.in_flight is None:
        return None
    found, step = PendingRollouts.parse(beginning.in_flight), beginning.run.step
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
            "Leave --load_checkpoint false out to go on from it, or give another --run_dir"
        )


def _newest(config: Config, steps: Iterable[int]) -> int | None:
    """The first of `steps` whose checkpoint is whole. Each other on the way is put aside, and named
    in the journal."""
    for step in steps:
        directory = checkpoint_path(config.checkpoints, step)
        fault = fault_of(directory)
        if fault is None:
            _confirm(config.files.journal, step)
            return step
        sentence = f"Checkpoint {directory.name} is skipped: {fault}."
        _tell(config, "checkpoint-skipped", sentence, {"step": step, "fault": fault})
        put_aside(directory)
    return None


def _confirm(journal: Path, step: int) -> None:
    """A crash between a manifest and its event leaves a whole checkpoint unannounced."""
    if not _is_told(journal, step, "checkpoint"):
        sentence = f"Checkpoint of step {step} found whole after a crash."
        append_event(journal, "checkpoint", sentence, {"step": step}, attempt=attempt_number())


def _confirm_step(config: Config, run: RunState) -> None:
    """So does one between a step's arrival at the nodes and its event: the step is finished."""
    if not _is_told(config.files.journal, run.step, "step", "step-found"):
        sentence = f"Step {run.step} found finished after a crash: reward {run.reward:.3f}."
        details = {"step": run.step, "samples": run.samples, "reward": run.reward}
        _tell(config, "step-found", sentence, details)


def _is_told(journal: Path, step: int, *kinds: str) -> bool:
    return any(
        event["kind"] in kinds and event["details"].get("step") == step
        for event in read_events(journal)
    )
