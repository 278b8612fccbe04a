"""`python -m entrypoint.processes.interruptible MODULE ARGUMENTS…`: the program MODULE.

Ctrl-C ends it with 130 and without a traceback, also while it imports.
"""

from __future__ import annotations

import runpy
import signal
import sys

if __name__ == "__main__":
    try:
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
