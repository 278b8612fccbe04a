"""The training loop: the only module that knows the order of a step.

The driver holds no model. It asks groups of workers and waits for their answers. The forward passes
of a step run while its rewards are computed; the updates of policy and critic run at the same time.
A step is a function of (checkpoint, seed, step) and of nothing else that a process remembers. With
asynchronous rollouts (`async_rollout`) a step also depends on when each rollout ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from contract.exit_codes import ExitCode
from contract.journal import journal_writer
from contract.manifest import checkpoint_path, fault_of
from contract.options import ended
from trainer.algorithms import advantages, batching
from trainer.algorithms.own_functions import OwnFunction
from trainer.checkpoint import head_file_store, resume
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.checkpoint.replication import Replicator
from trainer.checkpoint.writer import RunState
from trainer.cluster.stop import Stopped, StopRequest
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.metrics import samples as sample_files
from trainer.metrics import step_metrics
from trainer.metrics.outputs import Outputs
from trainer.metrics.recorder import Recorder, Stopwatch
from trainer.rollout import rewards
from trainer.rollout.source import RolloutSource
from trainer.training.evaluator import Evaluator, is_multiple
from trainer.training.inputs import TrainingInputs, rollout_source
from trainer.training.recovery import CheckpointsOnDisk, Recovery, ReplicasInMemory, StateStore
from trainer.types import (
    BeyondRepairError,
    LostWorkerError,
    Metrics,
    Sample,
    TrainingError,
    UserFormulaError,
)
from trainer.weight_sync import update
from trainer.workers.experience import ForwardPasses, Lesson, divide, make_lesson, start_forward
from trainer.workers.groups import WorkerGroups, peak_memory
from trainer.workers.protocols import Critic, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """The run state after its newest step, and what the loop has done since that step."""

    run: RunState
    lost: LostWorkerError | None = None
    """The loss of a process that the run has not recovered from yet."""
    published: bool = False
    """The engines have the policy's weights of this step."""
    awake: bool = False
    """The engines also have the memory that they need to write. It may be the models' otherwise."""
    held: bool = True
    """The step was given to replication, or was restored from there or from a checkpoint."""
    saved: bool = True
    """A checkpoint of the step was begun, or is not due."""
    complete: bool = False
    """The step's checkpoint is known to be complete."""
    exported: bool = False
    """The final model is written."""

    @property
    def step(self) -> int:
        return self.run.step


def train(
    config: Config,
    workers: WorkerGroups,
    inputs: TrainingInputs,
    stop: StopRequest,
    peers: Replicator | None = None,
) -> RunState:
    """Train to the last step. Returns the run's final state.

    Raises Stopped after a save if `stop` was requested, TrainingError if training cannot continue,
    ResumeError if it must not begin, CallbackError, and what the reward function raises.
    """
    own_estimator = OwnFunction.read("--advantage_estimator", config.advantage.estimator)
    stream = inputs.data.stream
    beginning = resume.begin(config, workers.learners, stream, peers)
    state = beginning.run
    reward = rewards.TimedReward(inputs.reward)
    inputs = replace(inputs, reward=reward)
    rollouts = rollout_source(config, workers, inputs, beginning)
    outputs = Outputs.open(config, state, inputs.reader, inputs.callbacks)
    recorder = Recorder(config, config.total_steps(len(stream)), state, outputs, peers)
    checkpointer = Checkpointer(config, workers.learners, workers.policy, recorder, peers)
    try:
        disk = CheckpointsOnDisk(config)
        stores: list[StateStore] = [ReplicasInMemory(peers), disk] if peers else [disk]
        fresh = state if state.step == 0 else None
        recovery = Recovery(workers, stores, journal_writer(config.files.journal), fresh)
        run = _Run(
            config=config,
            workers=workers,
            inputs=inputs,
            reward=reward,
            own_estimator=own_estimator,
            stop=stop,
            recorder=recorder,
            rollouts=rollouts,
            evaluator=Evaluator(config, workers, inputs, recorder),
            checkpointer=checkpointer,
            recovery=recovery,
        )
        state = run.to_the_end(state)
    except BaseException as error:
        if isinstance(error, Exception):
            checkpointer.try_flush()
        failed = isinstance(error, Exception) and not isinstance(error, Stopped)
        recorder.close(ExitCode.JOB_FAILED, error if failed else None)
        raise
    finally:
        rollouts.close()
    recorder.close(ExitCode.FINISHED)
    return state


Act = Callable[[LoopState], LoopState]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    config: Config
    workers: WorkerGroups
    inputs: TrainingInputs
    reward: rewards.TimedReward
    own_estimator: OwnFunction | None
    stop: StopRequest
    recorder: Recorder
    rollouts: RolloutSource
    evaluator: Evaluator
    checkpointer: Checkpointer
    recovery: Recovery

    @property
    def _sleeps(self) -> bool:
        """Whether engines sleep while they do not write, so that models have their memory."""
        return self.config.vllm.enable_sleep

    def to_the_end(self, run: RunState) -> RunState:
        """Do what is due until nothing is. An act that loses a process is due again afterwards."""
        state = LoopState(run=run)
        while act := self._next_due(state):
            try:
                state = act(state)
            except LostWorkerError as loss:
                state = replace(state, lost=loss)
        return state.run

    def _next_due(self, state: LoopState) -> Act | None:
        """Raises Stopped if a stop was requested and the newest step has a checkpoint."""
        stopping, last = self.stop.requested, state.step >= self.recorder.total_steps
        must_be_complete = not self.config.disable_ds_ckpt if last else stopping
        evaluation_due = self.evaluator.is_due(state.run)
        if state.lost:
            return self._recover
        if not state.held:
            return self._hold
        if evaluation_due and not stopping:  # a stop may leave time for no more than the save
            return self._with_engines(self._evaluate, state)
        if not state.saved:
            return self._save
        if must_be_complete and not state.complete:
            return self._complete
        if stopping and not last:
            raise Stopped(self._stopped_at(state.step))
        if not last:
            return self._with_engines(self._step, state)
        if evaluation_due:
            return self._with_engines(self._evaluate, state)
        return None if state.exported else self._export

    def _with_engines(self, act: Act, state: LoopState) -> Act:
        """Return `act`, or what the engines need before it."""
        if not state.published:
            return self._publish
        return act if state.awake else self._wake

    def _stopped_at(self, step: int) -> str:
        total = self.recorder.total_steps
        if step == 0:
            return f"Stopped before step 1 of {total}."
        return f"Stopped after step {step} of {total}, which is saved."

    def _recover(self, state: LoopState) -> LoopState:
        """Bring all models, the prompts and the rollouts back to the newest step that is held."""
        assert state.lost is not None
        self.recorder.repair_begins(state.step + 1)
        self._let_engines_sleep()
        self.checkpointer.try_flush()
        point = self.recovery.recover(state.lost, state.run, self.rollouts.oldest)
        if point.store:  # the step is durable, even if its replication was reported as failed
            self.recorder.step_durable(point.run.step)
        self.recovery.report(state.lost, point, state.run)
        self.rollouts.go_back(point.run)
        # The prompts that asynchronous rollouts have dealt since then stay dealt.
        run = replace(point.run, prompts=self.inputs.data.stream.state_dict())
        if run.step == state.step:
            return replace(state, run=run, lost=None, published=False, awake=False)
        self.recorder.goes_back(run.step)
        self.checkpointer.roll_back(run.step)
        return LoopState(run=run)

    def _publish(self, state: LoopState) -> LoopState:
        self._publish_weights(state.step)
        self.recorder.engines_ready(state.step)
        return replace(state, published=True, awake=not self._sleeps)

    def _wake(self, state: LoopState) -> LoopState:
        update.wake_cache(self.workers.engines)
        return replace(state, awake=True)

    def _let_engines_sleep(self) -> None:
        """Free the GPUs' memory for the models, if engines share it with them."""
        if self._sleeps:
            update.sleep(self.workers.engines)

    def _hold(self, state: LoopState) -> LoopState:
        self.checkpointer.snapshot(state.run, self.rollouts.pending)
        self.workers.restarts.step_finished(state.step)
        self.recorder.step_ended()
        return replace(state, held=True)

    def _save(self, state: LoopState) -> LoopState:
        """Begin a checkpoint if one is due. The last one is completed at once."""
        final = self.stop.requested or state.step >= self.recorder.total_steps
        due = final or is_multiple(state.step, self.config.save_steps)
        self.checkpointer.save(state.run, due=due, pending=self.rollouts.pending)
        if final:
            self.checkpointer.finish()
        return replace(state, saved=True, complete=final)

    def _complete(self, state: LoopState) -> LoopState:
        """Complete the newest step's checkpoint. A state from the nodes' memory may have none."""
        self.checkpointer.finish()
        directory = checkpoint_path(self.config.checkpoints, state.step)
        if state.step and fault_of(directory, checksums=False):
            self.checkpointer.save(state.run, due=True, pending=self.rollouts.pending)
            self.checkpointer.finish()
        return replace(state, complete=True)

    def _export(self, state: LoopState) -> LoopState:
        to = head_file_store.place(self.config, self.config.exported)
        self.workers.policy.call_ranks(Policy.export, to).result()
        if self.workers.critic and self.config.save_value_network:
            to = head_file_store.place(self.config, self.config.exported_critic)
            self.workers.critic.call_ranks(Critic.export, to).result()
        self.recorder.exported(state.step)
        return replace(state, exported=True)

    def _step(self, state: LoopState) -> LoopState:
        step = state.step + 1
        watch = self.recorder.stopwatch(step)
        samples, forward = self._samples(step, watch)
        try:
            run = self._learn(state.run, samples, forward, watch)
        except (LostWorkerError, BeyondRepairError):
            raise  # nothing is wrong with the samples
        except TrainingError as error:
            kept = sample_files.save_failed(self.config.files.root, step, samples)
            kind = UserFormulaError if isinstance(error, UserFormulaError) else TrainingError
            said = ended(f"Step {step}: {error}")
            raise kind(f"{said} Its samples are in {kept}") from error
        awake = not self._sleeps
        return LoopState(run=run, published=True, awake=awake, held=False, saved=False)

    def _samples(self, step: int, watch: Stopwatch) -> tuple[list[Sample], ForwardPasses]:
        """Return scored samples, and the models' forward passes over them, which still run."""
        found = self.rollouts.step(step)
        self._let_engines_sleep()
        watch.lap(found.phase)
        watch.metrics |= found.metrics
        completions = [completion for _, completion in found.written]
        divided = divide(self.workers, completions, self.config, step)
        forward = start_forward(self.workers, divided, self.config)
        if found.samples is not None:
            return found.samples, forward
        samples = rewards.score(self.reward, found.written, found.greedy)
        watch.lap("reward")
        return samples, forward

    def _learn(
        self, state: RunState, samples: list[Sample], forward: ForwardPasses, watch: Stopwatch
    ) -> RunState:
        config, step = self.config, state.step + 1
        shaped, moments = rewards.shaped(config, samples, state.reward_moments)
        # An adaptive weight continues from its last value; a fixed one is the flag's.
        kl_coef = (state.kl_coef if config.kl.adapts else None) or config.kl.init_coef
        with self.rollouts.meanwhile():
            actions, size = forward.division.plan.actions, config.n_samples_per_prompt
            above = advantages.above_baseline(
                config.advantage, shaped, actions, size, self.own_estimator
            )
            lesson = make_lesson(self.workers, forward, above, config, kl_coef)
            watch.lap("forward")
            metrics = self._update(lesson, step, watch) | peak_memory(self.workers)
            metrics["kl_coef"] = kl_coef
            watch.lap("update")
        self._publish_weights(step)
        watch.lap("publish")
        watch.metrics |= self.reward.taken()
        outcome = step_metrics.of(samples, lesson, metrics, watch, config)
        next_kl_coef = config.kl.next_coefficient(kl_coef, outcome.kl, len(samples))
        state = replace(
            state,
            step=step,
            prompts=self.inputs.data.stream.state_dict(),
            samples=state.samples + int((lesson.division.plan.actions > 0).sum()),
            reward=outcome.reward,
            reward_first=outcome.reward if state.reward_first is None else state.reward_first,
            kl_coef=next_kl_coef if config.kl.adapts else None,
            reward_moments=moments,
            wandb_id=self.recorder.wandb_id,
        )
        self.checkpointer.wait()
        self.recorder.log_step(state, outcome)
        return state

    def _publish_weights(self, version: int) -> None:
        workers, backend = self.workers, self.config.vllm.sync_backend
        with self.rollouts.new_weights(version):
            update.update_weights(
                workers.policy, workers.engines, version, wake=self._sleeps, backend=backend
            )

    def _update(self, lesson: Lesson, step: int, watch: Stopwatch) -> Metrics:
        pending, turns = {}, self.workers.turns()
        if critic := self.workers.critic:
            told = lesson.arguments(critic)
            pending[Role.CRITIC] = turns.call(critic, Critic.update, *told, step)
        if step > self.config.train.freezing_actor_steps:
            policy = self.workers.policy
            told = lesson.arguments(policy)
            pending[Role.POLICY] = turns.call(policy, Policy.update, *told, step)
        metrics: Metrics = {}
        for role, calls in pending.items():
            updated = calls.result()
            metrics |= batching.combine_metrics([one.metrics for one in updated])
            watch.rank_times[role] = [one.time for one in updated]
        return metrics

    def _evaluate(self, state: LoopState) -> LoopState:
        evaluation = self.evaluator.measure()
        self._let_engines_sleep()
        self.checkpointer.wait()
        run = self.evaluator.record(state.run, evaluation)
        self.checkpointer.amend(run)
        return replace(state, run=run, published=not self._sleeps, awake=not self._sleeps)
