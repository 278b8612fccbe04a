"""What a command needs beside the packages of an installation without extras."""

from __future__ import annotations

from importlib.util import find_spec

from contract.launch import distribution

PAGE = ("prometheus_client", "sse_starlette", "starlette", "uvicorn")
NODE = (*PAGE, "ray")
"""What every node needs: packages of the extra `node`."""
NEEDED = {
    "up": ("node", NODE),
    "open": ("page", PAGE),  # RUN: the link of a live run needs nothing
    "demo": ("trainer", (*NODE, "datasets", "deepspeed", "torch", "transformers")),
    "serve-retriever": ("trainer", ("numpy", "starlette", "tantivy", "uvicorn", "xxhash")),
    "serve-reward": (
        "trainer",
        ("numpy", "starlette", "tokenizers", "torch", "transformers", "uvicorn"),
    ),
}
"""An extra of pyproject.toml, and the packages of it without which the command cannot begin."""


def lacking(command: str) -> str:
    """A sentence if this Python cannot run the command; "" if it can."""
    extra, packages = NEEDED.get(command, ("", ()))
    missing = [name for name in packages if find_spec(name) is None]
    if not missing:
        return ""
    return (
        f"{command}: {', '.join(missing)} not installed here: run the image, or "
        f"`{distribution.install(extra)}`"
    )
