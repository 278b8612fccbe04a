"""How the ranks of a model train it together: what differs between whole and sharded weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn

from trainer.checkpoint.staging import Keep
from trainer.checkpoint.state import State
from trainer.models import zero3
from trainer.types import Rank
from trainer.workers.settings import LearnerSettings


class Strategy(Protocol):
    """A model with its optimiser. Every method is called on all ranks, in the same order."""

    def run(self, *inputs: Any, **options: Any) -> Any:
        """A forward pass."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add up gradients of this rank's shares of one loss; `last`: an update comes next."""

    def step(self) -> float:
        """Update with the sum of all ranks' gradients, clipped. Returns their norm before that.

        Raises TrainingError where it is not finite.
        """

    @property
    def learning_rate(self) -> float: ...

    def whole(self) -> dict[str, Tensor]:
        """Every tensor of the model by name; on ranks that do not lead possibly none."""

    def updated(self) -> Iterator[Tensor]:
        """The model's parameters in its order, each on all ranks as the optimiser has it: what the
        model computes with may be rounded. Those that are frozen are what the model has."""

    def state(self, keep: Keep) -> State:
        """This rank's share of all that training goes on from, in no layout's form.

        Every tensor in it is one that `keep` returned: training goes on without it.
        """

    def restore(self, state: State) -> None:
        """Take back what all ranks, of whatever layout, saved.

        Raises ModelMismatchError where it is another model's.
        """

    def sleep(self) -> None:
        """Give the GPU's memory back until `wake`."""

    def wake(self) -> None: ...


def strategy_of(
    module: nn.Module, model: nn.Module, settings: LearnerSettings, rank: Rank
) -> Strategy:
    """For `module`, which is called, around `model`, whose parameters are trained."""
    if settings.sharding.zero_stage == 0:
        from trainer.workers.ddp import Replicated

        return Replicated(module, model, settings, rank)
    zero3.prepare_deepspeed(rank)
    from trainer.workers.deepspeed import ZeRO

    return ZeRO(module, model, settings, rank)
