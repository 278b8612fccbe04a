"""Runs Ray's dashboard, whose modules are forks of one process that has imported them all.

    python -m trainer.cluster.ray_dashboard PATH ARGUMENT…

PATH and the arguments are those of Ray's own program. Ray starts a new Python for each of its nine
modules, whose imports together take 6 s of a core at each start of a head.
"""

from __future__ import annotations

import multiprocessing
import pkgutil
import runpy
import sys


def main() -> None:
    """Run the program that `sys.argv` names. It ends as Ray ends it."""
    from ray.dashboard import modules
    from ray.dashboard.subprocesses.handle import SubprocessModuleHandle

    forks = multiprocessing.get_context("forkserver")
    found = pkgutil.walk_packages(modules.__path__, f"{modules.__name__}.")
    # A module that cannot be imported there is imported again by its fork, which says why.
    forks.set_forkserver_preload([one.name for one in found if one.name.endswith("_head")])
    SubprocessModuleHandle.mp_context = forks
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
