"""Where this process stands: among the collectives of its model's ranks, and in its own code."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import FrameType

from contract.launch import collectives
from contract.launch.collectives import Group, Standing

BINDINGS = "torch._C._distributed_c10d"
RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Of gloo, which has no record of tensors on GPUs, and of NCCL. They list what is not done, too."""
LIBRARIES = ("site-packages", "dist-packages", "lib/python")
"""Parts of the paths of code that is not the trainer's, nor the user's."""


def of_process(thread: int | None) -> Standing:
    """Returns where this process stands. `thread`: the one that computes.

    A process without torch has no collectives. It is not imported for this.
    """
    bindings = sys.modules.get(BINDINGS)
    groups: dict[str, Group] = {}
    for name in RECORDERS:
        if record := getattr(bindings, name, None):
            found = collectives.standing(collectives.decoded(record(True, False)), time.time())
            groups |= found.groups
    frame = sys._current_frames().get(thread) if thread is not None else None
    return Standing(groups, _place(frame))


def _place(frame: FrameType | None) -> str:
    """Return line and function of the innermost frame that is no library's; or "" if none is."""
    while frame and any(part in frame.f_code.co_filename for part in LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
