"""The `docker run` and `podman run` lines of the pages, taken apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "platforms" / "docker.md"


def run_lines() -> list[tuple[str, str]]:
    """The name of the image's target, and the line, of which the page makes several."""
    blocks = re.findall(r"^```sh run-line=(\w+)\n(.+?)\n```$", PAGE.read_text(), re.M | re.S)
    return [(name, re.sub(r" *\\\n *", " ", block)) for name, block in blocks]


def options_of_line(words: Sequence[str]) -> tuple[set[tuple[str, str]], list[str]]:
    """The options with their values, but `--rm`, and the words from the image on."""
    options, rest = set(), list(words)
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)[2:]
        if option != "rm":
            options.add((option, "true" if option == "read-only" else rest.pop(0)))
    return options, rest
