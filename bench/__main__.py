"""`python -m bench [NAME]`: one benchmark, or all; each prints its result as its last line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HELPERS = {"__init__", "__main__", "result"}


def main() -> int:
    here = Path(__file__).parent
    found = [path.stem for path in here.glob("*.py") if path.stem not in HELPERS]
    names = sorted([*found, *(path.parent.name for path in here.glob("*/__main__.py"))])
    wanted = sys.argv[1:] or names
    for name in wanted:
        if name not in names:
            print(f"no benchmark {name}: there are {', '.join(names)}", file=sys.stderr)
            return 64
    return max(
        subprocess.run([sys.executable, "-m", f"bench.{name}"]).returncode for name in wanted
    )


if __name__ == "__main__":
    sys.exit(main())
