"""Reports a restore from the head's run directory: lines of the log, and signs of life.

The driver writes a sign of life whenever other nodes have read more. Else the entrypoint would take
a large restore for a hang.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event

from contract.background import in_background
from contract.journal import attempt_number
from contract.progress import RESTORE, Phase, PhaseFile
from trainer.checkpoint.head_file_store import answer
from trainer.checkpoint.protocol import HeadDirectory, Source
from trainer.config.config import Config

REPORT_SECONDS = 10.0


@contextmanager
def reported(config: Config, source: Source, step: int) -> Iterator[None]:
    """Report in the block how much other nodes read of `source`, the checkpoint of `step`."""
    if not isinstance(source, HeadDirectory):
        yield
        return
    over, phase = Event(), PhaseFile(config.files.phase)

    def report() -> None:
        with suppress(OSError):  # the restore itself fails, and says why
            _report(source, step, phase, over)

    reporting = in_background("restore-progress", report)
    try:
        yield
    finally:
        over.set()
        reporting.result()
        phase.close()
        source.store.end_serving.remote()


def _report(source: HeadDirectory, step: int, phase: PhaseFile, over: Event) -> None:
    before = first = int(answer(source.store.sent.remote()))
    began = time.monotonic()
    while not over.wait(REPORT_SECONDS):
        sent = int(answer(source.store.sent.remote()))
        if sent == before:
            continue
        before = sent
        phase.write(Phase(attempt_number(), step, RESTORE, sent))
        rate = (sent - first) / (time.monotonic() - began)
        print(
            f"Restoring from {source.path.name}: other nodes have read {(sent - first) / 1e9:.1f} "
            f"GB, {rate / 1e6:.0f} MB/s.",
            flush=True,
        )
