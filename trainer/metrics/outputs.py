"""Who is told of a run's steps besides its files: trackers, traces, callbacks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from contract.redaction import secret_texts
from trainer.checkpoint.writer import RunState
from trainer.config.config import Config
from trainer.metrics import sinks, tracing, trackers
from trainer.metrics.callbacks import Callback, Callbacks
from trainer.metrics.samples import SampleRows, TokenReader
from trainer.metrics.sinks import MetricRow, Wandb
from trainer.metrics.tracing import StepTraces
from trainer.metrics.trackers import Tracker


@dataclass(frozen=True, slots=True)
class Outputs:
    """The destinations of one attempt, and what makes rows of its samples."""

    rows: SampleRows
    wandb: Wandb | None
    others: Sequence[Tracker]
    traces: StepTraces | None
    callbacks: Callbacks

    @classmethod
    def open(
        cls,
        config: Config,
        state: RunState,
        reader: TokenReader | None,
        callbacks: Iterable[Callback] = (),
    ) -> Outputs:
        """Open what the flags and the variables ask for. `reader`: reads episodes for samples."""
        secrets = secret_texts(os.environ) | {config.wandb_key or ""}
        return cls(
            rows=SampleRows(config.log_samples, reader, secrets),
            wandb=sinks.connect(config, state.wandb_id) if config.wandb_wanted else None,
            others=trackers.connect(config, state.step),
            traces=tracing.connect(config, os.environ),
            callbacks=Callbacks(tuple(callbacks)),
        )

    def log(self, step: int, row: MetricRow) -> None:
        for sink in self._sinks:
            sink.log(step, row)

    def samples(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        if self.wandb:
            self.wandb.samples(step, rows)

    def close(self, exit_code: int, failure: str | None = None) -> None:
        """`failure`: why the attempt ends, in a sentence; None: it did not fail."""
        if self.wandb and failure:
            self.wandb.failed(failure)
        for sink in self._sinks:
            sink.close(exit_code)
        if self.traces:
            self.traces.close()

    @property
    def _sinks(self) -> Sequence[Tracker]:
        return [self.wandb, *self.others] if self.wandb else self.others
