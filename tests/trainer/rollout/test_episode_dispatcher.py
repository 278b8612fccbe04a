"""Hundreds of episodes over an engine of this process, with tools that are slow, hang or fail."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from transformers import AutoTokenizer

from contract.journal import print_event
from env.episodes import attempts
from env.episodes.attempts import EnvironmentAttempt, EpisodeRunner, OnFailure
from env.episodes.chat import PlainChat
from env.episodes.environment import Environment
from env.episodes.types import (
    Context,
    Episode,
    Generate,
    Generated,
    Limits,
    Reply,
    StopReason,
    Task,
    Turn,
)
from env.types import Messages, Score
from tests.support.engines import settings
from tests.support.local_workers import LocalWorkerGroup
from tests.support.tiny_run import Tiny
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.dispatcher import EngineDispatcher
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.episodes import EpisodeDispatcher, EpisodeSetup
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.rollout.wave_writer import WaveWriter
from trainer.types import Completion, FinishedRollout, Key, PartialRollout, TrainingError

SAMPLING = SamplingSettings(max_new_tokens=6)
LIMITS = Limits(turns=3, prompt=32, reply=6, observation=8, total=100, seconds=120)
TASKS = 100
HANGING, FAILING = 7, 11


class Tool(Environment):
    """Row 7 hangs until `released`; row 11 fails once; the others take up to 50 ms."""

    released: asyncio.Event
    failures: Counter[int]

    async def reset(self, task: Task) -> Messages:
        self.row, self.turns = task.index, 0
        return task.messages

    async def step(self, reply: Reply) -> Turn:
        self.turns += 1
        await asyncio.sleep(self.row % 6 / 100)
        if self.row == HANGING:
            await self.released.wait()
        if self.row == FAILING and not self.failures[self.row]:
            self.failures[self.row] += 1
            raise ConnectionError("for a moment")
        return Turn(text="+1=", done=self.turns == LIMITS.turns)

    async def score(self, episode: Episode) -> Score:
        return Score.of(float(self.row))


@pytest.fixture
def engine(tiny: Tiny) -> HFEngine:
    return HFEngine(settings(tiny))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "PAUSES", (0.01,))
    Tool.failures = Counter()


def setup_of(tiny: Tiny, on_failure: OnFailure = OnFailure.RETRY) -> EpisodeSetup:
    chat = PlainChat(AutoTokenizer.from_pretrained(tiny.model))
    attempt = EnvironmentAttempt(Tool, chat, LIMITS)
    return EpisodeSetup(EpisodeRunner(attempt, chat, LIMITS.prompt, on_failure), print_event)


def begun(tasks: int = TASKS) -> Iterator[list[PartialRollout]]:
    for row in range(tasks):
        task = Task(row, [{"role": "user", "content": f"{row}+1="}])
        yield [PartialRollout((row, n), "", 10 * row + n, task=task) for n in range(2)]


def worked(
    dispatcher: EpisodeDispatcher, until: int, seconds: float = 120
) -> dict[Key, FinishedRollout]:
    """Work until so many episodes have ended."""
    finished: dict[Key, FinishedRollout] = {}
    deadline = time.monotonic() + seconds
    while len(finished) < until:
        assert time.monotonic() < deadline
        finished |= {one.key: one for one in dispatcher.work(0.02)}
    return finished


def dispatcher_of(
    engines: Sequence[HFEngine], setup: EpisodeSetup, *, lockstep: bool = False
) -> EpisodeDispatcher:
    pool = EnginePool(LocalWorkerGroup(engines))
    turns: Any = WaveWriter(pool, SAMPLING) if lockstep else EngineDispatcher(pool, SAMPLING, 60)
    return EpisodeDispatcher(turns, setup, lockstep=lockstep)


def test_a_tool_that_hangs_holds_up_its_own_episodes_only(tiny: Tiny, engine: HFEngine) -> None:
    Tool.released = asyncio.Event()
    dispatcher = dispatcher_of([engine], setup_of(tiny))
    dispatcher.give(list(begun()))
    finished = worked(dispatcher, 2 * (TASKS - 1))
    assert {row for row, _ in finished} == {row for row in range(TASKS) if row != HANGING}
    assert dispatcher.busy
    assert dispatcher._loop is not None
    dispatcher._loop.call(Tool.released.set)
    finished |= worked(dispatcher, 2)
    assert not dispatcher.busy
    dispatcher.close()
    assert len(finished) == 2 * TASKS
    assert {f.completion.metrics["turns"] for f in finished.values()} == {LIMITS.turns}
    assert all(f.score == Score.of(float(f.key[0])) for f in finished.values())
    assert Tool.failures[FAILING] == 1  # began again from its task


class Elsewhere:
    """An attempt whose replies are awaited in another thread's loop, as by an agent's server."""

    async def __call__(self, task: Task, generate: Generate) -> Episode:
        episode = Episode(task=task, stop=StopReason.DONE, score=Score.of(1.0))
        episode.observe([1, 2, 3])
        context = Context(tuple(episode.tokens), 4)

        async def reply() -> Generated:
            return await generate(context)

        episode.act(await asyncio.to_thread(asyncio.run, reply()))
        return episode


def test_a_reply_may_be_awaited_in_another_loop(tiny: Tiny, engine: HFEngine) -> None:
    chat = PlainChat(AutoTokenizer.from_pretrained(tiny.model))
    setup = EpisodeSetup(EpisodeRunner(Elsewhere(), chat, LIMITS.prompt), print_event)
    dispatcher = dispatcher_of([engine], setup)
    dispatcher.give(list(begun(2)))
    finished = worked(dispatcher, 4)
    dispatcher.close()
    assert all(one.completion.length > 0 for one in finished.values())


class Several:
    """An attempt that asks for several replies at once, as an agent that compares drafts does."""

    async def __call__(self, task: Task, generate: Generate) -> Episode:
        episode = Episode(task=task, stop=StopReason.DONE, score=Score.of(1.0))
        for _ in range(2):  # then an engine knows the context
            contexts = [Context((1, 2, number), 4) for number in (3, 4, 5)]
            for reply in await asyncio.gather(*map(generate, contexts)):
                episode.act(reply)
        return episode


@pytest.mark.parametrize("lockstep", [False, True])
def test_an_episode_may_ask_for_several_replies_at_once(
    tiny: Tiny, engine: HFEngine, lockstep: bool
) -> None:
    chat = PlainChat(AutoTokenizer.from_pretrained(tiny.model))
    setup = EpisodeSetup(EpisodeRunner(Several(), chat, LIMITS.prompt), print_event)
    dispatcher = dispatcher_of([engine], setup, lockstep=lockstep)
    dispatcher.give(list(begun(2)))
    finished = worked(dispatcher, 4, seconds=20)
    dispatcher.close()
    assert {one.completion.metrics["turns"] for one in finished.values()} == {6}


def test_an_episode_does_not_depend_on_its_company(tiny: Tiny, engine: HFEngine) -> None:
    """Replies are drawn by the seeds of episode and turn: alone, together, or in lockstep."""
    Tool.released = asyncio.Event()
    Tool.released.set()

    def completions(groups: list[list[PartialRollout]], **own: Any) -> dict[Key, Completion]:
        dispatcher = dispatcher_of([engine], setup_of(tiny), **own)
        dispatcher.give(groups)
        finished = worked(dispatcher, sum(map(len, groups)))
        dispatcher.close()
        return {key: one.completion for key, one in finished.items()}

    together = completions(list(begun(20)))
    lockstep = completions(list(begun(20)), lockstep=True)
    alone = completions([list(begun(20))[3]])
    for key, completion in together.items():
        assert completion.tokens.tolist() == lockstep[key].tokens.tolist()
    assert together[3, 1].tokens.tolist() == alone[3, 1].tokens.tolist()


def test_replies_of_an_episode_come_from_the_engine_that_knows_its_context(
    tiny: Tiny, engine: HFEngine
) -> None:
    Tool.released = asyncio.Event()
    Tool.released.set()
    engines = [engine, HFEngine(settings(tiny))]
    written: dict[tuple[int, ...], set[int]] = defaultdict(set)
    (equals,) = engine._texts.prompt("=")
    for number, one in enumerate(engines):
        write = one.write

        def noting(
            partials: Sequence[PartialRollout], *rest: Any, number: int = number, write: Any = write
        ) -> Any:
            for partial in partials:
                assert partial.context is not None
                tokens = tuple(partial.context.tokens)
                written[tokens[: tokens.index(equals)]].add(number)
            return write(partials, *rest)

        one.write = noting  # type: ignore[method-assign,assignment]
    dispatcher = dispatcher_of(engines, setup_of(tiny))
    # One sample a row: those of a row share a context, and may begin on different engines. Five
    # an engine: with more than HOME_SURPLUS, another may take an episode over.
    dispatcher.give([group[:1] for group in begun(10)])
    worked(dispatcher, 10)
    dispatcher.close()
    assert len(written) == 10
    assert {number for numbers in written.values() for number in numbers} == {0, 1}
    assert all(len(numbers) == 1 for numbers in written.values())


def test_a_failure_ends_the_run_if_the_policy_says_so(tiny: Tiny, engine: HFEngine) -> None:
    Tool.released = asyncio.Event()
    dispatcher = dispatcher_of([engine], setup_of(tiny, OnFailure.FAIL))
    dispatcher.give(list(begun(FAILING + 1)))
    with pytest.raises(TrainingError, match=r"Tool\.step raised ConnectionError: for a moment"):
        worked(dispatcher, 2 * (FAILING + 1))
    dispatcher.close()
