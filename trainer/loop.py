"""The training loop: the only place where the order of a step is written.

The driver holds no model. A line that waits, waits for actors; the forward passes of a step run at
the same time as the scoring, and the updates of policy and critic at the same time as each other.
A step is a function of (checkpoint, seed, step): nothing else that a process remembers has a part
in it. With asynchronous rollouts (`async_rollout`) a step also depends on when each rollout ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from contract.journal import teller
from contract.manifest import checkpoint_path, fault_of
from contract.run_dir import ExitCode
from contract.stop import Stopped, StopRequest
from env.types import Prompt, RewardFunction
from trainer.algorithms import batching
from trainer.algorithms.kl_control import next_coefficient
from trainer.checkpoint import best, resume
from trainer.checkpoint.checkpointer import Keeping
from trainer.checkpoint.writer import RunState
from trainer.cluster.restarts import Budget
from trainer.config.config import Config
from trainer.metrics import failed_samples, step_metrics
from trainer.metrics.evaluation import Evaluation
from trainer.metrics.recorder import Recorder, Stopwatch
from trainer.recovery import Disk, Memory, Mending, Repair, Source, WentBackError
from trainer.rollout import async_rollout, dynamic_sampling, rewards
from trainer.rollout.async_rollout import AsyncRollouts
from trainer.rollout.generate import Rollouts
from trainer.rollout.prompts import Data
from trainer.rollout.rollout_state import PendingRollouts
from trainer.types import (
    BeyondRepairError,
    Completion,
    Experience,
    LostWorkerError,
    Metrics,
    Sample,
    Sequences,
    TrainingError,
)
from trainer.weight_sync import update
from trainer.workers import experience as estimates
from trainer.workers import peak_memory
from trainer.workers.experience import Estimates
from trainer.workers.groups import Team
from trainer.workers.protocols import Critic, Policy

if TYPE_CHECKING:
    from trainer.checkpoint.replication import Peers

T = TypeVar("T")


def train(
    config: Config,
    team: Team,
    data: Data,
    reward: RewardFunction,
    stop: StopRequest,
    peers: Peers | None = None,
) -> RunState:
    """Train to the last step. Returns the run's final state.

    Raises Stopped after a save where `stop` was requested, TrainingError where going on makes no
    sense, ResumeError where it must not begin, and what the reward function raises.
    """
    beginning = resume.begin(config, team, data.stream, peers)
    state = beginning.run
    rollouts = async_rollout.begin(config, team.engines, data.stream, reward, beginning)
    total_steps = config.total_steps(len(data.stream))
    recorder = Recorder(config, total_steps, state, lambda: peers.whole if peers else None)
    team.engines.before_waiting = lambda: recorder.repairs(recorder.state.step + 1)
    keeping = Keeping(config, team, recorder.finished, recorder.saved, peers)
    try:
        disk = Disk(config.checkpoints)
        sources: list[Source] = [Memory(peers), disk] if peers else [disk]
        fresh = state if state.step == 0 else None
        budget = Budget(config.max_repairs)
        tell = teller(config.files.journal)
        repair = Repair(team, sources, tell, budget, recorder.finished, fresh)
        run = _Run(config, team, data, reward, recorder, rollouts, keeping, repair)
        state = run.to_the_end(state, stop)
    except BaseException as error:
        if isinstance(error, Exception):
            keeping.salvage()
        recorder.close(ExitCode.JOB_FAILED)
        raise
    recorder.close(ExitCode.FINISHED)
    return state


@dataclass(frozen=True, slots=True)
class _Run:
    config: Config
    team: Team
    data: Data
    reward: RewardFunction
    recorder: Recorder
    async_rollouts: AsyncRollouts | None
    """None where a step's rollouts begin when the last step has ended."""
    keeping: Keeping
    repair: Repair

    def to_the_end(self, state: RunState, stop: StopRequest) -> RunState:
        try:
            self._mended(state, lambda state: self._publish(state.step))
        except WentBackError as back:
            state = back.state
        while True:
            try:
                return self._go_on(state, stop)
            except WentBackError as back:
                state = back.state

    def _go_on(self, state: RunState, stop: StopRequest) -> RunState:
        """To the end. Raises WentBackError where steps are to be done again."""
        total = self.recorder.total_steps
        if not stop.requested:
            state = self._mended(state, self._evaluate_where_due)
        if stop.requested and state.step < total:
            self._save_where_missing(state)
            raise Stopped(f"Stopped before step {state.step + 1} of {total}.")
        for step in range(state.step + 1, total + 1):
            state = self._mended(state, partial(self._step, step=step))
            self._mended(state, self._hold)
            self.repair.progress(step)
            if not stop.requested:  # else there may be no time for more than the save
                state = self._mended(state, self._evaluate_where_due)
            last, stopping = step == total, stop.requested
            save = last or _due(step, self.config.save_steps) or stopping
            self._mended(state, partial(self._save, due=save, finish=last or stopping))
            if stopping and not last:
                raise Stopped(f"Stopped after step {step} of {total}, which is saved.")
        if not self.config.disable_ds_ckpt:
            self._save_where_missing(state)
        state = self._mended(state, self._evaluate_where_due)
        self._mended(state, self._export)
        return state

    def _hold(self, state: RunState) -> None:
        self.keeping.hold(state, self._pending_rollouts)

    def _save(self, state: RunState, *, due: bool, finish: bool) -> None:
        self.keeping.save(state, due=due, pending=self._pending_rollouts)
        if finish:
            self.keeping.finish()

    def _save_where_missing(self, state: RunState) -> None:
        """Where it came from the memory of nodes, which will not be held any longer."""
        directory = checkpoint_path(self.config.checkpoints, state.step)
        if state.step and fault_of(directory, checksums=False):
            self._mended(state, partial(self._save, due=True, finish=True))

    @property
    def _pending_rollouts(self) -> Callable[[], PendingRollouts] | None:
        return self.async_rollouts.pending if self.async_rollouts else None

    def _mended(self, state: RunState, act: Callable[[RunState], T]) -> T:
        mending = Mending(
            self.repair, self.keeping, self.recorder, self._rewind, self._publish, self._oldest
        )
        return mending.done(state, act)

    def _oldest(self) -> int:
        """The first step that rollouts can go back to."""
        return self.async_rollouts.oldest if self.async_rollouts else 0

    def _rewind(self, state: RunState) -> None:
        """Prompts and rollouts are where they were then."""
        if self.async_rollouts:
            self.async_rollouts.go_back(state.step)
        else:
            self.data.stream.load_state_dict(state.prompts)

    def _export(self, state: RunState) -> None:
        self.team.policy.together(Policy.export, self.config.exported).result()
        if self.team.critic and self.config.save_value_network:
            self.team.critic.together(Critic.export, self.config.exported_critic).result()

    def _step(self, state: RunState, step: int) -> RunState:
        watch = self.recorder.stopwatch(step)
        samples, forward = self._samples(step, watch)
        try:
            return self._learn(state, step, samples, forward, watch)
        except (LostWorkerError, BeyondRepairError):
            raise  # nothing is wrong with the samples
        except TrainingError as error:
            kept = failed_samples.save(self.config.files.root, step, samples)
            raise TrainingError(f"Step {step}: {error}. Its samples are in {kept}") from error

    def _samples(self, step: int, watch: Stopwatch) -> tuple[list[Sample], Estimates]:
        """Scored samples, and the models' forward passes over them under way."""
        if self.async_rollouts:
            batch = self.async_rollouts.batch(step)
            watch.lap("wait")
            watch.metrics |= batch.metrics
            return batch.samples, self._forward([s.completion for s in batch.samples])
        if self.config.dynamic_filtering:
            found = dynamic_sampling.collect(
                lambda missing: rewards.scored(self.reward, self._write(missing, step)),
                self.config.rollout_batch_size,
                self.config.n_samples_per_prompt,
                self.config.dynamic_filtering_reward_range,
            )
            self._rest()
            watch.lap("generate")
            watch.metrics["dynamic_filtering_pass_rate"] = found.pass_rate
            return found.samples, self._forward([s.completion for s in found.samples])
        written = self._write(self.config.rollout_batch_size, step)
        self._rest()
        watch.lap("generate")
        forward = self._forward([completion for _, completion in written])
        samples = self._score(written)
        watch.lap("reward")
        return samples, forward

    def _learn(
        self,
        state: RunState,
        step: int,
        samples: list[Sample],
        forward: Estimates,
        watch: Stopwatch,
    ) -> RunState:
        config = self.config
        worth, moments = rewards.shaped(config, samples, state.reward_moments)
        # A steered weight goes on from where it was; a fixed one is the flag's, whatever it was.
        kl_coef = (state.kl_coef if config.steers_kl else None) or config.init_kl_coef
        with self._rollouts_meanwhile():
            experience = estimates.finish(
                forward,
                worth,
                estimates.estimator_of(config, kl_coef),
                loss_kl_coef=kl_coef if config.use_kl_loss else 0.0,
            )
            watch.lap("forward")
            metrics = self._update(experience, step) | peak_memory.of(self.team)
            watch.lap("update")
        self._publish(step)
        watch.lap("publish")
        outcome = step_metrics.of(
            samples, experience, metrics | {"kl_coef": kl_coef}, watch, config
        )
        state = replace(
            state,
            step=step,
            prompts=self.data.stream.state_dict(),
            samples=state.samples + int(experience.sequences.actions.any(axis=1).sum()),
            reward=outcome.reward,
            reward_first=outcome.reward if state.reward_first is None else state.reward_first,
            kl_coef=next_coefficient(
                kl_coef,
                outcome.kl,
                target=config.kl_target,
                horizon=config.kl_horizon,
                samples=len(samples),
            )
            if config.steers_kl
            else None,
            reward_moments=moments,
            wandb_id=self.recorder.wandb_id,
        )
        self.keeping.settle()
        self.recorder.made(state, outcome)
        return state

    def _rollouts_meanwhile(self) -> AbstractContextManager[None]:
        return self.async_rollouts.meanwhile() if self.async_rollouts else nullcontext()

    def _write(self, missing: int, step: int) -> list[tuple[Prompt, Completion]]:
        """Completions of the last `missing` prompts of the step, stamped with their version."""
        place = self.config.rollout_batch_size - missing
        return self._rollouts.generate(self.data.stream.next_batch(missing), step, place)

    def _rest(self) -> None:
        """The step's rollouts are written: what follows may have the engines' memory."""
        if self.config.vllm_enable_sleep:
            update.sleep(self.team.engines)

    def _publish(self, version: int) -> None:
        config, team = self.config, self.team
        wake, backend = config.vllm_enable_sleep, config.vllm_sync_backend
        with self.async_rollouts.new_weights(version) if self.async_rollouts else nullcontext():
            update.weights(team.policy, team.engines, version, wake=wake, backend=backend)

    def _score(self, written: list[tuple[Prompt, Completion]]) -> list[Sample]:
        """A failure is a status, never a zero."""
        return rewards.score(self.reward, written)

    def _forward(self, completions: list[Completion]) -> Estimates:
        return estimates.start(self.team, Sequences.collate(completions), self.config)

    def _update(self, experience: Experience, step: int) -> Metrics:
        pending = []
        if self.team.critic:
            pending.append(self.team.critic.together(Critic.update, experience, step))
        if step > self.config.freezing_actor_steps:
            pending.append(self.team.policy.together(Policy.update, experience, step))
        of_models = [batching.combine_metrics(part.result()) for part in pending]
        return {name: value for metrics in of_models for name, value in metrics.items()}

    def _evaluate_where_due(self, state: RunState) -> RunState:
        """Once a step. One that a stop has left out is due until it is made, in a later attempt."""
        ends = state.step in (0, self.recorder.total_steps)
        due = ends or _due(state.step, self.config.eval_steps)
        return self._evaluate(state) if due and state.evaluated != state.step else state

    def _evaluate(self, state: RunState) -> RunState:
        if not self.data.held_out:
            return state
        k = self.config.eval_n_samples_per_prompt
        written = self._rollouts.held_out(self.data.held_out, k, self.config.eval_temperature)
        evaluation = Evaluation.of(self._score(written), k)
        self.keeping.settle()
        self.recorder.evaluated(state.step, evaluation)
        before = evaluation.pass1 if state.step == 0 else state.eval_before
        state = replace(state, eval=evaluation.pass1, eval_before=before, evaluated=state.step)
        state = self._keep_the_best(state, evaluation)
        self.recorder.progress(state)
        self.keeping.evaluated(state)
        return state

    def _keep_the_best(self, state: RunState, evaluation: Evaluation) -> RunState:
        """Export the policy where it is better than it ever was in this run."""
        key = self.config.best_metric
        if key is None or state.step == 0:
            return state
        value = evaluation.row()[key]
        if state.best is not None and value <= state.best:
            return state
        best.keep(self.team.policy, self.config.files.best, state.step)
        self.recorder.best(state.step, key, value)
        return replace(state, best=value)

    @property
    def _rollouts(self) -> Rollouts:
        return Rollouts.of(self.config, self.team.engines)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
