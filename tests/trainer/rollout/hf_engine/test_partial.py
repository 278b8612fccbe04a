"""Completions that an engine writes piece by piece, while weights come and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from env.episodes.types import Context
from tests.support.engines import TEXTS, State, settings, staged
from tests.support.tiny_run import Tiny
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine import Engine
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import Completion, FinishedRollout, Key, PartialRollout, Request
from trainer.weight_sync.shared_memory import SharedMemorySender

SAMPLING = SamplingSettings(max_new_tokens=20)
AT_ONCE = 60.0
A_STEP = 0.0
"""Seconds: an engine makes at least one step a call."""


@pytest.fixture
def engine(tiny: Tiny) -> HFEngine:
    return HFEngine(settings(tiny))


def begun() -> list[PartialRollout]:
    return [
        PartialRollout((group, number), text, 100 * group + number)
        for group, text in enumerate(TEXTS)
        for number in range(4)
    ]


def written_on(
    engine: Engine, partials: Sequence[PartialRollout], calls: int
) -> dict[Key, Completion]:
    """What ends in so many calls of one step each."""
    ended: dict[Key, Completion] = {}
    for call in range(calls):
        told = engine.write(partials if call == 0 else [], SAMPLING, A_STEP)
        ended |= {one.key: one.completion for one in told.ended}
        assert not ended.keys() & told.left
    return ended


def moved(engine: HFEngine, seed: int) -> State:
    """Other weights than those of the engine."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: p.detach() + 0.1 * torch.randn(p.shape, generator=generator)
        for name, p in engine._model.named_parameters()
    }


def load(engine: HFEngine, state: State, version: int) -> None:
    outbox = SharedMemorySender()  # who gives weights keeps them while they are taken
    engine.load(staged(outbox, state))
    engine.commit(version)


def test_what_is_written_in_pieces_is_what_is_written_at_once(engine: HFEngine) -> None:
    requests = [Request(text, tuple(100 * n + i for i in range(4))) for n, text in enumerate(TEXTS)]
    at_once = engine.generate(requests, SAMPLING)
    in_pieces = written_on(engine, begun(), calls=21)
    assert [partial.key for partial in begun()] == sorted(in_pieces)
    for partial, expected in zip(begun(), at_once, strict=True):
        completion = in_pieces[partial.key]
        assert completion.text == expected.text
        assert completion.finished == expected.finished
        assert np.array_equal(completion.tokens, expected.tokens)
        assert np.array_equal(completion.log_probs, expected.log_probs)
        assert np.array_equal(completion.versions, expected.versions)


def test_a_token_is_sent_in_13_bytes_to_the_driver_and_back(engine: HFEngine) -> None:
    """Token, log-probability and version have 4 bytes each, and the mask has one."""
    completions = engine.generate([Request("1+1=", (0, 1))], SAMPLING)
    ended = written_on(engine, begun(), calls=5)
    assert engine.partials()
    assert ended
    sent: list[Completion | PartialRollout] = [*completions, *ended.values(), *engine.partials()]
    for one in sent:
        assert {array.itemsize for array in (one.tokens, one.log_probs, one.versions)} == {4}
    assert completions[0].action_mask.itemsize == 1


def test_each_token_is_of_the_weights_whose_version_it_carries(engine: HFEngine) -> None:
    """Also what comes before it has passed through those very weights."""
    weights = {version: moved(engine, version) for version in (3, 4, 5)}
    load(engine, weights[3], 3)
    ended = written_on(engine, begun(), calls=5)
    load(engine, weights[4], 4)
    ended |= written_on(engine, [], calls=4)
    load(engine, weights[5], 5)
    ended |= written_on(engine, [], calls=20)
    assert {key for key, c in ended.items() if set(c.versions[c.action_mask]) == {3, 4, 5}}
    assert {c.version for c in ended.values()} == {3}
    for completion in ended.values():
        assert set(completion.versions[~completion.action_mask]) <= {-1}
        for version in set(completion.versions[completion.action_mask]):
            load(engine, weights[version], version)
            tokens = torch.from_numpy(completion.tokens).long()
            with torch.no_grad():
                logits = engine._model(input_ids=tokens[None]).logits[0, :-1]
            expected = logits.log_softmax(-1).gather(-1, tokens[1:, None]).squeeze(-1).numpy()
            of_version = completion.versions[1:] == version
            told = completion.log_probs[1:]
            assert np.allclose(told[of_version], expected[of_version], atol=1e-5)


def test_partial_rollouts_go_on_in_another_engine_as_in_their_own(
    tiny: Tiny, engine: HFEngine
) -> None:
    ended = written_on(engine, begun(), calls=3)
    handed_over = engine.partials()
    assert {partial.key for partial in handed_over} == {d.key for d in begun()} - ended.keys()
    assert all(1 <= len(partial.tokens) <= 3 for partial in handed_over)
    other = HFEngine(settings(tiny))
    theirs, ours = written_on(other, handed_over, calls=20), written_on(engine, [], calls=20)
    assert theirs.keys() == ours.keys()
    for key, completion in ours.items():
        assert np.array_equal(completion.tokens, theirs[key].tokens)
        assert np.allclose(completion.log_probs, theirs[key].log_probs, atol=1e-5)


def test_partial_rollouts_may_join_others_that_are_half_written(tiny: Tiny) -> None:
    narrow = HFEngine(settings(tiny, slots=5))
    first, later = begun()[:6], begun()[6:]
    ended = written_on(narrow, first, calls=4) | written_on(narrow, later, calls=80)
    alone = written_on(HFEngine(settings(tiny)), begun(), calls=21)
    assert ended.keys() == alone.keys()
    assert all(np.array_equal(ended[key].tokens, alone[key].tokens) for key in alone)


def test_what_is_evaluated_meanwhile_changes_no_draft(engine: HFEngine) -> None:
    undisturbed = written_on(engine, begun(), calls=21)
    ended = written_on(engine, begun(), calls=3)
    engine.generate([Request("5+5=", (1, 2))], replace(SAMPLING, temperature=0.0))
    ended |= written_on(engine, [], calls=20)
    assert all(np.array_equal(ended[key].tokens, c.tokens) for key, c in undisturbed.items())


def test_nothing_is_written_while_weights_are_not_whole(engine: HFEngine) -> None:
    ended = written_on(engine, begun(), calls=1)
    outbox = SharedMemorySender()
    engine.load(staged(outbox, {"model.norm.weight": torch.ones(16)}))
    with pytest.raises(RuntimeError, match="weights are incomplete"):
        engine.write([], SAMPLING, AT_ONCE)
    assert len(engine.partials()) == len(begun()) - len(ended)


def in_context(engine: HFEngine, limit: int = 20, stops: tuple[str, ...] = ()) -> PartialRollout:
    tokens = tuple(engine._texts.prompt("12+30="))
    return PartialRollout((9, 0), "", 7, context=Context(tokens, limit, stops))


def test_a_context_of_tokens_is_continued_like_its_text(engine: HFEngine) -> None:
    ended = engine.write([in_context(engine)], SAMPLING, AT_ONCE).ended
    (expected,) = engine.generate([Request("12+30=", (7,))], SAMPLING)
    assert ended[0].completion.text == expected.text
    assert (ended[0].completion.tokens == expected.tokens).all()


def test_a_context_has_its_own_longest_length(engine: HFEngine) -> None:
    written = engine.write([in_context(engine, 2), *begun()], SAMPLING, AT_ONCE).ended
    lengths = {one.key: one.completion.length for one in written}
    assert lengths.pop((9, 0)) == 2
    assert max(lengths.values()) == 20


@pytest.mark.parametrize("seconds", [A_STEP, AT_ONCE])
def test_a_stop_string_ends_a_reply_at_the_same_token(engine: HFEngine, seconds: float) -> None:
    (whole,) = engine.generate([Request("12+30=", (7,))], SAMPLING)
    stop = whole.text[4:6]
    partial = in_context(engine, stops=("never", stop))
    ended: list[FinishedRollout] = []
    while not ended:
        ended = engine.write([partial] if partial.seed else [], SAMPLING, seconds).ended
        partial = replace(partial, seed=0)
    completion = ended[0].completion
    assert completion.text == whole.text[: whole.text.index(stop) + 2]
    assert completion.finished
    assert len(completion.tokens) == len(completion.versions) == len(completion.log_probs)
    context = in_context(engine, stops=(stop,)).context
    (at_once,) = engine.generate([Request("", (7,), context)], SAMPLING)
    assert at_once.text == completion.text
