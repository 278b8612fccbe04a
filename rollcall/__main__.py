"""`python -m rollcall`, `rollcall`: every command, in any working directory."""

from __future__ import annotations

import sys

from entrypoint.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
