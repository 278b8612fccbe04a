"""A command that knows nothing of Rollcall: it prints the time, and in its second attempt steps."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

PAUSE_SECONDS = 0.1


def main() -> int:
    run, attempt = Path(os.environ["ROLLCALL_RUN_DIR"]), int(os.environ["ROLLCALL_ATTEMPT"])
    step = 0
    while True:
        print(f"{time.time():.3f}", flush=True)
        time.sleep(PAUSE_SECONDS)
        if attempt > 1:
            step += 1
            write(run / "progress.json", {"step": step})


def write(path: Path, row: dict[str, int]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(row))
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
