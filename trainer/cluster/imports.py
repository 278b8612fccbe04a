"""Faster imports of large packages. The module itself imports nothing large."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Import inside this context without garbage collections.

    torch and transformers make some 300,000 objects that stay. Collections would take a sixth of
    the time of their import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
