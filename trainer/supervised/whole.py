"""TRL's trainers with the losses and metrics of all samples of a step, or of all held-out rows.

TRL takes means of the passes' means, and of the ranks' means: they change with the split if the
passes have different numbers of samples. Here each pass and rank counts by what its mean is over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor
from trl import DPOTrainer, RewardTrainer, SFTTrainer

from trainer.supervised.lengths import IGNORED

Batch = dict[str, Any]
"""A pass as TRL's collators make it."""
Counts = dict[str, float]
"""Name of what means are over → how many of it."""
SAMPLES, TOKENS, CHOSEN, REJECTED, PASSES = "samples", "tokens", "chosen", "rejected", "passes"
"""Rows; tokens that are trained; those of the better and of the worse answers; passes with rows."""
IDLE = "idle"
"""Key of a pass whose rows all are repetitions: the rank must compute with the others."""
SEEN = "num_tokens"
"""TRL's metric that is not a mean: tokens of this attempt so far."""


def real_rows(batch: Batch, rows: int) -> Batch:
    """Return a pass of labelled samples in which only the first `rows` are trained."""
    labels = batch["labels"].clone()
    if "seq_idx" in batch:  # samples end to end
        labels[batch["seq_idx"] >= rows] = IGNORED
    else:
        labels[rows:] = IGNORED
    return {**batch, "labels": labels}


def real_pairs(batch: Batch, rows: int) -> Batch:
    """Return the first `rows` pairs of a pass, or one that does not count if there are none."""
    pairs, kept = len(batch["input_ids"]) // 2, max(rows, 1)
    both = torch.tensor([*range(kept), *range(pairs, pairs + kept)])
    cut: Batch = {
        name: value[both.to(value.device)] if len(value) == 2 * pairs else value[:kept]
        for name, value in batch.items()
    }
    return cut if rows else {**cut, IDLE: True}


@contextmanager
def of_this_rank(accelerator: Any) -> Iterator[None]:
    """Keep the tensors that TRL would gather for its metrics as they are, while the block runs.

    Ranks may have different numbers of rows, and gathering takes equal ones.
    """
    accelerator.gather = accelerator.gather_for_metrics = lambda tensor: tensor
    try:
        yield
    finally:
        del accelerator.gather, accelerator.gather_for_metrics


class Whole:
    """What TRL's trainer of a stage does differently here. It stands before TRL's class."""

    MEAN_OVER: ClassVar[str]
    """What the loss is a mean over, and each metric unless METRICS says."""
    METRICS: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.model_accepts_loss_kwargs = True  # a pass's loss is its share, not a mean of passes
        self._passes: dict[str, list[Counts]] = defaultdict(list)
        """Of each mode: the counts of the passes whose metrics TRL keeps."""
        self._held_out: Counts = {}
        self._held_out_loss = 0.0

    def counts(self, batch: Batch) -> Counts:
        """Return what this rank's pass has."""
        raise NotImplementedError

    def real(self, batch: Batch, rows: int) -> Batch:
        """Return the pass with only its first `rows`; the others are repeated to fill it."""
        raise NotImplementedError

    def share(self, model: Any, batch: Batch, own: Counts, whole: Counts) -> Tensor:
        """Return the pass's share of the loss, times the number of ranks: their mean is taken."""
        raise NotImplementedError

    def get_batch_samples(
        self: Any, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], Counts]:
        """Return the passes of a step, and the counts of all ranks' passes."""
        passes = [self._real(batch) for batch in islice(epoch_iterator, num_batches)]
        return passes, self._of_all_ranks(map(self.counts, passes))

    def compute_loss(
        self: Any,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Counts | None = None,
    ) -> Tensor:
        """`num_items_in_batch`: counts of the whole that the pass is of; None: it is the whole."""
        own = self.counts(inputs)
        batch = {name: value for name, value in inputs.items() if name != IDLE}
        with of_this_rank(self.accelerator):
            loss: Tensor = self.share(model, batch, own, num_items_in_batch or own)
        self._passes[self._mode].append(own)
        return loss

    def prediction_step(
        self: Any, model: Any, inputs: Batch, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, None, None]:
        batch = self._prepare_inputs(self._real(inputs))
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self.compute_loss(model, batch, num_items_in_batch=self._held_out)
        self._held_out_loss += float(loss)
        return loss, None, None

    def evaluation_loop(self: Any, dataloader: Any, *args: Any, **given: Any) -> Any:
        """Evaluate with the loss as a mean over all rows or their tokens."""
        passes = [self.counts(self._real(batch)) for batch in dataloader]
        self._held_out, self._held_out_loss = self._of_all_ranks(passes), 0.0
        self.current_gradient_accumulation_steps = len(passes)
        found = super().evaluation_loop(dataloader, *args, **given)  # type: ignore[misc]
        (loss,) = self._sums([self._held_out_loss / self.accelerator.num_processes])
        return found._replace(metrics={**found.metrics, "eval_loss": loss})

    def log(self: Any, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with TRL's metrics of the passes since the last line, as means over all ranks."""
        kept = self._metrics[self._mode]
        kept.update({name: [value] for name, value in self._means(kept).items()})
        self._passes[self._mode].clear()
        super().log(logs, start_time)  # type: ignore[misc]

    def _means(self: Any, kept: Mapping[str, list[float]]) -> dict[str, float]:
        passes = self._passes[self._mode]
        names = [name for name in kept if name != SEEN]
        over = [[own[self.METRICS.get(name, self.MEAN_OVER)] for own in passes] for name in names]
        sums = [
            sum(count * value for count, value in zip(counts, kept[name], strict=True) if count)
            for name, counts in zip(names, over, strict=True)
        ]
        seen = [sum(kept.get(SEEN, [0.0]))]
        (tokens, *added) = self._sums([*seen, *sums, *map(sum, over)])
        means = {
            name: total / count if count else 0.0
            for name, total, count in zip(names, added, added[len(names) :], strict=False)
        }
        return means | ({SEEN: tokens} if SEEN in kept else {})

    @property
    def _mode(self: Any) -> str:
        return "train" if self.model.training else "eval"

    def _real(self: Any, batch: Batch) -> Batch:
        """Return a pass without the rows that the last one of an epoch repeats on several ranks."""
        loader, size = self.accelerator.gradient_state.active_dataloader, self.args.train_batch_size
        last = len(loader.dataset) % (size * self.accelerator.num_processes)
        if not (loader.end_of_dataloader and last):
            return batch
        rows = last - self.accelerator.process_index * size
        return self.real(batch, max(0, min(rows, size)))  # type: ignore[no-any-return]

    def _of_all_ranks(self: Any, passes: Any) -> Counts:
        """Return the sums of these counts, of which every rank gives its own."""
        total: Counts = defaultdict(float)
        for own in passes:
            for name, count in own.items():
                total[name] += count
        return dict(zip(total, self._sums(list(total.values())), strict=True))

    def _sums(self: Any, values: list[float]) -> list[float]:
        """Return the sum over all ranks of each value."""
        own = torch.tensor(values, dtype=torch.float64, device=self.accelerator.device)
        summed: list[float] = self.accelerator.reduce(own, "sum").tolist()
        return summed


class SFT(Whole, SFTTrainer):  # type: ignore[misc]  # TRL has no types
    MEAN_OVER = TOKENS
    METRICS: ClassVar[Mapping[str, str]] = {"aux_loss": PASSES}

    def counts(self, batch: Batch) -> Counts:
        tokens = int((batch["labels"][:, 1:] != IGNORED).sum())
        return {TOKENS: tokens, PASSES: 1}

    def real(self, batch: Batch, rows: int) -> Batch:
        return real_rows(batch, rows)

    def share(self, model: Any, batch: Batch, own: Counts, whole: Counts) -> Tensor:
        loss: Tensor = SFTTrainer.compute_loss(
            self, model, batch, num_items_in_batch=int(whole[TOKENS])
        )
        return loss


class Reward(Whole, RewardTrainer):  # type: ignore[misc]
    MEAN_OVER = SAMPLES

    def counts(self, batch: Batch) -> Counts:
        return {SAMPLES: 0 if IDLE in batch else len(batch["input_ids"]) // 2}

    def real(self, batch: Batch, rows: int) -> Batch:
        return real_pairs(batch, rows)

    def share(self, model: Any, batch: Batch, own: Counts, whole: Counts) -> Tensor:
        mean: Tensor = RewardTrainer.compute_loss(self, model, batch)
        ranks: int = self.accelerator.num_processes
        return mean * (own[SAMPLES] / whole[SAMPLES] * ranks)


class DPO(Whole, DPOTrainer):  # type: ignore[misc]
    MEAN_OVER = SAMPLES
    METRICS: ClassVar[Mapping[str, str]] = {
        "entropy": TOKENS,
        "mean_token_accuracy": CHOSEN,
        "logits/chosen": CHOSEN,
        "logits/rejected": REJECTED,
        "aux_loss": PASSES,
    }
    LOSSES: ClassVar[Mapping[str, str]] = {"sft": CHOSEN}
    """What TRL's mean of a loss is over, unless over samples."""

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._weights, self._aux_weight = self.loss_weights, self.router_aux_loss_coef

    def counts(self, batch: Batch) -> Counts:
        if IDLE in batch:
            return dict.fromkeys((SAMPLES, TOKENS, CHOSEN, REJECTED, PASSES), 0)
        chosen, rejected = batch["completion_mask"][:, 1:].chunk(2)
        better, worse = int(chosen.sum()), int(rejected.sum())
        total = {TOKENS: better + worse, CHOSEN: better, REJECTED: worse}
        return {SAMPLES: len(chosen), **total, PASSES: 1}

    def real(self, batch: Batch, rows: int) -> Batch:
        return real_pairs(batch, rows)

    def share(self: Any, model: Any, batch: Batch, own: Counts, whole: Counts) -> Tensor:
        ranks = self.accelerator.num_processes
        parts = {name: count / max(whole[name], 1) * ranks for name, count in own.items()}
        self.loss_weights = [
            weight * parts[self.LOSSES.get(kind, SAMPLES)]
            for kind, weight in zip(self.loss_types, self._weights, strict=True)
        ]
        self.router_aux_loss_coef = self._aux_weight * parts[PASSES]
        loss: Tensor = DPOTrainer.compute_loss(self, model, batch)
        return loss
