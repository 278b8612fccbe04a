"""docs/faults.md and README's table, made from the results: `python -m tests.container.faults.page`
renews both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.container.faults import results, table, table_containers, table_files, table_storage
from tests.support.repository import ROOT

PAGE, README = ROOT / "docs" / "faults.md", ROOT / "README.md"
BEGIN, END = "<!-- results: from here -->", "<!-- results: to here -->"

GROUPS: dict[str, tuple[Any, ...]] = {
    "Reward server": tuple(table.rewards()),
    "Processes and nodes that die": tuple(table.deaths()),
    "Processes and nodes that freeze": tuple(table.freezes()),
    "Checkpoints": tuple(table_files.spoilt_checkpoints()),
    "Files that are lost or damaged": (*table_files.lost_files(), *table_files.damaged_files()),
    "Nodes that come with something else": tuple(table_files.others()),
    "Two at once, and in recovery": tuple(table.several()),
    "Notices": tuple(table.notices()),
    "Storage": tuple(table_storage.FAULTS),
    "Containers, network, memory": table_containers.FAULTS,
}
IN_README = (
    *("driver-killed", "policy-killed", "engine-killed", "container-worker-killed"),
    *("container-worker-frozen", "container-head-killed", "network-worker-for-ever"),
    *("reward-error", "disk-full", "checkpoint-bit-flipped", "memory-worker"),
)
HEADER = "| fault | seconds to a new step (deadline) | class | answer |\n|---|---|---|---|"


def markdown() -> str:
    return "\n".join(_lines(results.read()))


def summary() -> str:
    rows = results.read()
    faults = {fault.name: fault for group in GROUPS.values() for fault in group}
    lines = ["| fault | seconds to a new step | the run continues in |", "|---|---|---|"]
    for name in IN_README:
        row = rows[name]
        another = "a new attempt" if row["answers"] else "a new head"
        continues_in = another if row["attempts"] else "the same attempt"
        lines.append(f"| {faults[name].sentence} | {row['seconds']:.0f} | {continues_in} |")
    return "\n".join(lines)


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
        answer = "the attempt continues"
    else:
        answer = "; then ".join(row["answers"]) or "a new head continues the run"
    return f"| {name} | {row['seconds']:.0f} ({fault.deadline:g}) | {classes or '–'} | {answer} |"


def renewed(page: str, table: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(), markdown()))
    README.write_text(renewed(README.read_text(), summary()))
