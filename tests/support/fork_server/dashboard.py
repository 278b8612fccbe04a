"""Ray's dashboard, whose modules are forks of one process that has imported them all.

Ray starts a Python for each of its nine modules, which together take 7 s of a core at each start of
a head. The arguments are those of Ray's program, and its path before them.
"""

from __future__ import annotations

import multiprocessing
import pkgutil
import runpy
import sys

from ray.dashboard import modules
from ray.dashboard.subprocesses.handle import SubprocessModuleHandle


def main() -> None:
    forks = multiprocessing.get_context("forkserver")
    heads = pkgutil.walk_packages(modules.__path__, f"{modules.__name__}.")
    names = [module.name for module in heads if module.name.endswith("_head")]
    forks.set_forkserver_preload(["__main__", *names])
    assert SubprocessModuleHandle.mp_context.get_start_method() == "spawn"
    SubprocessModuleHandle.mp_context = forks
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
