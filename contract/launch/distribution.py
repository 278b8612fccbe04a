"""The name under which Python's installers know Rollcall.

The name `rollcall` belongs to another project on the public package index.
"""

from __future__ import annotations

NAME = "rollcall-rlhf"


def install(extra: str) -> str:
    """Return the command that adds an extra to an installation."""
    return f"pip install '{NAME}[{extra}]'"
