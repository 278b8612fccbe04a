"""The stream's order, and that a resume at any point changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env.data.prompts import PromptError, PromptStream, ReadSettings


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stream") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input": f"p{n}", "a": n}) + "\n" for n in range(23)))
    return path


def texts(stream: PromptStream, sizes: list[int]) -> list[list[str]]:
    return [[prompt.text for prompt in stream.next_batch(size)] for size in sizes]


@settings(max_examples=60)
@given(
    rows=st.integers(1, 23),
    seed=st.integers(-(2**70), 2**70),
    before=st.lists(st.integers(1, 60), max_size=6),
    after=st.lists(st.integers(1, 60), min_size=1, max_size=4),
)
def test_a_stream_resumed_anywhere_deals_what_an_uninterrupted_one_would(
    data: Path, rows: int, seed: int, before: list[int], after: list[int]
) -> None:
    uninterrupted = PromptStream(data, ReadSettings(max_samples=rows), seed=seed)
    expected = texts(uninterrupted, before + after)[len(before) :]

    killed = PromptStream(data, ReadSettings(max_samples=rows), seed=seed)
    texts(killed, before)
    state = json.loads(json.dumps(killed.state_dict()))
    resumed = PromptStream(data, ReadSettings(max_samples=rows), seed=seed)
    resumed.load_state_dict(state)

    assert texts(resumed, after) == expected
    assert resumed.state_dict() == uninterrupted.state_dict()


@settings(max_examples=40)
@given(rows=st.integers(1, 23), size=st.integers(1, 60), batches=st.integers(1, 8))
def test_every_epoch_deals_every_prompt_once(
    data: Path, rows: int, size: int, batches: int
) -> None:
    stream = PromptStream(data, ReadSettings(max_samples=rows))
    dealt = [text for batch in texts(stream, [size] * batches) for text in batch]
    assert stream.epoch == len(dealt) // rows
    for start in range(0, len(dealt) - rows + 1, rows):
        assert max(Counter(dealt[start : start + rows]).values()) == 1


def test_the_order_differs_between_epochs_and_seeds_and_is_fixed_for_all_time(data: Path) -> None:
    stream = PromptStream(data, seed=0)
    first, second = texts(stream, [23, 23])
    (other,) = texts(PromptStream(data, seed=1), [23])
    assert len({tuple(first), tuple(second), tuple(other)}) == 3
    # A checkpoint of an older release must go on with the same prompts.
    assert first[:6] == ["p14", "p18", "p8", "p16", "p13", "p9"]


def test_index_and_label_belong_to_the_row_in_every_epoch(data: Path) -> None:
    stream = PromptStream(data, ReadSettings(label_key="a"))
    for prompt in stream.next_batch(3 * len(stream)):
        assert (prompt.text, prompt.label) == (f"p{prompt.index}", str(prompt.index))


def test_the_global_random_state_is_neither_used_nor_changed(data: Path) -> None:
    import random

    random.seed(7)
    state = random.getstate()
    first = texts(PromptStream(data), [5])
    assert random.getstate() == state
    random.seed(8)
    assert texts(PromptStream(data), [5]) == first


def test_a_cursor_of_other_prompts_or_another_seed_is_refused(data: Path, tmp_path: Path) -> None:
    state = PromptStream(data, seed=3).state_dict()
    with pytest.raises(PromptError, match=r"its seed is 3, here it is 4. Give --seed 3, or an"):
        PromptStream(data, seed=4).load_state_dict(state)
    with pytest.raises(PromptError, match=r"it had 23 prompts, here are 5. Give the data of that"):
        PromptStream(data, ReadSettings(max_samples=5), seed=3).load_state_dict(state)
    changed = tmp_path / "changed.jsonl"
    changed.write_text(data.read_text().replace("p7", "p8"))
    says = (
        r"other prompts than .*changed\.jsonl: their texts, labels or order differ. Give the data"
    )
    with pytest.raises(PromptError, match=f"{says}.*, or another --run_dir"):
        PromptStream(changed, seed=3).load_state_dict(state)
    with pytest.raises(PromptError, match="has no 'position'"):
        PromptStream(data, seed=3).load_state_dict({"epoch": 0})


def test_a_batch_of_nothing_is_an_error(data: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PromptStream(data).next_batch(0)
