from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.tiny_run import to_argv
from trainer.supervised.batches import faults, passes
from trainer.supervised.options import StageFlags
from trainer.supervised.parse import parse


def flags(batch: int, micro: int | None) -> StageFlags:
    given = {"pretrain": "o/m", "dataset": "o/d", "save_path": "/o", "train_batch_size": batch}
    return parse("sft", to_argv({**given, "micro_train_batch_size": micro})).flags


@given(st.integers(1, 64), st.integers(1, 9), st.integers(1, 70))
def test_without_a_flag_passes_are_as_large_as_they_may_be(
    share: int, world: int, largest: int
) -> None:
    found = passes(flags(share * world, None), largest, world)
    assert found.samples * found.count == share
    assert found.samples <= largest
    larger = range(found.samples + 1, min(share, largest) + 1)
    assert not [size for size in larger if share % size == 0]


@given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 9))
def test_a_batch_that_cannot_be_split_is_a_fault(batch: int, micro: int, world: int) -> None:
    assume(batch % micro == 0)
    found = list(faults(flags(batch, micro), world))
    assert bool(found) == (batch % (micro * world) != 0)
    if found:
        near = int(found[0].remedy.split()[1])
        assert list(faults(flags(near, micro), world)) == []
