"""Imports what the processes of a rank need, if this process is to stand by for a rank.

Each worker of a node's Ray imports this module before its first work (Ray's setting
`preload_python_modules`). A worker that has a job already is left as it is: its imports may look at
the GPUs that Ray gives it with its work.
"""

from __future__ import annotations

import os
from importlib import import_module

import ray

from contract.launch.standby_ranks import VARIABLE
from trainer.cluster import rank_imports


def stands_by() -> bool:
    """Return whether Ray has started this process for a rank, and for no job yet."""
    job = ray.get_runtime_context().get_job_id()
    return VARIABLE in os.environ and bool(job == ray.JobID.nil().hex())


if ray.is_initialized() and stands_by():
    rank_imports.import_all()
    import_module("trainer.cluster.ray_worker_group")
