"""Evaluates the policy on held-out prompts, and keeps the best policy of the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isnan

from trainer.checkpoint import retention
from trainer.checkpoint.writer import RunState
from trainer.config.config import Config
from trainer.metrics.evaluation import Evaluation
from trainer.metrics.recorder import Recorder
from trainer.rollout import rewards
from trainer.rollout.generate import Generator
from trainer.training.inputs import TrainingInputs
from trainer.workers.groups import WorkerGroups

ACCURACY = "eval/accuracy"
SAME = {"eval/pass1": ACCURACY}
"""Two names of one metric: the second is that of the lists of runs."""


@dataclass(frozen=True, slots=True)
class Evaluator:
    config: Config
    workers: WorkerGroups
    inputs: TrainingInputs
    recorder: Recorder

    def is_due(self, run: RunState) -> bool:
        """Return whether the newest step must be evaluated, and was not yet.

        An evaluation that a stop left out stays due, for a later attempt.
        """
        ends = run.step == 0 or run.step >= self.recorder.total_steps
        due = ends or is_multiple(run.step, self.config.eval_steps)
        return bool(self.inputs.data.held_out) and due and run.evaluated != run.step

    def measure(self) -> Evaluation:
        """Return the accuracy of the engines' policy on the held-out prompts."""
        k = self.config.eval_n_samples_per_prompt
        reward, asked = self.inputs.reward, (self.inputs.data.held_out, k)
        generator = Generator.of(self.config, self.workers.engines, self.inputs.episodes)
        if self.inputs.episodes is None:
            written = generator.held_out(*asked, self.config.eval_temperature)
            return Evaluation.of(rewards.score(reward, written), k)
        groups = generator.held_out_episodes(*asked, self.config.eval_temperature)
        return Evaluation.of(rewards.score_groups(reward, groups), k)

    def record(self, run: RunState, evaluation: Evaluation) -> RunState:
        """Log the evaluation, and export the policy if it is the best. Returns the new state."""
        is_graded = evaluation.is_graded or run.eval_is_reward
        evaluation = replace(evaluation, is_graded=is_graded)
        self.recorder.evaluated(run.step, evaluation)
        before = evaluation.pass1 if run.step == 0 else run.eval_before
        run = replace(
            run,
            eval=evaluation.pass1,
            eval_before=before,
            eval_is_reward=is_graded,
            evaluated=run.step,
        )
        run = self._keep_the_best(run, evaluation)
        self.recorder.progress(run)
        return run

    def _keep_the_best(self, run: RunState, evaluation: Evaluation) -> RunState:
        """Export the policy if it is better than it ever was in this run; NaN is not better."""
        key = self.config.best_metric
        if key is None:
            return run
        value, measured = evaluation.row()[key], self._measured(key)
        if run.step == 0:
            return replace(run, best_before=None if isnan(value) else value, best_of=measured)
        is_same = run.best_of in (None, measured)
        best, first = (run.best, run.best_before) if is_same else (None, None)
        if isnan(value) or (best is not None and value <= best):
            return run
        retention.keep_best(self.config, self.workers.policy, run.step)
        name = SAME.get(key, key)
        if evaluation.is_graded and name == ACCURACY:
            name = "eval/reward"
        self.recorder.best(run.step, name, value, first)
        return replace(run, best=value, best_before=first, best_of=measured)

    def _measured(self, key: str) -> str:
        """Return what a value of the metric says: values of others are not comparable."""
        config = self.config
        return f"{key} of {config.eval_dataset} at temperature {config.eval_temperature:g}"


def is_multiple(step: int, every: int) -> bool:
    """Return whether `step` is a multiple of `every`; False if `every` is not positive."""
    return every > 0 and step % every == 0
