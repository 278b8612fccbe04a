"""Ranks' gradients go over the wire in few messages, and before the backward pass has ended."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn

from trainer.cluster import rendezvous
from trainer.workers.ddp import Buckets, cut

LAYER = 4 * 3 * 3
"""Bytes"""


@pytest.fixture
def alone() -> None:
    """Set up a group of one rank, and leave it: DeepSpeed's tests in this process keep theirs."""
    rendezvous.alone()


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(4)))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


def test_a_bucket_holds_what_fits_and_one_type_only() -> None:
    sizes = (2, 2, 5, 9, 1)
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    half = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    buckets = cut([*parameters, half], 4 * 8)
    assert [[len(one) for one in bucket] for bucket in buckets] == [[2, 2], [5], [9], [1], [1]]
    assert buckets[-1] == [half]


@pytest.mark.usefixtures("alone")
def test_gradients_are_those_of_all_passes(model: nn.Sequential) -> None:
    inputs = torch.randn(3, 2, 3)
    model(inputs).sum().backward()
    expected = gradients(model)
    model.zero_grad()
    buckets = Buckets(model, model, 2 * LAYER)
    for update in range(2):  # the second finds nothing that the first has left behind
        for number, part in enumerate(inputs):
            if number == len(inputs) - 1:
                buckets.expect()
            model(part).sum().backward()
        buckets.finish()
        torch.testing.assert_close(gradients(model), expected, msg=f"update {update}")
        model.zero_grad()


@pytest.mark.usefixtures("alone")
def test_the_last_pass_sends_while_it_runs_and_no_other_does(
    model: nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    reduce = distributed.all_reduce

    def told(tensor: torch.Tensor, *, async_op: bool) -> object:
        happened.append(f"{tensor.numel()} sent")
        return reduce(tensor, async_op=async_op)

    monkeypatch.setattr(distributed, "all_reduce", told)
    buckets = Buckets(model, model, 2 * LAYER)
    first = model[0]
    assert isinstance(first, nn.Linear)
    first.weight.register_hook(lambda _: happened.append("first layer reached"))
    model(torch.randn(2, 3)).sum().backward()
    assert happened == ["first layer reached"]
    happened.clear()
    buckets.expect()
    model(torch.randn(2, 3)).sum().backward()
    buckets.finish()
    assert happened == ["18 sent", "first layer reached", "18 sent"]


@pytest.mark.usefixtures("alone")
def test_what_a_rank_s_samples_left_out_counts_as_zero(model: nn.Sequential) -> None:
    buckets = Buckets(model, model, LAYER)
    buckets.expect()
    model[2](torch.randn(2, 3)).sum().backward()
    buckets.finish()
    found = gradients(model)
    assert len(found) == 4
    assert [bool(one.any()) for one in found] == [False, False, True, False]
