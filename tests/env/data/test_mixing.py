"""Several data sets as one stream: which rows, in which shares, and resumed to the bit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from env.data.prompts import PromptError, PromptStream, ReadSettings, mixed
from env.types import Prompt

SIZES = {"a": 40, "b": 15, "c": 25}
SHARES = (0.5, 0.3, 0.2)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("sets")
    for name, size in SIZES.items():
        rows = (json.dumps({"input": f"{name}{row}"}) + "\n" for row in range(size))
        (root / f"{name}.jsonl").write_text("".join(rows))
    return [root / f"{name}.jsonl" for name in SIZES]


def texts(prompts: list[Prompt]) -> list[str]:
    return [prompt.text for prompt in prompts]


def test_without_shares_an_epoch_deals_every_row_of_every_set_once(sets: list[Path]) -> None:
    stream = PromptStream(sets)
    assert len(stream) == sum(SIZES.values())
    dealt = texts(stream.next_batch(len(stream)))
    assert sorted(dealt) == sorted(f"{name}{row}" for name in SIZES for row in range(SIZES[name]))
    assert [prompt.index for prompt in stream.prompts] == list(range(len(stream)))


def test_with_shares_each_set_has_its_share_and_all_its_rows() -> None:
    rows = [[Prompt(row, f"{name}{row}", None) for row in range(2000)] for name in SIZES]
    mix = mixed(rows, SHARES, seed=3)
    shares = Counter(prompt.text[0] for prompt in mix)
    for name, share in zip(SIZES, SHARES, strict=True):
        assert shares[name] / len(mix) == pytest.approx(share, abs=0.02)
    assert len({prompt.text for prompt in mix}) == 6000
    assert [prompt.index for prompt in mix] == list(range(len(mix)))


def test_shares_are_weights_and_the_seed_decides_the_mix(sets: list[Path]) -> None:
    stream = PromptStream(sets, seed=5, shares=SHARES)
    assert stream.prompts == PromptStream(sets, seed=5, shares=(5, 3, 2)).prompts
    assert stream.prompts != PromptStream(sets, seed=6, shares=SHARES).prompts
    assert PromptStream(sets, seed=-1, shares=SHARES).prompts


@pytest.mark.parametrize("shares", [(), SHARES])
@pytest.mark.parametrize("before", [1, 37, 300])
def test_a_mixed_stream_resumed_anywhere_deals_what_an_uninterrupted_one_would(
    sets: list[Path], shares: tuple[float, ...], before: int
) -> None:
    uninterrupted = PromptStream(sets, seed=7, shares=shares)
    uninterrupted.next_batch(before)
    state = json.loads(json.dumps(uninterrupted.state_dict()))
    resumed = PromptStream(sets, seed=7, shares=shares)
    resumed.load_state_dict(state)
    assert resumed.next_batch(400) == uninterrupted.next_batch(400)
    assert resumed.state_dict() == uninterrupted.state_dict()


def test_a_cursor_of_other_sets_or_shares_or_of_another_order_is_refused(sets: list[Path]) -> None:
    state = PromptStream(sets, seed=7).state_dict()
    other = "the saved cursor belongs to other prompts than .*a.jsonl"
    for changed in (sets[:2], sets[::-1]):
        with pytest.raises(PromptError, match="the saved cursor belongs to other prompts than"):
            PromptStream(changed, seed=7).load_state_dict(state)
    with pytest.raises(PromptError, match=other):
        PromptStream(sets, seed=7, shares=SHARES).load_state_dict(state)
    mixed_state = PromptStream(sets, seed=7, shares=SHARES).state_dict()
    with pytest.raises(PromptError, match=other):
        PromptStream(sets, seed=7, shares=(0.2, 0.3, 0.5)).load_state_dict(mixed_state)


def test_one_set_has_the_cursor_that_it_had_before(sets: list[Path]) -> None:
    assert PromptStream(sets[0]).state_dict() == PromptStream(sets[:1]).state_dict()


def test_max_samples_bounds_each_set_and_the_mix(sets: list[Path]) -> None:
    stream = PromptStream(sets, ReadSettings(max_samples=30))
    assert texts(list(stream.prompts)) == [f"a{row}" for row in range(30)]
    drawn = PromptStream(sets, ReadSettings(max_samples=30), shares=SHARES).prompts
    assert len(drawn) == 30
    assert {prompt.text[0] for prompt in drawn} == set(SIZES)


def test_a_mix_that_no_memory_holds_is_refused(sets: list[Path]) -> None:
    with pytest.raises(PromptError, match=r"a mix of some 40000000040 rows, and 10000000 are the"):
        PromptStream(sets[:2], shares=(1e-9, 1)).next_batch(1)
