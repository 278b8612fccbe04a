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
    **{f"Recipe `{name}`": (*rows.values(),) for name, rows in table_recipes.FAULTS.items()},
}
IN_README = (
    *("driver-killed", "policy-killed", "engine-killed", "container-worker-killed"),
    *("container-worker-frozen", "container-head-killed", "network-worker-for-ever"),
    *("reward-error", "disk-full", "checkpoint-bit-flipped", "memory-worker"),
)
HEADER = "| fault | seconds | the run continues in |\n|---|---|---|"

HEADER_OF_LOOPS = "| recipe | fault | seconds | of a shell loop | ratio |\n|---|---|---|---|---|"


def markdown() -> str:
    return "\n".join(_lines(results.read()))


def summary() -> str:
    rows = results.read()
    faults = {fault.name: fault for group in GROUPS.values() for fault in group}
    lines = ["| fault | seconds to a new step | the run continues in |", "|---|---|---|"]
    for name in IN_README:
        row = rows[name]
        continues_in = _continues_in(row)
        lines.append(f"| {faults[name].sentence} | {row['seconds']:.0f} | {continues_in} |")
    return "\n".join(lines)


def _lines(rows: dict[str, Any]) -> Iterator[str]:
    for title, faults in GROUPS.items():
        yield f"\n## {title}\n\n{HEADER}"
        for fault in faults:
            yield _row(fault, rows.get(fault.name))
    yield f"\n## Recipes against a shell loop\n\n{HEADER_OF_LOOPS}"
    for recipe in table_recipes.FAULTS:
        yield from (_loop(recipe, name, rows) for name in table_recipes.AGAINST)


def _row(fault: Any, row: dict[str, Any] | None) -> str:
    if row is None:
        return f"| {fault.sentence} | not measured yet | |"
    classes = ", ".join(f"`{c}`" for c in row["classes"])
    continues_in = f"{_continues_in(row)}: {classes}" if classes else _continues_in(row)
    return f"| {fault.sentence} | {row['seconds']:.0f} | {continues_in} |"


def _continues_in(row: dict[str, Any]) -> str:
    if row["attempts"] == 0:
        return "same attempt"
    return "new attempt" if row["answers"] else "new head"


def _loop(recipe: str, name: str, rows: dict[str, Any]) -> str:
    fault = table_recipes.FAULTS[recipe][name]
    ours, loop = rows.get(fault.name), rows.get(results.of_loop(fault.name))
    if ours is None or loop is None:
        return f"| `{recipe}` | {fault.sentence} | not measured yet | | |"
    more = "" if loop["seconds"] else "more than "
    theirs = loop["seconds"] or loop["patience"]
    ratio = f"{'less than ' if more else ''}{ours['seconds'] / theirs:.2f}"
    return (
        f"| `{recipe}` | {fault.sentence} | {ours['seconds']:.0f} | {more}{theirs:.0f} | {ratio} |"
    )


def renewed(page: str, table: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(), markdown()))
    README.write_text(renewed(README.read_text(), summary()))
