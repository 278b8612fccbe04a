"""What a command needs beside the packages that every node has."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = {
    "serve-retriever": ("numpy", "tantivy", "xxhash"),
    "serve-reward": ("numpy", "tokenizers", "torch", "transformers"),
}


def lacking(command: str) -> str:
    """A sentence if this Python cannot run the command; "" if it can."""
    missing = [name for name in NEEDED.get(command, ()) if find_spec(name) is None]
    if not missing:
        return ""
    return (
        f"{command}: {', '.join(missing)} not installed here: run the image, or `pip install "
        "'.[trainer]'` in a copy of Rollcall's repository"
    )
