"""docs/faults.md and README's table, made from the results: `python -m tests.container.faults.page`
renews both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.container.faults import (
    results,
    table,
    table_containers,
    table_files,
    table_recipes,
    table_spares,
    table_storage,
)
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
    "Spares": tuple(fault for _, fault in table_spares.FAULTS),
}
IN_README = (
    *("driver-killed", "policy-killed", "engine-killed", "container-worker-killed"),
    *("container-worker-frozen", "container-head-killed", "network-worker-for-ever"),
    *("reward-error", "disk-full", "checkpoint-bit-flipped", "memory-worker"),
)
HEADER = "| fault | seconds | the run continues in |\n|---|---|---|"

OF_RECIPES = [fault for rows in table_recipes.FAULTS.values() for fault in rows.values()]
RECIPES = tuple(table_recipes.FAULTS)
HEADER_OF_RECIPES = (
    f"| fault | {' | '.join(f'`{name}`' for name in RECIPES)} | the run continues in |\n"
    f"|---|{'---|' * len(RECIPES)}---|"
)


def markdown() -> str:
    return "\n".join(_lines(results.read()))


def summary() -> str:
    rows = results.read()
    faults = {fault.name: fault for group in GROUPS.values() for fault in group}
    lines = ["| fault | seconds to a new step | the run continues in |", "|---|---|---|"]
    for name in IN_README:
        row = rows[name]
        continues_in = _continues_in(row)
        lines.append(f"| {faults[name].sentence} | {_shown(row)} | {continues_in} |")
    return "\n".join(lines)


def _lines(rows: dict[str, Any]) -> Iterator[str]:
    for title, faults in GROUPS.items():
        yield f"\n## {title}\n\n{HEADER}"
        for fault in faults:
            yield _row(fault, rows.get(fault.name))
    yield f"\n## Recipes\n\n{HEADER_OF_RECIPES}"
    yield from (_of_recipes(name, rows) for name in table_recipes.ROWS)


def _row(fault: Any, row: dict[str, Any] | None) -> str:
    if row is None:
        return f"| {fault.sentence} | not measured yet | |"
    return f"| {fault.sentence} | {_shown(row)} | {_continues_in(row, classes=True)} |"


def _shown(row: dict[str, Any]) -> str:
    return f"{row['seconds']:.0f}"


def _continues_in(row: dict[str, Any], *, classes: bool = False) -> str:
    if row["attempts"] == 0:
        return "same attempt"
    what = "new attempt" if row["answers"] else "new head"
    named = ", ".join(f"`{c}`" for c in row["classes"])
    return f"{what}: {named}" if classes and named else what


def _of_recipes(name: str, rows: dict[str, Any]) -> str:
    """A fault with the seconds of each recipe; the first recipe says how the run continues."""
    faults = [table_recipes.FAULTS[recipe][name] for recipe in RECIPES]
    cells = " | ".join(_seconds(fault.name, rows) for fault in faults)
    first = rows.get(faults[0].name)
    continues_in = _continues_in(first, classes=True) if first else ""
    return f"| {faults[0].sentence} | {cells} | {continues_in} |"


def _seconds(name: str, rows: dict[str, Any]) -> str:
    row, loop = rows.get(name), rows.get(results.of_loop(name))
    if row is None:
        return "not measured yet"
    if loop is None:
        return _shown(row)
    theirs = f"{loop['seconds']:.0f}" if loop["seconds"] else f"over {loop['patience']}"
    return f"{_shown(row)} (loop: {theirs})"


def renewed(page: str, table: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(), markdown()))
    README.write_text(renewed(README.read_text(), summary()))
