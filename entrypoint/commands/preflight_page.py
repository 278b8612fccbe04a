"""docs/preflight.md, made from the checks.

`python -m entrypoint.commands.preflight_page PAGE` renews it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from entrypoint.cluster import differences
from entrypoint.job import collective
from entrypoint.machine.gpus import models
from entrypoint.preflight.run import CHECKS
from entrypoint.preflight.verdict import About

BEGIN, END = "<!-- checks: from here -->", "<!-- checks: to here -->"
GROUPS = {
    "host": "The machine, or its container",
    "versions": "What is installed",
    "gpu": "GPUs",
    "fabric": "The network between the nodes",
}
BETWEEN = "Between the nodes"


def markdown() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for group, title in GROUPS.items():
        yield f"## {title}\n"
        for check in CHECKS:
            if check.name.partition(".")[0] == group and check.about is not None:
                yield from _section(check.name, check.question, check.about)
                yield f"- Gives up after: {check.timeout:g} s, which fails it\n"
    yield f"## {BETWEEN}\n"
    for between in (*differences.CHECKS, collective.CHECK):
        yield from _section(between.name, between.question, between.about)
        yield ""
    yield "## Models of GPUs\n"
    yield f"{models.markdown()}\n"


def _section(name: str, question: str, about: About) -> Iterator[str]:
    yield f"### `{name}`: {question}\n"
    yield f"- Looks at: {about.evidence}"
    yield f"- Verdict: {about.threshold}"
    yield f"- Why: {about.source}"
    yield f"- Remedy: {about.remedy}"


def renewed(page: str) -> str:
    """Return the page with the present checks between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown()}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text()))
