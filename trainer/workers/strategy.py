"""The strategy of a learner: how its ranks train whole weights (DDP) or sharded weights (ZeRO)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor

from trainer.checkpoint.state import State
from trainer.workers.weight_check import Held


class Strategy(Protocol):
    """A model with its optimizer. Every method is called on all ranks, in the same order."""

    def run(self, *inputs: Any, **options: Any) -> Any:
        """A forward pass."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Accumulate the gradients of one loss. `last`: an update comes next."""

    def step(self, look: Callable[[float], None]) -> float:
        """Update with the clipped sum of all ranks' gradients. Returns the norm before clipping.

        `look` gets the norm before the update, if every rank holds all weights.
        Raises TrainingError if the norm is not finite, and what `look` raises.
        """

    @property
    def learning_rate(self) -> float: ...

    def whole(self) -> dict[str, Tensor]:
        """Return every tensor of the model by name; possibly none on ranks other than 0."""

    def updated(self) -> Iterator[Tensor]:
        """Yields the model's parameters in order, on all ranks, as the optimizer has them.

        The model itself may compute with rounded copies. Frozen parameters are the model's own."""

    def state(self) -> State:
        """Return this rank's share of the training state, which sends nothing.

        Its tensors are those that the next update changes. All ranks' shares together are
        independent of the parallel layout.
        """

    def held(self) -> Held:
        """Return the tensors that must keep their bits until the next update. Sends nothing."""

    def restore(self, state: State) -> None:
        """Restore the state that all ranks of any layout saved.

        Raises ModelMismatchError if the state is another model's.
        """

    def sleep(self) -> None:
        """Free the GPU's memory until `wake`."""

    def wake(self) -> None: ...
