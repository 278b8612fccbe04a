"""Episodes of several turns with slow tools, against a naive loop and against batches.

256 episodes of 4 turns; after each reply a tool takes 50 to 500 ms. One transformers engine in this
process writes replies of at most 24 tokens with a model of 0.2 million parameters. All sides have
the same environment, model and sampling:

    episodes   a reply goes to the engine as soon as its episode asks for it
    loop       turn by turn: one batch of replies, then one tool call after the other
    batches    turn by turn, 64 episodes at a time, which are what the engine decodes at once: one
               batch of replies, then all tool calls at once
    one_batch  the same with all 256 episodes at a time

The value is the throughput (episodes per second) against `batches`. The loop has 32 episodes: its
tools alone take 1.1 s an episode. Against `one_batch`, 2.1 is the most that any schedule can reach:
the tools of that side take 2.0 s, and those of the slowest episode 1.8 s.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from transformers import AutoTokenizer

from bench.result import report
from env.episodes.attempts import EnvironmentAttempt, EpisodeRunner
from env.episodes.chat import PlainChat
from env.episodes.environment import Environment
from env.episodes.types import Limits, Reply, Task, Turn
from env.http.arguments import positive
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from env.types import Messages, Score
from tests.support.local_workers import LocalWorkerGroup
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.dispatcher import EngineDispatcher
from trainer.rollout.engine import EngineSettings
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.episodes import EpisodeDispatcher, EpisodeSetup
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.rollout.wave_writer import WaveWriter
from trainer.types import PartialRollout

TARGET = 2.0
EPISODES, TURNS, LONGEST = 256, 4, 24
IN_LOOP = 32
"""Episodes of the naive loop."""
FASTEST, SLOWEST = 0.05, 0.5
"""Seconds of a tool."""
SLOTS = 64
LIMITS = Limits(turns=TURNS, prompt=32, reply=LONGEST, observation=16, total=256)


class Slow(Environment):
    """A tool whose time depends on the row and the turn alone."""

    one_by_one: asyncio.Lock | None = None
    """Held while a tool runs, if tools run one after the other."""

    async def reset(self, task: Task) -> Messages:
        self._random = random.Random(task.index)
        self._turns = 0
        return task.messages

    async def step(self, reply: Reply) -> Turn:
        seconds = self._random.uniform(FASTEST, SLOWEST)
        async with self.one_by_one or nullcontext():
            await asyncio.sleep(seconds)
        self._turns += 1
        return Turn(text="+1=", done=self._turns == TURNS, reward=0.0)

    async def score(self, episode: object) -> Score:
        return Score.of(0.0)


def rate(
    engines: EnginePool, setup: EpisodeSetup, episodes: int = EPISODES, batch: int | None = None
) -> float:
    """Return episodes per second. `batch`: episodes at a time, turn by turn; None: no batches."""
    sampling = SamplingSettings(max_new_tokens=LONGEST)
    turns = WaveWriter(engines, sampling) if batch else EngineDispatcher(engines, sampling, 60)
    dispatcher = EpisodeDispatcher(turns, setup, lockstep=batch is not None)
    finished = 0
    begun = time.monotonic()
    together = batch or episodes
    for first in range(0, episodes, together):
        dispatcher.give([[_partial(first + number)] for number in range(together)])
        while dispatcher.busy:
            finished += len(dispatcher.work(0.02))
    seconds = time.monotonic() - begun
    dispatcher.close()
    assert finished == episodes
    return episodes / seconds


def _partial(number: int) -> PartialRollout:
    text = f"{number}+{number}="
    task = Task(number, [{"role": "user", "content": text}], text=text)
    return PartialRollout((number, 0), text, number, task=task)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="rc-episodes-") as directory:
        model = Path(directory) / "model"
        write_model(TinyModel(hidden_size=64, layers=2, heads=4), "0123456789+=", model)
        engine = HFEngine(
            EngineSettings(
                model=str(model),
                add_special_tokens=True,
                prompt_max_len=LIMITS.prompt,
                sampling=SamplingSettings(max_new_tokens=LONGEST),
                mixed_precision=False,
                slots=SLOTS,
            )
        )
        engines = EnginePool(LocalWorkerGroup([engine]))
        chat = PlainChat(AutoTokenizer.from_pretrained(model))
        runner = EpisodeRunner(EnvironmentAttempt(Slow, chat, LIMITS), chat, LIMITS.prompt)
        setup = EpisodeSetup(runner, lambda kind, sentence, **_: print(sentence, flush=True))
        rate(engines, setup, batch=SLOTS)  # warm
        sides = {"episodes": None, "batches": SLOTS, "one_batch": EPISODES}
        found = [
            {name: rate(engines, setup, batch=batch) for name, batch in sides.items()}
            for _ in range(rounds)
        ]
        Slow.one_by_one = asyncio.Lock()
        loop = rate(engines, setup, IN_LOOP, IN_LOOP)

    def against(name: str) -> float:
        return round(statistics.median(one["episodes"] / one[name] for one in found), 3)

    ok = report(
        "episodes",
        against("batches"),
        unit="ratio",
        target=TARGET,
        better="higher",
        detail={
            "against_one_batch": against("one_batch"),
            "against_loop": round(statistics.median(one["episodes"] for one in found) / loop, 1),
            **{f"{name}_per_second": [round(one[name], 2) for one in found] for name in sides},
            "loop_per_second": round(loop, 3),
            "episodes": EPISODES,
            "turns": TURNS,
        },
    )
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
