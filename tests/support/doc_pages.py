"""The parts of docs/ that are made from the code: checks, models of GPUs, variables.

`python -m tests.support.doc_pages` renews them.
"""

from __future__ import annotations

from collections.abc import Iterator

from entrypoint.cluster import differences
from entrypoint.config.settings import declared
from entrypoint.job import collective
from entrypoint.machine.gpus.models import MODELS
from entrypoint.preflight.run import CHECKS
from entrypoint.preflight.verdict import About
from tests.support.repository import ROOT

PREFLIGHT, REFERENCE = ROOT / "docs" / "preflight.md", ROOT / "docs" / "reference.md"
BEGIN, END = "<!-- checks: from here -->", "<!-- checks: to here -->"
GROUPS = {
    "host": "The machine, or its container",
    "versions": "What is installed",
    "gpu": "GPUs",
    "fabric": "The network between the nodes",
}
MODELS_HEADER = (
    "| model | BF16, TFLOP/s | memory, GB/s | all-reduce in a node, GB/s | PCIe generation "
    "| links | source |\n|---|---|---|---|---|---|---|\n"
)
VARIABLES_HEADER = "| variable | default | meaning |\n|---|---|---|\n"


def checks() -> str:
    """The text of docs/preflight.md between its marks."""
    return "\n".join(_checks())


def _checks() -> Iterator[str]:
    for group, title in GROUPS.items():
        yield f"## {title}\n"
        for check in CHECKS:
            if check.name.partition(".")[0] == group and check.about is not None:
                yield from _section(check.name, check.question, check.about)
                yield f"- Gives up after: {check.timeout:g} s, which fails it\n"
    yield "## Between the nodes\n"
    for between in (*differences.CHECKS, collective.CHECK):
        yield from _section(between.name, between.question, between.about)
        yield ""
    yield "## Models of GPUs\n"
    yield MODELS_HEADER + "".join(
        f"| {model.name} | {model.tflops:g} | {model.memory_gbs:g} "
        f"| {model.all_reduce_gbs or '–'} | {model.pcie_generation} | {model.links or '–'} "
        f"| {model.source} |\n"
        for model in MODELS
    )


def _section(name: str, question: str, about: About) -> Iterator[str]:
    yield f"### `{name}`: {question}\n"
    yield f"- Looks at: {about.evidence}"
    yield f"- Verdict: {about.threshold}"
    yield f"- Why: {about.source}"
    yield f"- Remedy: {about.remedy}"


def with_checks(page: str) -> str:
    """`page` with the present checks between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{checks()}\n{END}{after}"


def variables() -> str:
    """The table of variables, from the declarations of the settings."""
    rows = (
        f"| {' or '.join(f'`{name}`' for name in variable.names)} | {variable.shown_default} | "
        f"{variable.meaning} |\n"
        for _, variable in declared()
    )
    return VARIABLES_HEADER + "".join(rows)


def with_variables(page: str) -> str:
    """`page` with the present table of variables."""
    before, _, rest = page.partition(VARIABLES_HEADER)
    _, _, after = rest.partition("\n\n")  # a table ends at the first empty line
    return f"{before}{variables()}\n{after}"


if __name__ == "__main__":
    PREFLIGHT.write_text(with_checks(PREFLIGHT.read_text()))
    REFERENCE.write_text(with_variables(REFERENCE.read_text()))
