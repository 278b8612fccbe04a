"""docs/faults.md, made from the results; `python -m tests.container.faults.page` renews it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.container.faults import results, table, test_containers, test_storage

PAGE = Path(__file__).parents[3] / "docs" / "faults.md"
BEGIN, END = "<!-- results: from here -->", "<!-- results: to here -->"

GROUPS: dict[str, tuple[Any, ...]] = {
    "Reward server": tuple(table.rewards()),
    "Processes and nodes that die": tuple(table.deaths()),
    "Processes and nodes that freeze": tuple(table.freezes()),
    "Checkpoints": tuple(table.spoilt_checkpoints()),
    "Two at once, and in recovery": tuple(table.several()),
    "Notices": tuple(table.notices()),
    "Storage": tuple(test_storage.FAULTS),
    "Containers, network, memory": test_containers.FAULTS,
}
HEADER = "| fault | seconds to a new step (deadline) | class | answer |\n|---|---|---|---|"


def markdown() -> str:
    return "\n".join(_lines(results.read()))


def _lines(rows: dict[str, Any]) -> Iterator[str]:
    for title, faults in GROUPS.items():
        yield f"\n## {title}\n\n{HEADER}"
        for fault in faults:
            yield _row(fault, rows.get(fault.name))


def _row(fault: Any, row: dict[str, Any] | None) -> str:
    name = f"{fault.sentence}{'' if fault.fast else ' *'}"
    if row is None:
        return f"| {name} | not measured yet ({fault.deadline}) | | |"
    classes = ", ".join(f"`{c}`" for c in row["classes"])
    if row["attempts"] == 0:
        answer = "the attempt goes on"
    elif not row["answers"]:
        answer = "a new head goes on with the run"
    else:
        answer = "; then ".join(row["answers"])
    return f"| {name} | {row['seconds']:.0f} ({fault.deadline:g}) | {classes or '–'} | {answer} |"


def renewed(page: str) -> str:
    """The page with the kept results between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{markdown()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
