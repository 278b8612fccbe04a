"""The training loop: the only place where the order of a step is written.

The driver holds no model. A line that waits, waits for actors; the forward passes of a step run at
the same time as the scoring, and the updates of policy and critic at the same time as each other.
A step is a function of (checkpoint, seed, step): nothing else that a process remembers has a part
in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from env.types import RewardFunction
from trainer import estimates, publish, rollouts, summary
from trainer.actors.base import Critic, Metrics, Policy
from trainer.checkpoint import resume, write
from trainer.checkpoint.write import RunState
from trainer.config import Config
from trainer.contract import ExitCode
from trainer.data import Data
from trainer.record import Recorder, Stopwatch
from trainer.rollouts import Rollouts
from trainer.stop import Stopped, StopRequest
from trainer.team import Team
from trainer.types import Experience, Sampling, Sequences


def train(
    config: Config, team: Team, data: Data, reward: RewardFunction, stop: StopRequest
) -> RunState:
    """Train to the last step. Returns the run's final state.

    Raises Stopped after a save where `stop` was requested, TrainingError where going on makes no
    sense, ResumeError where it must not begin, and what the reward function raises.
    """
    state = resume.begin(config, team, data.stream)
    recorder = Recorder(config, config.total_steps(len(data.stream)), state)
    try:
        state = _Run(config, team, data, reward, recorder).to_the_end(state, stop)
    except BaseException:
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

    def to_the_end(self, state: RunState, stop: StopRequest) -> RunState:
        total = self.recorder.total_steps
        publish.weights(self.team.policy, self.team.engines, version=state.step)
        if state.step == 0:
            state = self._evaluate(state)
        if stop.requested:
            raise Stopped(f"Stopped before step {state.step + 1} of {total}.")
        for step in range(state.step + 1, total + 1):
            state = self._step(state, step)
            last, stopping = step == total, stop.requested
            if last or _due(step, self.config.eval_steps):
                state = self._evaluate(state)
            if last or _due(step, self.config.save_steps) or stopping:
                self._save(state)
            if stopping and not last:
                raise Stopped(f"Stopped after step {step} of {total}, which is saved.")
        self.team.policy.first(Policy.export, self.config.exported).result()
        return state

    def _step(self, state: RunState, step: int) -> RunState:
        watch = Stopwatch()
        prompts = self.data.stream.next_batch(self.config.rollout_batch_size)
        written = self._rollouts.generate(prompts, step)  # stamped with the policy's version
        watch.lap("generate")
        sequences = Sequences.collate([completion for _, completion in written])
        forward = estimates.start(self.team, sequences)
        samples = rollouts.score(self.reward, written)  # a failure is a status, never a zero
        watch.lap("reward")
        rewards = rollouts.rewards_of(samples)
        experience = estimates.finish(forward, sequences, rewards, self.config)
        watch.lap("forward")
        metrics = self._update(experience, step)
        watch.lap("update")
        publish.weights(self.team.policy, self.team.engines, version=step)
        watch.lap("publish")
        outcome = summary.of(samples, experience, metrics, watch, self.config)
        state = replace(
            state,
            step=step,
            prompts=self.data.stream.state_dict(),
            samples=state.samples + int(experience.sequences.actions.any(axis=1).sum()),
            reward=outcome.reward,
            reward_first=outcome.reward if state.reward_first is None else state.reward_first,
            wandb_id=self.recorder.wandb_id,
        )
        self.recorder.step(state, outcome)
        return state

    def _update(self, experience: Experience, step: int) -> Metrics:
        pending = []
        if self.team.critic:
            pending.append(self.team.critic.first(Critic.update, experience, step))
        if step > self.config.freezing_actor_steps:
            pending.append(self.team.policy.first(Policy.update, experience, step))
        return {name: value for part in pending for name, value in part.result().items()}

    def _evaluate(self, state: RunState) -> RunState:
        if not self.data.held_out:
            return state
        samples = rollouts.score(self.reward, self._rollouts.greedy(self.data.held_out))
        accuracy = rollouts.accuracy(samples)
        self.recorder.evaluated(state.step, accuracy)
        before = accuracy if state.step == 0 else state.eval_before
        state = replace(state, eval=accuracy, eval_before=before)
        self.recorder.progress(state)
        return state

    def _save(self, state: RunState) -> None:
        write.write(
            self.config.checkpoints,
            state,
            self.team,
            keep=self.config.max_ckpt_num,
            export=self.config.save_hf_ckpt,
        )
        self.recorder.saved(state)

    @property
    def _rollouts(self) -> Rollouts:
        config = self.config
        return Rollouts(
            self.team.engines,
            Sampling(
                max_new_tokens=config.generate_max_len,
                temperature=config.temperature,
                top_p=config.top_p,
            ),
            config.n_samples_per_prompt,
            config.seed,
        )


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
