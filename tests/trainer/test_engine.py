from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from env.types import Prompt
from tests.trainer.harness import Tiny
from trainer.actors.group import LocalLauncher
from trainer.engines.base import Chunk, EngineSettings
from trainer.engines.hf import HFEngine
from trainer.rollouts import Rollouts
from trainer.types import Completion, Sampling

PROMPTS = [Prompt(n, f"{n}+{n * n}=") for n in range(7)]
SAMPLING = Sampling(max_new_tokens=5)


def settings(tiny: Tiny, prompt_max_len: int = 32) -> EngineSettings:
    return EngineSettings(
        model=str(tiny.model),
        add_special_tokens=True,
        prompt_max_len=prompt_max_len,
        mixed_precision=False,
    )


@pytest.fixture(scope="module")
def engine(tiny: Tiny) -> HFEngine:
    return HFEngine(settings(tiny))


def same(one: Completion, other: Completion) -> bool:
    return one.text == other.text and np.array_equal(one.tokens, other.tokens)


def test_the_same_completions_come_from_one_engine_and_from_three(tiny: Tiny) -> None:
    written = []
    for engines in (1, 3):
        group = LocalLauncher().launch(
            "engine", "trainer.engines.hf:HFEngine", engines, settings(tiny)
        )
        written.append(Rollouts(group, SAMPLING, 2, 4, seed=3).generate(PROMPTS, step=5))
    assert [p.index for p, _ in written[0]] == [n for n in range(7) for _ in range(2)]
    assert all(same(a, b) for (_, a), (_, b) in zip(*written, strict=True))


def test_completions_follow_their_seed_and_nothing_before_it(engine: HFEngine) -> None:
    texts = tuple(prompt.text for prompt in PROMPTS)
    first = engine.generate([Chunk(texts, seed=1)], SAMPLING)
    other = engine.generate([Chunk(texts, seed=2)], SAMPLING)
    again = engine.generate([Chunk(texts, seed=1)], SAMPLING)
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert not all(same(a, b) for a, b in zip(first, other, strict=True))


def test_actions_are_the_written_tokens_up_to_the_first_end(engine: HFEngine) -> None:
    long = Sampling(max_new_tokens=20)
    written = engine.generate([Chunk(tuple("1+1=" for _ in range(32)), seed=0)], long)
    stop = engine._tokenizer.eos_token_id
    assert {completion.finished for completion in written} == {True, False}
    for completion in written:
        assert not completion.actions[:4].any()
        assert completion.actions[4:].all()
        ends = np.flatnonzero(completion.tokens[4:] == stop)
        assert list(ends) == ([completion.length - 1] if completion.finished else [])
        assert completion.finished or completion.length == 20


def test_a_long_prompt_loses_its_beginning(tiny: Tiny) -> None:
    short = HFEngine(settings(tiny, prompt_max_len=3))
    completion = short.generate([Chunk(("11+22=",), seed=0)], SAMPLING)[0]
    kept = short._tokenizer("22=")["input_ids"]
    assert completion.tokens[:3].tolist() == kept


def test_completions_carry_the_version_of_the_weights_that_wrote_them(engine: HFEngine) -> None:
    weights = {name: p.detach().numpy().copy() for name, p in engine._model.named_parameters()}
    engine.load(weights, version=9)
    assert engine.generate([Chunk(("1+1=",), seed=0)], SAMPLING)[0].version == 9
    engine.load(weights, version=0)


def test_new_weights_are_what_is_sampled_from(tiny: Tiny) -> None:
    fresh = HFEngine(settings(tiny))
    weights = {name: p.detach().numpy().copy() for name, p in fresh._model.named_parameters()}
    before = fresh.generate([Chunk(("12+34=",), seed=0)], SAMPLING.greedy())[0]
    favourite = 7
    weights["model.embed_tokens.weight"][:] = 0
    weights["model.norm.weight"][:] = 1
    weights["model.embed_tokens.weight"][favourite] = 10
    fresh.load(weights, version=1)
    after = fresh.generate([Chunk(("12+34=",), seed=0)], SAMPLING.greedy())[0]
    assert not same(before, after)


def test_a_model_without_an_end_token_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trainer.engines.hf import _stop_tokens

    model = AutoModelForCausalLM.from_pretrained(tiny.model)
    tokenizer = AutoTokenizer.from_pretrained(tiny.model)
    model.generation_config.eos_token_id = tokenizer.eos_token = None
    with pytest.raises(ValueError, match="end-of-sequence"):
        _stop_tokens(model, tokenizer)
