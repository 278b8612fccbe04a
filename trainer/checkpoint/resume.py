"""The state that a run resumes from. `fault_of` in contract/manifest.py verifies a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contract.journal import EventSource, append_event, attempt_number, newest_finished
from contract.journal_file.index import newest_first
from contract.manifest import (
    MANIFEST,
    Lineage,
    checkpoint_path,
    fault_of,
    is_strange,
    keep_origin,
    leave,
    lineage_of,
    made_by,
    newest_checkpoint,
    put_aside,
    steps_on_disk,
)
from contract.progress import Progress
from env.data.prompts import PromptStream
from trainer.checkpoint import head_file_store, openrlhf
from trainer.checkpoint.protocol import Checkpointable, Snapshot, Source
from trainer.checkpoint.replication import Replicator
from trainer.checkpoint.restore_progress import reported
from trainer.checkpoint.writer import IN_FLIGHT, RUN_STATE, DriverState, RunState
from trainer.cluster.worker_group import WorkerGroup
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.types import (
    AdapterMismatchError,
    LostWorkerError,
    MissingModelError,
    ModelMismatchError,
    SnapshotLostError,
    UnknownShardError,
)

OTHER_VERSION = "Go on with the version of Rollcall that wrote it, or give another --run_dir"
Learners = Mapping[str, WorkerGroup[Checkpointable]]


class ResumeError(ValueError):
    """The run cannot begin as its flags say, because of what earlier runs left."""


def begin(
    config: Config,
    learners: Learners,
    stream: PromptStream,
    replicator: Replicator | None = None,
) -> DriverState:
    """Return the newest complete state, in memory or on disk, or a fresh one.

    With --load_step it is the state of that checkpoint. Restores learners and prompt cursor. Raises
    ResumeError if there are checkpoints and --load_checkpoint is false, or if the named checkpoint
    is incomplete; PromptError if the prompts have changed.
    """
    alpha = config.lora.alpha if config.lora.rank else None
    fresh = DriverState(
        RunState(step=0, seed=config.train.seed, prompts=stream.state_dict(), lora_alpha=alpha)
    )
    if not config.load_checkpoint:
        _refuse_leftovers(config.checkpoints)
        if replicator:
            replicator.discard()
        keep_origin(config.files, Lineage(lineage_of(config.files).run))
        return fresh
    to = _Beginning(config, learners, stream, replicator, lineage_of(config.files))
    if config.load_step:
        named = _named_step(to, config.load_step)
        _keep_origin(to, named.run.step, anew=True)
        return _with_alpha(named, alpha)
    found = _newest_held(to, _newest_possible(config), steps_on_disk(config.checkpoints))
    if found is None and openrlhf.is_there(config.checkpoints):
        raise ResumeError(
            f"--ckpt_path: {config.checkpoints} has OpenRLHF's checkpoints. Convert them first, by "
            "`python -m trainer.import_openrlhf DIRECTORY --trust_pickles` with this run's flags"
        )
    _keep_origin(to, found.run.step if found else 0)
    return _with_alpha(found, alpha) if found else fresh


def _with_alpha(state: DriverState, alpha: int | None) -> DriverState:
    """Return a state that says the scale of the adapters, as states of older versions do not."""
    return replace(state, run=replace(state.run, lora_alpha=alpha))


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What is brought to the state that the run resumes from."""

    config: Config
    learners: Learners
    stream: PromptStream
    replicator: Replicator | None
    lineage: Lineage


def _keep_origin(to: _Beginning, step: int, *, anew: bool = False) -> None:
    """Keep from where the run begins, unless it has begun. `anew`: --load_step names the step."""
    if to.lineage.begun and not anew:
        return
    directories = [
        checkpoint_path(to.config.checkpoints, one)
        for one in steps_on_disk(to.config.checkpoints)
        if one <= step
    ]
    found = {made_by(directory).run for directory in directories}
    others = {run for run in found if run is not None} - {to.lineage.run}
    keep_origin(to.config.files, replace(to.lineage, step=step, origins=frozenset(others)))


def _named_step(to: _Beginning, step: int) -> DriverState:
    """Return the state of the checkpoint of `step`; what is later is discarded or put aside."""
    config, directory = to.config, checkpoint_path(to.config.checkpoints, step)
    found = None
    if (fault := fault_of(directory)) is None:
        found, fault = _while_whole(to, step)
    if found is None:
        raise ResumeError(f"--load_step {step}: {directory} is not a complete checkpoint: {fault}")
    if to.replicator:
        to.replicator.discard()
    for one in steps_on_disk(config.checkpoints):
        later = checkpoint_path(config.checkpoints, one)
        if one > step and (later / MANIFEST).exists():
            sentence = f"The checkpoint of step {one} is put aside: --load_step {step} goes back."
            _tell(config, "checkpoint-skipped", sentence, {"step": one})
            leave(later)
    return found


def _newest_possible(config: Config) -> int | None:
    """Return the newest step that a snapshot can have; None if that is unknown.

    An absent node may return with steps that the run has since rolled back.
    """
    told, finished = Progress.read(config.files.progress), finished_before(config)
    known = [finished if finished is not None else -1, told.step if told else -1]
    return max(known) + 1 if max(known) >= 0 else None


def _newest_held(to: _Beginning, at_most: int | None, steps: Sequence[int]) -> DriverState | None:
    """Return the newest state in the nodes' memory or on disk; in memory if both have it.

    `at_most`: the newest step that is looked for in memory. `steps`: those on disk.
    """
    config = to.config
    snapshot = to.replicator.newest(at_most) if to.replicator else None
    in_memory = snapshot.step if snapshot else 0
    # A checkpoint is read completely to be trusted: older ones only if they are needed.
    on_disk = _newest(config, [step for step in steps if step >= in_memory], to.lineage)
    if snapshot and on_disk in (None, in_memory):
        if found := _from_memory(to, snapshot):
            return found
        if on_disk is None:
            return _older(to, in_memory, steps)
    if on_disk is None:
        return None
    state, fault = _while_whole(to, on_disk)
    if fault:
        _skip(config, on_disk, fault, to.lineage)
        return _older(to, on_disk, steps)
    return state


def _older(to: _Beginning, step: int, steps: Sequence[int]) -> DriverState | None:
    """Return the newest state that is held of a step before `step`, which could not be restored."""
    older = _newest_held(to, step - 1, [one for one in steps if one < step])
    if older is None:
        _start_anew(to.learners)
    return older


def _while_whole(to: _Beginning, step: int) -> tuple[DriverState | None, str | None]:
    """Return the state of a checkpoint, or what has become of its files since they were checked."""
    before = to.stream.state_dict()
    try:
        return _from_disk(to, step), None
    except LostWorkerError:
        raise
    except Exception:
        fault = fault_of(checkpoint_path(to.config.checkpoints, step), checksums=False)
        if fault is None:
            raise
        to.stream.load_state_dict(before)
        return None, fault


def _start_anew(learners: Learners) -> None:
    """Restart all learners: some may have been restored before another's shard was missing.

    Raises NoRoomError if they cannot be restarted.
    """
    for group in learners.values():
        group.restart(range(len(group)))


def finished_before(config: Config) -> int | None:
    """Return the last finished step of the run; None if none is known. Raises OSError."""
    finished = newest_finished(config.files.journal)
    if finished is None and (told := Progress.read(config.files.progress)):
        return told.step  # the journal is lost
    return finished


def _from_disk(to: _Beginning, step: int) -> DriverState:
    config, directory = to.config, checkpoint_path(to.config.checkpoints, step)
    run, file = _run_state(directory), directory / IN_FLIGHT
    to.stream.load_state_dict(run.prompts)
    source = head_file_store.place(config, directory)
    with reported(config, source, run.step):
        _restore(config, to.learners, source, run)
    _tell(config, "restore", f"Restored from {directory.name}.", {"step": run.step})
    return DriverState(run, file.read_bytes() if file.exists() else None)


def _run_state(directory: Path) -> RunState:
    """Raises ResumeError if this version cannot read the state."""
    try:
        return RunState.read(directory)
    except ValueError as error:
        raise ResumeError(
            f"{directory / RUN_STATE} cannot be read: {error}. {OTHER_VERSION}"
        ) from None


def _from_memory(to: _Beginning, snapshot: Snapshot) -> DriverState | None:
    """Return None if no node has all of it any more; the prompt cursor is then unchanged."""
    config, details = to.config, {"step": snapshot.step}
    before = to.stream.state_dict()
    to.stream.load_state_dict(
        snapshot.driver.run.prompts
    )  # before the journal says that it is restored
    try:
        _restore(config, to.learners, snapshot, snapshot.driver.run)
    except SnapshotLostError as error:
        sentence = f"Step {snapshot.step} in {snapshot.place} is not used: {error}."
        _tell(config, "snapshot-skipped", sentence, details)
        to.stream.load_state_dict(before)
        return None
    if to.replicator:
        to.replicator.adopt(snapshot)
    _confirm_step(config, snapshot.driver.run)
    _tell(config, "restore", f"Restored step {snapshot.step} from {snapshot.place}.", details)
    return snapshot.driver


def restore_learners(learners: Learners, source: Source) -> None:
    """Restore all ranks of all learners at the same time, and wait for them."""
    groups = learners.values()
    for restored in [group.call_ranks(Checkpointable.restore, source) for group in groups]:
        restored.result()


def _restore(config: Config, learners: Learners, source: Source, run: RunState) -> None:
    """Raises SnapshotLostError for a lost shard.

    Raises ResumeError if the state is another model's or another version's, or if there is none.
    """
    try:
        restore_learners(learners, source)
        _check_alpha(config, run)
    except AdapterMismatchError as error:
        raise ResumeError(
            f"{_named(source)} does not fit the flags of LoRA: {error}. Give the flags of that "
            "run, or another --run_dir"
        ) from None
    except ModelMismatchError as error:
        raise ResumeError(
            f"--pretrain {config.pretrain} is not the model that {_named(source)} was made with: "
            f"{error}. Give the model of that run, or another --run_dir"
        ) from None
    except MissingModelError as error:
        raise ResumeError(
            f"{_named(source)} has no {error}: the run had none until now. Leave out the flag that "
            "asks for it, such as --advantage_estimator gae, or give another --run_dir"
        ) from None
    except UnknownShardError as error:
        raise ResumeError(f"{error}. {OTHER_VERSION}") from None
    _tell_of_rates(config, learners)


def _check_alpha(config: Config, run: RunState) -> None:
    """Raise AdapterMismatchError if the adapters would have another scale than they had."""
    before, now = run.lora_alpha, config.lora.alpha
    if config.lora.rank and before not in (None, now):
        raise AdapterMismatchError(f"its adapters have --lora_alpha {before}, and here it is {now}")


def _tell_of_rates(config: Config, learners: Learners) -> None:
    """Report each learning rate that differs from the one before the restart."""
    by_flags: dict[str, float] = {
        Role.POLICY: config.policy_optimizer.learning_rate,
        Role.CRITIC: config.critic_optimizer.learning_rate,
    }
    for role, group in learners.items():
        before, now = group.call_rank0(Checkpointable.restored_rate).result(), by_flags[role]
        if before is not None and before != now:
            sentence = (
                f"The {role}'s learning rate was {before:g} at its peak until now; from here on it "
                f"is {now:g}, as the flags say."
            )
            _tell(config, "learning-rate", sentence, {"role": role, "before": before, "now": now})


def _named(source: Source) -> str:
    if isinstance(source, Snapshot):
        return "the snapshot in the nodes' memory"
    return str(source if isinstance(source, Path) else source.path)


def _tell(config: Config, kind: str, sentence: str, details: Mapping[str, Any]) -> None:
    print(sentence, flush=True)
    append_event(
        config.files.journal, kind, sentence, details, source=EventSource(attempt=attempt_number())
    )


def _refuse_leftovers(checkpoints: Path) -> None:
    """Raise ResumeError if there are checkpoints: a later resume would mix up two runs' steps."""
    if (step := newest_checkpoint(checkpoints, checksums=False)) is not None:
        raise ResumeError(
            f"--ckpt_path: {checkpoints} holds a checkpoint of step {step}. "
            "Leave --load_checkpoint false out to go on from it, or give another --run_dir"
        )


def _newest(config: Config, steps: Iterable[int], ours: Lineage) -> int | None:
    """Return the first of `steps` whose checkpoint is complete; put aside those before it."""
    for step in steps:
        fault = fault_of(checkpoint_path(config.checkpoints, step), lineage=ours)
        if fault is None:
            _confirm(config.files.journal, step)
            return step
        _skip(config, step, fault, ours)
    return None


def _skip(config: Config, step: int, fault: str, ours: Lineage) -> None:
    """Report it, and put it aside; another run may go on from its own."""
    directory = checkpoint_path(config.checkpoints, step)
    sentence = f"Checkpoint {directory.name} is skipped: {fault}."
    _tell(config, "checkpoint-skipped", sentence, {"step": step, "fault": fault})
    if not is_strange(directory, ours):
        put_aside(directory)


def _confirm(journal: Path, step: int) -> None:
    """Write the checkpoint's event if a crash came between the manifest and the event."""
    if not _is_told(journal, step, "checkpoint"):
        sentence = f"Checkpoint of step {step} found whole after a crash."
        append_event(
            journal,
            "checkpoint",
            sentence,
            {"step": step},
            source=EventSource(attempt=attempt_number()),
        )


def _confirm_step(config: Config, run: RunState) -> None:
    """Write the step's event if a crash came between its replication and the event."""
    if not _is_told(config.files.journal, run.step, "step", "step-found"):
        sentence = f"Step {run.step} found finished after a crash: reward {run.reward:.3f}."
        details = {"step": run.step, "samples": run.samples, "reward": run.reward}
        _tell(config, "step-found", sentence, details)


def _is_told(journal: Path, step: int, *kinds: str) -> bool:
    """Return whether the run has told this step, or has gone on from it or a later one."""
    newest = next(newest_first(journal, *kinds, "resume"), None)
    return newest is not None and int(newest["details"]["step"]) >= step
