"""`python ray_start.py PYTHON RAY ARGUMENTS…`: the program RAY, starting workers as PYTHON.

`ray start` hands on the interpreter that it runs in itself, and has no option for another.
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.executable = sys.argv[1]
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
