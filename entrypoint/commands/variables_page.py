"""The table of variables in docs/reference.md, made from the declarations of the settings.

`python -m entrypoint.commands.variables_page PAGE` renews it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from entrypoint.config.settings import declared

HEADER = "| variable | default | meaning |\n|---|---|---|\n"


def markdown() -> str:
    rows = (
        f"| {' or '.join(f'`{name}`' for name in variable.names)} | {variable.shown_default} | "
        f"{variable.meaning} |\n"
        for _, variable in declared()
    )
    return HEADER + "".join(rows)


def renewed(page: str) -> str:
    """The page with a table of today's variables."""
    before, _, rest = page.partition(HEADER)
    _, _, after = rest.partition("\n\n")  # a table ends at the first empty line
    return f"{before}{markdown()}\n{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text()))
