"""Models that share GPUs are called one after the other; what one keeps, ranks of others get."""

from __future__ import annotations

import pytest
import ray

from tests.support.benches import Benches
from tests.support.ranks import Workbench
from trainer.cluster.worker_group import Pieces, each
from trainer.types import LostWorkerError

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


def test_ranks_of_another_group_get_what_a_rank_has_kept_and_the_driver_nothing(
    benches: Benches,
) -> None:
    kept = benches[2].call_ranks_keeping(None, 2, Workbench.gives, 2)
    assert kept.ended.result() == [None, None]
    (a, b), (c, d) = kept.pieces
    given = [Pieces(policy=pieces) for pieces in ([a, c], [d], [b], [])]
    found = benches[4].call_ranks(Workbench.gets, each(given), each(["5", "6", "7", "8"])).result()
    assert found == [[0, 10, 5], [11, 6], [1, 7], [8]]


def test_what_is_lost_with_its_node_is_a_loss_of_the_role_that_kept_it(benches: Benches) -> None:
    kept = benches[2].call_ranks_keeping(None, 1, Workbench.gives, 1)
    kept.ended.result()
    pieces = [piece for of_rank in kept.pieces for piece in of_rank]
    ray._private.internal_api.free(pieces)
    given = Pieces(critic=pieces)
    with pytest.raises(LostWorkerError, match="what the critic computed is lost") as caught:
        benches[4].call_ranks(Workbench.gets, given, "0").result()
    assert (caught.value.role, caught.value.how) == ("critic", "its node was lost")
