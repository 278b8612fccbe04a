"""How people read the path of a file of a run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def shown(path: str | Path) -> str:
    """Return the path relative to the current directory if it is below that, else absolute."""
    with suppress(OSError):  # the current directory may be gone
        absolute = Path(path).absolute()
        here = Path.cwd()
        return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
    return str(path)
