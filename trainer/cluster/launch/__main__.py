"""Runs a script on all nodes.

    python -m trainer.cluster.launch [--steps] [--threads N] -- train.py …

The driver of an attempt of the recipe `torchrun`; it imports no torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from contract.exit_codes import ExitCode
from contract.files.child_variables import ATTEMPT
from contract.launch import launcher_flags, ranks
from contract.launch.launcher_flags import LaunchError
from contract.run_dir import RunFiles
from trainer.cluster.driver_exit import LEAVE_SECONDS, exit_within
from trainer.cluster.launch.driver import Attempt, NodeLostError, begin
from trainer.cluster.stop import StopRequest


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.cluster.launch", description=__doc__)
    parser.add_argument("--threads", help="OMP_NUM_THREADS of each rank; default: as torchrun")
    parser.add_argument(
        "--steps", action="store_true", help="tell the steps of TRL's scripts, and OpenRLHF's"
    )
    parser.add_argument("words", nargs="+", help="the script, or a launcher's command line")
    options = parser.parse_args(argv)
    try:
        launch = launcher_flags.parse(options.words)
        if options.steps:
            launch = launcher_flags.telling_steps(launch)
        return _run(launch, options.threads)
    except LaunchError as error:
        print("\n".join(error.faults), file=sys.stderr)
        return ExitCode.USAGE
    except NodeLostError as error:
        print(error, file=sys.stderr)
        return ExitCode.JOB_FAILED


def _run(launch: launcher_flags.Launch, threads: str | None) -> ExitCode:
    import ray

    from trainer.cluster.launch.ray_agents import RayAgents, living
    from trainer.cluster.placement import job_config

    ray.init(job_config=job_config())
    stop = StopRequest()
    stop.install()
    nodes = living()
    if faults := ranks.lacking(launch, [resources for _, resources in nodes]):
        raise LaunchError(*faults)
    chosen = ranks.members([resources for _, resources in nodes])
    nodes = [pair for pair in nodes if pair[1] in chosen]
    given = ray.get_runtime_context().runtime_env.get("working_dir")
    attempt = Attempt(
        number=os.environ.get(ATTEMPT, "1"),
        logs=RunFiles(Path(os.environ.get("ROLLCALL_RUN_DIR", "."))).logs,
        directory=None if given else str(Path.cwd()),
        threads=threads,
    )
    return begin(launch, nodes, RayAgents(nodes), attempt, stop).follow()


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    finally:
        exit_within(LEAVE_SECONDS, code)
    sys.exit(code)
