"""Asynchronous rollouts: engines write and rewards come while policy and critic train.

    engines    write partial rollouts of the groups that `staleness.capacity` lets begin; new
               weights come between two slices of their work
    rewards    score a group when the last of its completions is written
    the loop   takes a step's groups in `step`, which keeps the engines busy while it waits;
               `meanwhile` does so in a thread while the loop waits for the models, and leaves the
               loss of a process to the next `step`

No thread runs outside of `meanwhile`. Engines are therefore at rest during weight updates,
evaluations and checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from env.data.prompts import PromptStream
from env.episodes.types import Task
from env.types import Prompt, RewardFunction
from trainer.checkpoint.writer import RunState
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.rollout import dynamic_sampling, rewards, rollout_state, staleness
from trainer.rollout.dispatcher import WAIT_SECONDS
from trainer.rollout.generate import Generator
from trainer.rollout.rewards import BackgroundScoring
from trainer.rollout.rollout_state import PendingRollouts, PromptGroup
from trainer.rollout.source import StepRollouts
from trainer.rollout.staleness import GroupCounts, GroupStatus, StalenessLimits
from trainer.types import FinishedRollout, LostWorkerError, Metrics, PartialRollout

KEPT_STEPS = 4
"""Steps whose groups are kept for a repetition: snapshots are one or two steps behind."""


class AsyncRollouts:
    """Prompt groups between the prompt stream and the trainer."""

    def __init__(
        self,
        config: Config,
        generator: Generator,
        stream: PromptStream,
        reward: RewardFunction,
        step: int,
    ) -> None:
        """`step`: the number of finished steps."""
        self._config = config
        self._generator = generator
        self._stream = stream
        self._limits = StalenessLimits(
            max_staleness=config.allowed_staleness,
            batch=config.rollout_batch_size,
            total_steps=config.total_steps(len(stream)),
        )
        # An engine has as long for a slice as a rank for an answer: see `GroupHeartbeat`.
        self._dispatcher = generator.dispatcher(config.dist_timeout / 3)
        self._scoring = BackgroundScoring(reward)
        self._groups: dict[int, PromptGroup] = {}
        """Groups in no step yet, by number, in the order in which they began."""
        self._prompts: list[Prompt] = []
        """Prompts to deal before those of the stream."""
        self._next_number = 0
        self._filtered = 0
        """Groups without a signal, since the last step was taken."""
        self._version = self._newest = self._taken = step
        """`_newest`: the highest version with which a group alive began."""
        self._published = False
        """Whether engines have the weights of `_version`; they start with those of --pretrain."""
        self._given: dict[int, list[PromptGroup]] = {}
        """Step → its groups, for the newest steps."""
        self._lost: LostWorkerError | None = None
        """The loss that `meanwhile` has left to the next `step`."""

    def step(self, step: int) -> StepRollouts:
        """Return the samples of `step`, in the order in which their prompts were dealt.

        Raises TrainingError if none could be scored, LostWorkerError if no engine is left or the
        last `meanwhile` lost a process, and what the reward function raises.
        """
        if lost := self._lost:
            self._lost = None
            raise lost
        while (chosen := self._chosen(step)) is None:
            if self._dispatcher.stalled:
                raise LostWorkerError(
                    "no engine is left that has the policy's weights", Role.ENGINE
                )
            if not self._advance():
                self._wait()
        given = [self._groups.pop(number) for number in chosen]
        kept = list(self._given)[1 - KEPT_STEPS :]
        self._given = {number: self._given[number] for number in kept} | {step: given}
        samples = [sample for group in given for sample in group.samples]
        rewards.require_one(samples)
        written = [(sample.prompt, sample.completion) for sample in samples]
        metrics = staleness.metrics([c for _, c in written], step, self._limits.max_staleness)
        metrics |= self._filter_metrics()
        self._taken, self._filtered = step, 0
        return StepRollouts(written=written, samples=samples, phase="wait", metrics=metrics)

    def _filter_metrics(self) -> Metrics:
        if not self._config.filtering.enabled:
            return {}
        drawn = self._limits.batch + self._filtered
        return {"dynamic_filtering_pass_rate": self._limits.batch / drawn}

    @property
    def oldest(self) -> int:
        """The first step that `go_back` can return to."""
        return self._taken - len(self._given)

    def go_back(self, run: RunState) -> None:
        """Roll back to the step of `run`. Later steps are trained again, on the same samples."""
        repeated = [self._given.pop(step) for step in list(self._given) if step > run.step]
        back = {group.number: group for groups in repeated for group in groups}
        self._groups = back | self._groups
        self._taken = min(self._taken, run.step)
        self._lost = None  # the process is back by now, or its loss is noticed again

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Continue rollouts in a thread while the block runs. Raises their error at its end.

        The loss of a process waits for the next `step`. At the end of the block the learners have
        made the update, and recovery now would make them repeat the update.
        """
        over, failures = Event(), list[BaseException]()

        def work() -> None:
            try:
                while not over.is_set():
                    if not self._advance():
                        over.wait(WAIT_SECONDS)
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
                    raise failure  # also if the block lost a process: recovery cannot help
                self._lost = failure
        self._add_finished(self._dispatcher.settle())

    def close(self) -> None:
        """End what still runs beside the engines."""
        self._dispatcher.close()

    @contextmanager
    def new_weights(self, version: int) -> Iterator[None]:
        """The block gives the engines the weights of `version`.

        Without --partial_rollout, engines first finish every completion that they have begun; of an
        episode, the reply. The exception is a completion from a checkpoint: the checkpoint's
        weights must come before it.
        """
        if self._published and not self._repeating and not self._config.partial_rollout:
            self._add_finished(self._dispatcher.finish())
        self._add_finished(self._dispatcher.settle())
        yield
        self._version, self._published = version, True
        self._newest = max(self._newest, version)

    @property
    def _repeating(self) -> bool:
        """Whether lost steps are repeated, on the samples that they had.

        Engines rest meanwhile. Groups that newer weights began would be finished by older weights,
        and be too old for the steps that have room for them.
        """
        return self._version < self._newest

    def pending(self) -> PendingRollouts:
        """Return all prompts that were dealt and are in no step yet, with their rollouts."""
        for partial in self._dispatcher.partials():
            number, index = partial.key
            self._groups[number].partials[index] = partial
        # A checkpoint has no images, so that prompts with images begin again.
        seen = [group.prompt for group in self._groups.values() if group.sees_images]
        return PendingRollouts(
            settings=rollout_state.settings_of(self._config),
            groups=[group for group in self._groups.values() if not group.sees_images],
            prompts=[*seen, *self._prompts],
        )

    def resume(self, found: PendingRollouts) -> None:
        """Continue the pending rollouts of a checkpoint.

        If the sampling flags differ, or the rollouts may be too old for --max_staleness, only the
        prompts are kept, and are dealt before all others.
        """
        rows = {prompt.index: prompt for prompt in self._stream.prompts}
        old, new = dict(found.settings), rollout_state.settings_of(self._config)
        allowed = old.pop("max_staleness", math.inf) <= new.pop("max_staleness")
        if old != new or not allowed:
            self._prompts = [*(group.prompt for group in found.groups), *found.prompts]
            self._prompts = [rows.get(prompt.index, prompt) for prompt in self._prompts]
            return
        self._prompts = [rows.get(prompt.index, prompt) for prompt in found.prompts]
        self._groups = {group.number: group for group in found.groups}
        for group in found.groups:  # a checkpoint has neither columns nor images
            group.prompt = rows.get(group.prompt.index, group.prompt)
        if self._generator.episodes:
            for group in found.groups:
                group.begin_again()
        self._next_number = max(self._groups, default=-1) + 1
        self._newest = max([self._version, *(group.version for group in found.groups)])
        unfinished = [list(g.partials.values()) for g in found.groups if g.partials]
        self._dispatcher.give(unfinished)
        self._scoring.give([g for g in found.groups if not g.partials and g.scores is None])

    def _advance(self) -> bool:
        """Begin new groups and take what has come. Returns whether anything happened."""
        begun, finished = 0, list[FinishedRollout]()
        if not self._repeating:
            begun = self._begin()
            finished = self._dispatcher.work(0.0)
        self._add_finished(finished)
        scored = self._scoring.work()
        for group in scored:
            self._filter(group)
        return bool(begun or finished or scored)

    def _wait(self) -> None:
        if self._dispatcher.busy:
            assert not self._repeating, "a repeated step lacks a sample"
            self._add_finished(self._dispatcher.work(WAIT_SECONDS))
        else:
            assert self._scoring.busy, "a step waits, and nothing is under way"
            self._scoring.wait(WAIT_SECONDS)

    def _begin(self) -> int:
        ready = sum(group.scores is not None for group in self._groups.values())
        counts = GroupCounts(
            finished=self._version,
            taken=self._taken,
            ready=ready,
            under_way=len(self._groups) - ready,
        )
        count = staleness.capacity(self._limits, counts)
        if count:
            first = self._taken * self._limits.batch + counts.alive
            groups = [self._group(first + n, prompt) for n, prompt in enumerate(self._deal(count))]
            self._groups |= {group.number: group for group in groups}
            self._dispatcher.give([list(group.partials.values()) for group in groups])
        return count

    def _deal(self, count: int) -> list[Prompt]:
        kept, self._prompts = self._prompts[:count], self._prompts[count:]
        missing = count - len(kept)
        return [*kept, *(self._stream.next_batch(missing) if missing else [])]

    def _group(self, position: int, prompt: Prompt) -> PromptGroup:
        """`position`: the number of prompts before this one, over all steps of the run.

        The seeds are those that synchronous rollouts give the prompt at this place of its step.
        """
        number, self._next_number = self._next_number, self._next_number + 1
        step, place = divmod(position, self._limits.batch)
        seeds = self._generator.seeds(step + 1, place, prompt)
        task = Task.of(prompt) if self._generator.episodes else None
        partials = {
            index: PartialRollout((number, index), prompt.text, seed, task=task)
            for index, seed in enumerate(seeds)
        }
        greedy = seeds.index(None) if None in seeds else None
        return PromptGroup(
            number=number, prompt=prompt, version=self._version, partials=partials, greedy=greedy
        )

    def _add_finished(self, finished: Sequence[FinishedRollout]) -> None:
        complete = []
        for rollout in finished:
            group = self._groups[rollout.key[0]]
            group.finish(rollout)
            if not group.partials:
                complete.append(group)
        self._scoring.give(complete)

    def _filter(self, group: PromptGroup) -> None:
        """Drop a group without a signal: another group takes its place."""
        if not self._config.filtering.enabled or self._has_signal(group):
            return
        del self._groups[group.number]
        self._filtered += 1
        needed, bounds = self._limits.batch, self._config.filtering.reward_range
        if self._filtered >= dynamic_sampling.MOST_FILTERED * needed:
            scored = [one for one in self._groups.values() if one.scores is not None]
            kept = sum(map(self._has_signal, scored))
            if kept >= needed:
                return  # the others were replaced for later steps
            rewards.require_one(group.samples)  # the scores are at fault, and not the prompts
            raise dynamic_sampling.hopeless(self._filtered + kept, kept, needed, bounds)

    def _has_signal(self, group: PromptGroup) -> bool:
        size, bounds = self._config.n_samples_per_prompt, self._config.filtering.reward_range
        return bool(dynamic_sampling.with_signal(group.samples, size, bounds))

    def _chosen(self, step: int) -> list[int] | None:
        numbers = list(self._groups)
        groups = [GroupStatus(g.version, g.scores is not None) for g in self._groups.values()]
        chosen = staleness.select(self._limits, step, groups)
        return None if chosen is None else [numbers[index] for index in chosen]
