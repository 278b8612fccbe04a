"""The critic's loss and its gradient against OpenRLHF's ValueLoss."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.oracles import ours
from tests.oracles.agreement import given, same
from tests.oracles.batches import Batch, batches
from tests.oracles.process import Peers


@given(batches(), st.sampled_from([0.01, 0.2, 0.5, 100.0]))
def test_the_clipped_value_loss_equals_openrlhf_s(
    peers: Peers, batch: Batch, value_clip: float
) -> None:
    theirs = peers.openrlhf(
        "value_loss",
        values=batch.values,
        arrays={
            "old_values": batch.old_values,
            "returns": batch.returns,
            "action_mask": batch.action_mask,
        },
        settings={"clip_eps": value_clip},
    )
    outcome = ours.value_loss(batch, value_clip)
    same(outcome.value, theirs["value"])
    same(outcome.gradient, theirs["gradient"])
