"""Rollouts ahead of training: engines write and rewards come while policy and critic learn.

    engines    write partial rollouts of the groups that `staleness.room` lets begin; new weights
               come between two slices of their work
    rewards    score a group when the last of its completions is written
    the loop   takes a step's groups in `step`, which keeps the others at work while it waits;
               `meanwhile` does so in a thread while the loop waits for the models, and leaves the
               loss of a process to the next `step`

Outside of `meanwhile` there is no thread: weights, evaluations and checkpoints meet engines at
rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

import numpy as np

from env.prompts import PromptStream
from env.types import Prompt, RewardFunction
from trainer.checkpoint.writer import RunState
from trainer.config.config import Config
from trainer.rollout import dynamic_sampling, rewards, staleness
from trainer.rollout.dispatcher import EngineDispatcher
from trainer.rollout.generate import Rollouts
from trainer.rollout.outages import ROLE
from trainer.rollout.rewards import Scoring
from trainer.rollout.rollout_state import PendingRollouts, PromptGroup
from trainer.rollout.source import StepRollouts
from trainer.rollout.staleness import Begun, Pace, Position
from trainer.types import (
    FinishedRollout,
    LostWorkerError,
    Metrics,
    PartialRollout,
    Sample,
    TrainingError,
)

A_LOOK = 0.02
"""Seconds that a look at what has come may wait for something."""
KEPT = 4
"""Batches that were given and may be asked for again: snapshots are a step or two behind."""


class AsyncRollouts:
    """Prompt groups between the prompt stream and the trainer."""

    def __init__(
        self,
        config: Config,
        rollouts: Rollouts,
        stream: PromptStream,
        reward: RewardFunction,
        step: int,
    ) -> None:
        """`step`: how many are finished."""
        self._config = config
        self._rollouts = rollouts
        self._stream = stream
        self._pace = Pace(
            max_staleness=config.max_staleness,
            batch=config.rollout_batch_size,
            total_steps=config.total_steps(len(stream)),
        )
        # A slice has as long as ranks have: see `actors.liveness`.
        self._dispatcher = EngineDispatcher(
            rollouts.engines, rollouts.sampling, config.dist_timeout / 3
        )
        self._scoring = Scoring(reward)
        self._groups: dict[int, PromptGroup] = {}
        """All that are alive, in the order in which they were begun."""
        self._prompts: list[Prompt] = []
        """To be dealt before those of the stream."""
        self._numbers = 0
        self._refused = 0
        """Groups without a signal, since the last batch."""
        self._version = self._newest = self._taken = step
        self._published = False
        """Whether engines were given the weights of `_version`; they start with --pretrain's.
        `_newest` is the highest version that any group alive was begun with."""
        self._given: dict[int, list[PromptGroup]] = {}
        """What the trainer was given last: of each step."""
        self._lost: LostWorkerError | None = None
        """What `meanwhile` has left to the next `step`."""

    def step(self, step: int) -> StepRollouts:
        """The samples of `step`, in the order in which their prompts were dealt.

        Raises TrainingError where none could be scored, LostWorkerError where no engine is left or
        a process was lost in the last `meanwhile`, and what the reward function raises.
        """
        if lost := self._lost:
            self._lost = None
            raise lost
        while (chosen := self._chosen(step)) is None:
            if self._dispatcher.stalled:
                raise LostWorkerError("no engine is left that has the policy's weights", ROLE)
            if not self._look():
                self._wait()
        given = [self._groups.pop(number) for number in chosen]
        self._given = {n: self._given[n] for n in list(self._given)[1 - KEPT :]} | {step: given}
        samples = [sample for group in given for sample in group.samples]
        rewards.require_one(samples)
        metrics = self._metrics(samples, step)
        self._taken, self._refused = step, 0
        return StepRollouts(
            written=[(sample.prompt, sample.completion) for sample in samples],
            samples=samples,
            phase="wait",
            metrics=metrics,
        )

    @property
    def oldest(self) -> int:
        """The first step that can be the newest again."""
        return self._taken - len(self._given)

    def go_back(self, run: RunState) -> None:
        """Roll back to the step of `run`. Later steps are trained again, on the same samples."""
        again = [self._given.pop(taken) for taken in list(self._given) if taken > run.step]
        back = {group.number: group for groups in again for group in groups}
        self._groups = back | self._groups
        self._taken = min(self._taken, run.step)
        self._lost = None  # it is back by now, or is missed again

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Rollouts go on while the block runs. Raises at its end what they raised.

        The loss of a process is left to the next `step`: at the end of the block learners have
        made the step's update, which its repair would have them make again.
        """
        over, failures = Event(), list[BaseException]()

        def work() -> None:
            try:
                while not over.is_set():
                    if not self._look():
                        over.wait(A_LOOK)
            except BaseException as error:
                failures.append(error)

        thread = Thread(target=work, name="rollouts", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for failure in failures:
                if not isinstance(failure, LostWorkerError):
                    raise failure  # also where the block lost a process: no repair is enough
                self._lost = failure
        self._written(self._dispatcher.settle())

    @contextmanager
    def new_weights(self, version: int) -> Iterator[None]:
        """The block gives the engines the weights of `version`.

        Without --partial_rollout each completion that was begun is written to its end before; but
        one that a checkpoint holds, after the checkpoint's weights have come.
        """
        whole = self._published and not self._behind and not self._config.partial_rollout
        while whole and self._dispatcher.busy:
            self._written(self._dispatcher.work(A_LOOK))
        self._written(self._dispatcher.settle())
        yield
        self._version, self._published = version, True
        self._newest = max(self._newest, version)

    @property
    def _behind(self) -> bool:
        """Whether lost steps are done again, of the samples that they had.

        Engines rest meanwhile: groups that newer weights began would be written by older ones, and
        be too old in the steps that have room for them.
        """
        return self._version < self._newest

    def pending(self) -> PendingRollouts:
        """All that is drawn from the stream and in no step yet."""
        for partial in self._dispatcher.partials():
            group, place = partial.key
            self._groups[group].partials[place] = partial
        return PendingRollouts(
            settings=self._settings, groups=list(self._groups.values()), prompts=self._prompts
        )

    def go_on(self, found: PendingRollouts) -> None:
        """Take up what a checkpoint holds.

        What was written under other settings, or may be too old for those of now, is forgotten:
        its prompts are dealt again, before any other.
        """
        same = {**found.settings, "max_staleness": 0} == {**self._settings, "max_staleness": 0}
        if not same or found.settings["max_staleness"] > self._pace.max_staleness:
            self._prompts = [*(group.prompt for group in found.groups), *found.prompts]
            return
        self._prompts = list(found.prompts)
        self._groups = {group.number: group for group in found.groups}
        self._numbers = max(self._groups, default=-1) + 1
        self._newest = max([self._version, *(group.version for group in found.groups)])
        under_way = [list(g.partials.values()) for g in found.groups if g.partials]
        self._dispatcher.give(under_way)
        self._scoring.give([g for g in found.groups if not g.partials and g.scores is None])

    @property
    def _settings(self) -> dict[str, float]:
        c = self._config
        return {
            "max_staleness": c.max_staleness,
            "rollout_batch_size": c.rollout_batch_size,
            "n_samples_per_prompt": c.n_samples_per_prompt,
            "generate_max_len": c.generate_max_len,
            "prompt_max_len": c.prompt_max_len,
            "temperature": c.temperature,
            "top_p": c.top_p,
        }

    def _look(self) -> bool:
        """Begin what may be begun, and receive what has come. Whether anything did."""
        begun, ended = 0, list[FinishedRollout]()
        if not self._behind:
            begun = self._begin()
            ended = self._dispatcher.work(0.0)
        self._written(ended)
        scored = self._scoring.work()
        for group in scored:
            self._judge(group)
        return bool(begun or ended or scored)

    def _wait(self) -> None:
        if self._dispatcher.busy:
            assert not self._behind, "a step that is done again lacks a sample"
            self._written(self._dispatcher.work(A_LOOK))
        else:
            assert self._scoring.busy, "a step waits, and nothing is under way"
            self._scoring.wait(A_LOOK)

    def _begin(self) -> int:
        ready = sum(group.scores is not None for group in self._groups.values())
        position = Position(
            finished=self._version,
            taken=self._taken,
            ready=ready,
            under_way=len(self._groups) - ready,
        )
        count = staleness.room(self._pace, position)
        if count:
            first = self._taken * self._pace.batch + position.alive
            groups = [self._group(first + n, prompt) for n, prompt in enumerate(self._deal(count))]
            self._groups |= {group.number: group for group in groups}
            self._dispatcher.give([list(group.partials.values()) for group in groups])
        return count

    def _deal(self, count: int) -> list[Prompt]:
        kept, self._prompts = self._prompts[:count], self._prompts[count:]
        missing = count - len(kept)
        return [*kept, *(self._stream.next_batch(missing) if missing else [])]

    def _group(self, position: int, prompt: Prompt) -> PromptGroup:
        """`position`: how many come before it in the steps of the run, as far as is known yet.

        Seeds are those that the synchronous loop gives a prompt at this place of its step.
        """
        number, self._numbers = self._numbers, self._numbers + 1
        step, place = divmod(position, self._pace.batch)
        seeds = self._rollouts.seeds(step + 1, place, prompt)
        partials = {
            n: PartialRollout((number, n), prompt.text, seed) for n, seed in enumerate(seeds)
        }
        return PromptGroup(number=number, prompt=prompt, version=self._version, partials=partials)

    def _written(self, ended: Sequence[FinishedRollout]) -> None:
        whole = []
        for one in ended:
            number, place = one.key
            group = self._groups[number]
            del group.partials[place]
            group.completions[place] = one.completion
            if not group.partials:
                whole.append(group)
        self._scoring.give(whole)

    def _judge(self, group: PromptGroup) -> None:
        """A group without a signal makes room for another."""
        config = self._config
        if not config.dynamic_filtering:
            return
        bounds = config.dynamic_filtering_reward_range
        if dynamic_sampling.with_signal(group.samples, config.n_samples_per_prompt, bounds):
            return
        del self._groups[group.number]
        self._refused += 1
        ready = sum(group.scores is not None for group in self._groups.values())
        if self._refused >= dynamic_sampling.ROUNDS * self._pace.batch:
            raise dynamic_sampling.hopeless(self._refused + ready, ready, self._pace.batch, bounds)

    def _chosen(self, step: int) -> list[int] | None:
        numbers = list(self._groups)
        groups = [Begun(g.version, g.scores is not None) for g in self._groups.values()]
        places = staleness.choose(self._pace, step, groups)
        return None if places is None else [numbers[place] for place in places]

    def _metrics(self, samples: Sequence[Sample], step: int) -> Metrics:
        completions = [sample.completion for sample in samples]
        ages = [step - 1 - completion.version for completion in completions]
        if max(ages) > self._pace.max_staleness:
            raise TrainingError(
                f"a sample is {max(ages)} versions old; --max_staleness {self._pace.max_staleness}"
            )
        older = np.concatenate([c.versions[c.actions] < step - 1 for c in completions])
        metrics = {
            "staleness": float(np.mean(ages)),
            "staleness_max": float(max(ages)),
            "older_tokens": float(older.mean()),
        }
        if self._config.dynamic_filtering:
            drawn = self._pace.batch + self._refused
            metrics["dynamic_filtering_pass_rate"] = self._pace.batch / drawn
        return metrics
