"""What torch loads into each process that imports it: ranks of any program say where they stand.

torch calls `serve` at the end of its own import (entry point `torch.backends`).
TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches that off. This is a module of its own: importing one of
Rollcall's packages would hide a module of a user's program that has the same name.
"""

from __future__ import annotations

import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

FILE = Path(__file__).with_name("contract") / "launch" / "rank_standing.py"
MARK = "ROLLCALL_NODE_MARK"


def serve() -> None:
    """Let this process answer its node. Outside of Rollcall's nodes it does nothing."""
    spec = spec_from_file_location("rollcall_rank_standing", FILE)
    if MARK not in os.environ or spec is None or spec.loader is None or not FILE.is_file():
        return
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.serve()
