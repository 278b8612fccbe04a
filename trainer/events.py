"""What a run says of itself: a line for whoever looks on, and an event in the journal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.contract import append_event

Tell = Callable[..., None]
"""Called with an event's kind and sentence, and its details by name."""


def attempt_number() -> int:
    return int(os.environ.get("ROLLCALL_ATTEMPT", "1"))


def teller(journal: Path) -> Tell:
    def tell(kind: str, sentence: str, **details: Any) -> None:
        print(sentence, flush=True)
        append_event(journal, kind, sentence, details, attempt=attempt_number())

    return tell


def aloud(kind: str, sentence: str, **details: Any) -> None:
    """For a run that keeps no journal."""
    print(sentence, flush=True)
