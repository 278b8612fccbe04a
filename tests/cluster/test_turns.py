"""Models that share GPUs are called one after the other."""

from __future__ import annotations

import pytest

from tests.support.benches import Benches
from tests.support.ranks import Workbench

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_a_call_after_another_group_s_begins_once_that_one_has_ended(benches: Benches) -> None:
    first = benches[2].call_ranks(Workbench.takes, 1.0)
    second = benches[4].call_ranks_after(first, Workbench.takes, 0.0)
    ended = max(end for _, end in first.result())
    assert min(begin for begin, _ in second.result()) >= ended


def test_a_call_after_one_that_fails_is_made_all_the_same(benches: Benches) -> None:
    first = benches[1].call_ranks(Workbench.fails)
    assert benches[2].call_ranks_after(first, Workbench.takes, 0.0).result()
    with pytest.raises(Exception, match="it fails"):
        first.result()
