"""The files of examples/, and the command that each names in its first lines."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT

EXAMPLES = ROOT / "examples"
README = EXAMPLES / "README.md"
COMMAND = re.compile(r"^(?:# | {4})?(python (?:.+\\\n)*.+)$", re.MULTILINE)
TRAINED = ("tiny.yaml", "own_reward.py", "tools.py", "lora.yaml", "async.yaml", "dpo.yaml")
"""What trains by its own command, with another --max_steps."""
IMAGES, NOTEBOOK = "images.py", "first_run.ipynb"
FENCE = re.compile(r"^```sh[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def names() -> set[str]:
    """Return the names of all examples, without the page that lists them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {Path(line).name for line in listed.stdout.splitlines()} - {README.name}


def command(name: str) -> str | None:
    """Return the command that runs the example on a CPU, in one line; None if it names none."""
    found = COMMAND.search((EXAMPLES / name).read_text())
    return " ".join(found[1].replace("\\\n", " ").split()) if found else None


def scripts(page: Path) -> list[str]:
    """Return the shell blocks of a page."""
    return FENCE.findall(page.read_text())


def notebook() -> Any:
    """Return the notebook. Raises ValidationError unless it has the format's schema."""
    import nbformat

    read = nbformat.read(EXAMPLES / NOTEBOOK, as_version=4)
    nbformat.validate(read)
    return read
