"""The keys of verl and of Search-R1 that `rollcall translate` knows."""

from __future__ import annotations

from trainer.config.translate.verl import SEARCH_R1, VERL


def known_keys(key: str, *, fork: bool) -> tuple[str, list[str]]:
    """Return the release and all its keys of one name each; no keys if it has `key`.

    `fork`: Search-R1's copy of verl.
    """
    table = SEARCH_R1 if fork else VERL
    known = [] if table.of(key) else [row.theirs for row in table.rows if not row.is_pattern]
    return table.name, known
