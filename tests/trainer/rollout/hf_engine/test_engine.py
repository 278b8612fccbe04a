from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from env.types import Prompt
from tests.support.engines import settings, staged
from tests.support.local_workers import LocalLauncher
from tests.support.tiny_run import Tiny
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.generate import Generator
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import (
    Completion,
    EngineFailedError,
    PartialRollout,
    Request,
    UnfitModelError,
)
from trainer.weight_sync.shared_memory import SharedMemorySender

PROMPTS = [Prompt(n, f"{n}+{n * n}=") for n in range(7)]
SAMPLING = SamplingSettings(max_new_tokens=5)
GREEDY = SamplingSettings(max_new_tokens=5, temperature=0)


@pytest.fixture(scope="module")
def engine(tiny: Tiny) -> HFEngine:
    return HFEngine(settings(tiny))


def same(one: Completion, other: Completion) -> bool:
    return one.text == other.text and np.array_equal(one.tokens, other.tokens)


def test_the_same_completions_come_from_one_engine_and_from_three(tiny: Tiny) -> None:
    written = []
    for engines in (1, 3):
        group = LocalLauncher().launch(
            "engine", "trainer.rollout.hf_engine.engine:HFEngine", engines, settings(tiny)
        )
        generator = Generator(EnginePool(group), SAMPLING, 2, seed=3)
        written.append(generator.generate(PROMPTS, step=5).samples)
    assert [p.index for p, _ in written[0]] == [n for n in range(7) for _ in range(2)]
    assert all(same(a, b) for (_, a), (_, b) in zip(*written, strict=True))


def test_completions_follow_their_seed_and_nothing_before_it(engine: HFEngine) -> None:
    first, other, again = (
        engine.generate([Request(prompt.text, (seed,)) for prompt in PROMPTS], SAMPLING)
        for seed in (1, 2, 1)
    )
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert not all(same(a, b) for a, b in zip(first, other, strict=True))


def test_actions_are_the_written_tokens_up_to_the_first_end(engine: HFEngine) -> None:
    long = SamplingSettings(max_new_tokens=20)
    written = engine.generate([Request("1+1=", tuple(range(32)))], long)
    stop = engine._texts.tokenizer.eos_token_id
    assert {completion.finished for completion in written} == {True, False}
    for completion in written:
        assert not completion.action_mask[:4].any()
        assert completion.action_mask[4:].all()
        ends = np.flatnonzero(completion.tokens[4:] == stop)
        assert list(ends) == ([completion.length - 1] if completion.finished else [])
        assert completion.finished or completion.length == 20


@pytest.mark.parametrize("slots", [1, 3, 64])
def test_completions_are_the_same_however_many_share_a_batch(tiny: Tiny, slots: int) -> None:
    """Rows of other lengths beside it, early leavers, late joiners: none changes a completion."""
    long = SamplingSettings(max_new_tokens=20)
    requests = [Request(p.text, (p.index, p.index + 100, p.index + 200)) for p in PROMPTS]
    alone = HFEngine(settings(tiny, slots=slots))
    together = alone.generate(requests, long)
    singly = [
        completion
        for request in requests
        for seed in request.seeds
        for completion in alone.generate([Request(request.text, (seed,))], long)
    ]
    assert len({completion.length for completion in together}) > 3
    assert all(same(a, b) for a, b in zip(together, singly, strict=True))


def test_greedy_completions_are_those_of_transformers(tiny: Tiny) -> None:
    from transformers import GenerationConfig

    engine = HFEngine(settings(tiny, slots=5))
    plain = GenerationConfig(max_new_tokens=20, do_sample=False, eos_token_id=engine._stops)
    written = engine.generate(
        [Request(prompt.text, (0,)) for prompt in PROMPTS],
        SamplingSettings(max_new_tokens=20, temperature=0),
    )
    for prompt, completion in zip(PROMPTS, written, strict=True):
        ids = engine._texts.tokenizer(prompt.text, return_tensors="pt")["input_ids"]
        expected = engine._model.generate(ids, generation_config=plain)[0]
        assert completion.tokens.tolist() == expected.tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probs_are_those_of_the_distribution_before_its_tail_is_cut(
    engine: HFEngine, temperature: float
) -> None:
    sampling = SamplingSettings(max_new_tokens=20, temperature=temperature, top_p=0.8)
    completions = engine.generate([Request("12+3=", tuple(range(8)))], sampling)
    assert len(completions) == 8
    for completion in completions:
        tokens = torch.from_numpy(completion.tokens).long()
        with torch.no_grad():
            logits = engine._model(input_ids=tokens[None]).logits[0, :-1] / temperature
        expected = logits.log_softmax(-1).gather(-1, tokens[1:, None]).squeeze(-1)
        expected = expected.where(torch.from_numpy(completion.action_mask[1:]), 0)
        assert completion.log_probs[0] == 0
        assert np.allclose(completion.log_probs[1:], expected, atol=1e-5)


def test_a_model_that_remembers_by_a_state_is_refused() -> None:
    from transformers import AutoConfig

    from trainer.rollout.hf_engine.cache import holds

    assert holds(AutoConfig.for_model("gemma3_text"))
    assert not holds(AutoConfig.for_model("qwen3_next"))


def test_a_long_prompt_loses_its_beginning(tiny: Tiny) -> None:
    short = HFEngine(settings(tiny, prompt_max_len=3))
    completion = short.generate([Request("11+22=", (0,))], SAMPLING)[0]
    kept = short._texts.tokenizer("22=")["input_ids"]
    assert completion.tokens[:3].tolist() == kept


def test_completions_carry_the_version_of_the_weights_that_wrote_them(engine: HFEngine) -> None:
    outbox = SharedMemorySender()
    engine.load(staged(outbox, dict(engine._model.named_parameters())))
    engine.commit(version=9)
    assert engine.generate([Request("1+1=", (0,))], SAMPLING)[0].version == 9


def test_new_weights_are_what_is_sampled_from(tiny: Tiny) -> None:
    fresh = HFEngine(settings(tiny))
    weights = {name: p.detach().clone() for name, p in fresh._model.named_parameters()}
    before = fresh.generate([Request("12+34=", (0,))], GREEDY)[0]
    favourite = 7
    weights["model.embed_tokens.weight"][:] = 0
    weights["model.norm.weight"][:] = 1
    weights["model.embed_tokens.weight"][favourite] = 10
    outbox = SharedMemorySender()
    fresh.load(staged(outbox, weights))
    fresh.commit(version=1)
    after = fresh.generate([Request("12+34=", (0,))], GREEDY)[0]
    assert not same(before, after)


def checking(tiny: Tiny, every: int, version: int) -> HFEngine:
    """An engine that checks the weights of each so many versions, with those of `version`."""
    engine = HFEngine(replace(settings(tiny), weight_check_steps=every))
    outbox = SharedMemorySender()
    engine.begin()
    engine.load(staged(outbox, dict(engine._model.named_parameters())))
    engine.commit(version)
    return engine


def flip(engine: HFEngine) -> None:
    """One bit of one weight, as a memory does."""
    words = engine._model.model.embed_tokens.weight.data.view(torch.int32)
    words[3, 5] ^= 1 << 12


def test_no_sample_leaves_an_engine_whose_memory_changed_a_bit_of_its_weights(tiny: Tiny) -> None:
    engine = checking(tiny, every=2, version=4)
    requests = [Request("1+1=", (0,))]
    assert engine.generate(requests, SAMPLING)[0].version == 4
    flip(engine)
    partial = PartialRollout((0, 0), "1+1=", 0)
    told = "memory changed a bit of the weights of step 4"
    with pytest.raises(EngineFailedError, match=told):
        engine.generate(requests, SAMPLING)
    with pytest.raises(EngineFailedError, match=told):
        engine.write([partial], SAMPLING, 60.0)


def test_other_versions_and_new_weights_are_no_fault(tiny: Tiny) -> None:
    requests = [Request("1+1=", (0,))]
    for every, version in ((0, 4), (3, 4)):
        engine = checking(tiny, every, version)
        flip(engine)
        assert engine.generate(requests, SAMPLING)
    engine = checking(tiny, every=1, version=4)
    flip(engine)
    outbox = SharedMemorySender()
    engine.begin()
    engine.load(staged(outbox, dict(engine._model.named_parameters())))
    engine.commit(5)
    assert engine.generate(requests, SAMPLING)[0].version == 5


def test_a_model_without_an_end_token_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trainer.rollout.tokenizer_io import stop_tokens

    model = AutoModelForCausalLM.from_pretrained(tiny.model)
    tokenizer = AutoTokenizer.from_pretrained(tiny.model)
    model.generation_config.eos_token_id = tokenizer.eos_token = None
    with pytest.raises(UnfitModelError, match="end-of-sequence"):
        stop_tokens(model.generation_config, tokenizer)
