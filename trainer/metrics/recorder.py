"""Records a run: events in the journal, metrics for curves, progress.json for observers."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from contract import lease
from contract.durations import counted
from contract.journal import EXPORT, NO_REWARD, attempt_number, journal_writer
from contract.launch import rank_times
from contract.launch.rank_times import RankTime
from contract.manifest import checkpoint_path, lineage_of, newest_checkpoint
from contract.metrics.json_lines import JsonLines
from contract.options import ended
from contract.progress import Phase, PhaseFile, Progress, held_out
from contract.redaction import redact, secret_texts
from trainer.checkpoint.checkpointer import Saved
from trainer.checkpoint.replication import Replicator
from trainer.checkpoint.resume import finished_before
from trainer.checkpoint.writer import RunState
from trainer.config.config import Config
from trainer.metrics.callbacks import CheckpointEnd, EvaluationEnd, StepEnd
from trainer.metrics.evaluation import Evaluation
from trainer.metrics.outputs import Outputs
from trainer.metrics.samples import LARGEST_FILE
from trainer.metrics.sinks import MetricRow
from trainer.metrics.tracing import TracedStep
from trainer.types import Sample

LONGEST_REASON = 300
"""Characters of why a sample has no reward; the samples' file has it whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The results of one step."""

    row: MetricRow
    reward: float
    """Mean over the samples with a score."""
    kl: float
    tokens: int
    """Tokens of all sequences, prompts included."""
    seconds: float
    began: float
    """When the step began, in seconds of the epoch."""
    phases: Mapping[str, float]
    """Seconds of each phase, in the order of the step."""
    samples: Sequence[Sample]
    rank_times: Mapping[str, Sequence[RankTime]] = field(default_factory=dict)
    """Role → how long each of its ranks computed."""


class NoReward:
    """Says how many samples of a step have no reward, and why: once, then whenever that doubles."""

    def __init__(self) -> None:
        self._told = 0.0
        """The share of samples that was told last."""

    def sentence(self, step: int, samples: Sequence[Sample]) -> str:
        """Return what to tell of a step; "" if that is nothing, or nothing new."""
        errors = [sample.score.error for sample in samples if not sample.score.ok]
        share = len(errors) / max(1, len(samples))
        if not errors or share < 2 * self._told:
            return ""
        self._told = share
        have, count = ("has", "It does") if len(errors) == 1 else ("have", "They do")
        why, times = Counter(errors).most_common(1)[0]
        why = " ".join(why.split()) or "no reason is known"
        why = why if len(why) <= LONGEST_REASON else f"{why[:LONGEST_REASON]}…"
        most = "" if times == len(errors) else f"for {times} of them, "
        return (
            f"{len(errors)} of {counted(len(samples), 'sample')} of step {step} {have} no reward: "
            f"{most}{ended(why)} {count} not count in training."
        )


@dataclass
class Recorder:
    """Writes all files of a run except checkpoints. The driver has one for each attempt."""

    config: Config
    total_steps: int
    state: RunState
    """The state at the attempt's start, then the newest state in progress.json."""
    outputs: Outputs
    peers: Replicator | None = None
    _checkpoint: int | None = None
    _made: list[tuple[RunState, Step]] = field(default_factory=list)
    """The newest steps, while they are not durable."""
    _last: Step | None = None
    _untold: tuple[int, Step] | None = None
    """The newest step, until callbacks were told."""
    _step_seconds: list[float] = field(default_factory=list)
    _ready: bool = False
    _no_reward: NoReward = field(default_factory=NoReward)
    _finishing: threading.Lock = field(default_factory=threading.Lock)
    """Held while steps become durable."""
    _replacing: threading.Lock = field(default_factory=threading.Lock)
    """Held while progress.json is replaced."""

    def __post_init__(self) -> None:
        self._open_lines(self.state.step)
        self._phase = PhaseFile(self.config.files.phase)
        step = self.state.step
        # The state may come from the nodes' memory, and the newest on disk be of an earlier step.
        self._checkpoint = newest_checkpoint(
            self.config.checkpoints, checksums=False, lineage=lineage_of(self.config.files)
        )
        finished = finished_before(self.config) or 0
        text = beginning(step, self.total_steps, finished, asked=bool(self.config.load_step))
        self._event("resume", text, step=step)
        self._correct(max(step, finished))

    @property
    def wandb_id(self) -> str | None:
        return self.outputs.wandb.run_id if self.outputs.wandb else self.state.wandb_id

    def engines_ready(self, step: int) -> None:
        """Journal, once an attempt, that models are loaded and engines have the policy."""
        if not self._ready:
            self._event("ready", "The models are loaded, and the engines are ready.", step=step)
        self._ready = True

    def stopwatch(self, step: int) -> Stopwatch:
        """Return a stopwatch for the phases of a step. Each lap writes a sign of life."""
        return Stopwatch(lambda part: self._heartbeat(step, part))

    def log_step(self, state: RunState, step: Step) -> None:
        """Log a step that was trained. It counts as finished once it is durable."""
        lease.check(lease.mine())
        light = replace(step, samples=())  # they may be large
        with self._finishing:
            self._made.append((state, light))
        self._untold = (state.step, light)
        if step.rank_times:
            self._rank_times.log(state.step, rank_times.as_row(step.rank_times))
        self._step_seconds = [*self._step_seconds[-19:], step.seconds]
        if state.step % self.config.logging_steps == 0 or state.step == self.total_steps:
            self._row(state.step, step.row)
            rows = self.outputs.rows.of(step.samples)
            for row in rows:
                self._samples.log(state.step, row)
            self.outputs.samples(state.step, rows)
        if self.outputs.traces:
            self.outputs.traces.step(_traced(state.step, step))
        if sentence := self._no_reward.sentence(state.step, step.samples):
            self._event(NO_REWARD, sentence, step=state.step)
        self._heartbeat(state.step, "step")

    def step_ended(self) -> None:
        """Tell callbacks of the newest step, once. Raises CallbackError."""
        told, self._untold = self._untold, None
        if told is None:
            return
        number, step = told
        self.outputs.callbacks.step_end(
            StepEnd(
                step=number,
                total_steps=self.total_steps,
                reward=step.reward,
                seconds=step.seconds,
                metrics=step.row,
            )
        )

    def step_durable(self, step: int) -> None:
        """The steps up to this one are durable. Does nothing if that is known."""
        with self._finishing:
            while self._made and self._made[0][0].step <= step:
                state, self._last = self._made.pop(0)
                sentence = f"Step {state.step} of {self.total_steps}: reward {state.reward:.3f}."
                counted = {"samples": state.samples, "tokens": self._last.tokens}
                self._event("step", sentence, step=state.step, reward=state.reward, **counted)
                self.progress(state)

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """Log an evaluation, in place of one of the same step whose result was lost."""
        row = evaluation.row()
        self._lines.replace(step, row, "eval/accuracy")
        self.outputs.log(step, row)
        is_reward = evaluation.is_graded
        what, mean, best = held_out(evaluation.pass1, evaluation.passk, is_reward=is_reward)
        sentence = f"Held-out {what} after step {step}: {mean}"
        if evaluation.k > 1:
            sentence += f", of the best of {evaluation.k} {best}"
        details = {"accuracy": evaluation.pass1, **({"is_reward": True} if is_reward else {})}
        self._event("eval", f"{sentence}.", step=step, **details)
        self._heartbeat(step, "eval")
        self.outputs.callbacks.evaluation(
            EvaluationEnd(step=step, accuracy=evaluation.pass1, metrics=row)
        )

    def best(self, step: int, name: str, value: float, before: float | None) -> None:
        """Journal the best policy after a step. `before`: the value before the first step."""
        sentence = f"The best policy so far is that of step {step}: {name} {value:.3f}."
        if before is not None and before > value:
            sentence = (
                f"The model before training is the best so far: {name} {before:.3f}. After a step, "
                f"that of step {step} is the best: {value:.3f}."
            )
        self._event("best", sentence, step=step, value=value)

    def checkpoint_written(self, checkpoint: Saved) -> None:
        """A checkpoint is complete. Newer steps may have been trained since."""
        step = self._checkpoint = checkpoint.step
        self.step_durable(step)
        self._event(
            "checkpoint",
            f"Checkpoint of step {step} written.",
            step=step,
            bytes=checkpoint.bytes,
            stall_seconds=round(checkpoint.stall_seconds, 4),
            seconds=round(checkpoint.seconds, 4),
        )
        self.progress()
        self._heartbeat(step, "checkpoint")
        if self.outputs.traces:
            self.outputs.traces.checkpoint(
                step, checkpoint.seconds, bytes=checkpoint.bytes, stall=checkpoint.stall_seconds
            )
        directory = checkpoint_path(self.config.checkpoints, step)
        self.outputs.callbacks.checkpoint(
            CheckpointEnd(step=step, directory=directory, bytes=checkpoint.bytes)
        )

    def exported(self, step: int) -> None:
        """The model is written: the head takes exit code 0 for an end only after this event."""
        self.step_durable(step)
        model = str(self.config.exported)
        self._event(EXPORT, f"The model of step {step} is in {model}.", step=step, model=model)

    def progress(self, state: RunState | None = None) -> None:
        """Replace progress.json, once this attempt has finished a step.

        `state`: the newest state; None: it is unchanged. The thread that replicates a step calls
        this, too, while a checkpoint is completed.
        """
        with self._replacing:
            self.state = state or self.state
            self._replace_progress()

    def _replace_progress(self) -> None:
        state = self.state
        if self._last is None:
            return
        Progress(
            step=state.step,
            total_steps=self.total_steps,
            samples=state.samples,
            attempt=attempt_number(),
            reward=state.reward,
            reward_first=state.reward if state.reward_first is None else state.reward_first,
            kl=self._last.kl,
            eval=state.eval,
            eval_before=state.eval_before,
            eval_step=state.evaluated,
            eval_is_reward=state.eval_is_reward,
            tokens_per_second=self._last.tokens / self._last.seconds,
            step_seconds=self._last.seconds,
            eta_seconds=fmean(self._step_seconds) * (self.total_steps - state.step),
            checkpoint=self._checkpoint,
            in_memory=self.peers.complete if self.peers else None,
        ).write(self.config.files.progress)

    def close(self, exit_code: int, error: BaseException | None = None) -> None:
        """`error`: what ends the attempt, unless it was asked to stop."""
        name = type(error).__name__
        why = redact(f"{name}: {error}", secret_texts(os.environ)) if error else None
        self.outputs.close(exit_code, why and f"{self.config.files.root}: {why}")
        self._phase.close()

    def repair_begins(self, step: int) -> None:
        """Write a sign of life: a repair begins, which may take as long as a start."""
        self._heartbeat(step, "repair")

    def goes_back(self, step: int) -> None:
        """The steps after `step` are repeated."""
        with self._finishing:
            self._made.clear()
        self._untold = None
        self._open_lines(step)

    def _correct(self, newest: int) -> None:
        """Correct a progress.json with a step that nothing holds and the journal does not have.

        `newest`: the newest step that is held or in the journal.
        """
        path = self.config.files.progress
        shown = Progress.read(path)
        if shown is None or shown.step <= newest:
            return
        self._event(
            "progress-corrected",
            f"{path.name} said step {shown.step}. Nothing that is held, and no line of the "
            f"journal, is of a step after {newest}: it is corrected.",
            step=newest,
            said=shown.step,
        )
        replace(shown, step=newest, checkpoint=self._checkpoint, in_memory=None).write(path)

    def _open_lines(self, step: int) -> None:
        """Open the files with lines for each step, without lines of steps after `step`."""
        files = self.config.files
        self._lines = JsonLines(files.metrics, step)
        self._samples = JsonLines(files.samples, step, largest=LARGEST_FILE)
        self._rank_times = JsonLines(files.rank_times, step, largest=rank_times.LARGEST_FILE)

    def _heartbeat(self, step: int, part: str) -> None:
        self._phase.write(Phase(attempt_number(), step, part))

    def _row(self, step: int, row: MetricRow) -> None:
        self._lines.log(step, row)
        self.outputs.log(step, row)

    def _event(self, kind: str, sentence: str, **details: float | str) -> None:
        journal_writer(self.config.files.journal)(kind, sentence, **details)


def _traced(number: int, step: Step) -> TracedStep:
    values = {"reward": step.reward, "kl": step.kl, "tokens": step.tokens}
    return TracedStep(
        step=number,
        began=step.began,
        phases=step.phases,
        attributes={f"rollcall.{name}": value for name, value in values.items()}
        | {"rollcall.samples": len(step.samples)},
    )


def beginning(step: int, total_steps: int, finished: int, *, asked: bool = False) -> str:
    """Return a sentence: the step at which an attempt begins, and the steps that are repeated.

    `finished`: finished steps of earlier attempts. `asked`: --load_step names the step.
    """
    if step > total_steps:
        return f"No step is left: the run has {step}, and its flags ask for {total_steps}."
    where = (
        f"Training goes on after step {step} of {total_steps}"
        if step
        else f"Training starts: {counted(total_steps, 'step')} to go"
    )
    if finished > step:
        single = finished == step + 1
        again = f"{counted(finished - step, 'step')} {'is' if single else 'are'}"
        lost = f"no checkpoint or snapshot has {'its' if single else 'their'} result"
        return f"{where}; {again} repeated, because {'--load_step asks for it' if asked else lost}."
    return f"{where}: no finished step is lost." if step else f"{where}."


class Stopwatch:
    """Measures the seconds of each phase of a step, and of the whole step."""

    def __init__(self, tell: Callable[[str], None] = lambda phase: None) -> None:
        """`tell`: called with each phase that has ended."""
        self._tell = tell
        self.began = time.time()
        """When the step began, in seconds of the epoch."""
        self._start = self._lap = time.perf_counter()
        self.phases: dict[str, float] = {}
        self.metrics: dict[str, float] = {}
        """Further metrics of the step."""
        self.rank_times: dict[str, Sequence[RankTime]] = {}
        """Role → how long each of its ranks computed."""

    def lap(self, phase: str) -> None:
        """The time since the last lap was `phase`."""
        now = time.perf_counter()
        self.phases[f"timing/{phase}"] = now - self._lap
        self._lap = now
        self._tell(phase)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start
