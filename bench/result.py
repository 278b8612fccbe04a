"""What every benchmark prints as its last line."""

from __future__ import annotations

import json
from typing import Any, Literal


def report(
    name: str,
    value: float,
    *,
    unit: str,
    target: float,
    better: Literal["higher", "lower"],
    detail: dict[str, Any],
    besides: bool = True,
    lacking: str = "",
) -> bool:
    """Print one JSON object; return whether `value` reaches `target` and `besides` holds, too.

    `besides` is whether the benchmark's other figures, which are in `detail`, reach theirs;
    `lacking` what this machine has not, without which no figure says anything: `ok` is then null.
    """
    reached = besides and (value >= target if better == "higher" else value <= target)
    if lacking:
        detail = {"lacking": lacking, **detail}
    ok = None if lacking else reached
    row = {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "target": target,
        "better": better,
        "ok": ok,
        "detail": detail,
    }
    print(json.dumps(row), flush=True)
    return bool(lacking) or reached
