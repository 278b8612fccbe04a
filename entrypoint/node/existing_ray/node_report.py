"""Prints what a node of an existing Ray says of itself: a check-in, as one line of JSON.

    python -m entrypoint.node.existing_ray.node_report SETTINGS

The supervisor has Ray run it on each node. SETTINGS: the supervisor's variables, as JSON. They
beat those of the node.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from contract.options import ConfigError
from entrypoint.cluster.storage_proof import StorageProof
from entrypoint.config.check_names import CheckName
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.config.settings import PreflightMode, Settings
from entrypoint.config.uses import Use
from entrypoint.machine.inventory import collective_variables, inventory, versions
from entrypoint.net import wait
from entrypoint.preflight.run import run_checks
from entrypoint.preflight.show import lines, not_well

STARTS_NOTHING = frozenset(
    {
        CheckName.HOST_PORTS,
        CheckName.HOST_STALE_RAY,
        CheckName.HOST_TEMP_DIR,
        CheckName.HOST_PRIVATE,
        CheckName.HOST_RUN_DIR_SPEED,
    }
)
"""Checks of what a node needs to start Ray, or that the supervisor has made."""


def main() -> int:
    given = json.loads(sys.argv[1])
    try:
        row = check_in(read_settings({**os.environ, **given}, use=Use.MACHINE))
    except ConfigError as error:
        row = {"unfit": [" ".join(str(fault).split()) for fault in error.faults]}
    print(json.dumps(row))
    return 0


def check_in(settings: Settings) -> Mapping[str, Any]:
    """The fields of a `NodeInfo` that only the node knows."""
    proof, unfit = StorageProof(settings.run_dir), []
    asked = replace(
        settings, ray_address=None, preflight_skip=settings.preflight_skip | STARTS_NOTHING
    )
    report = run_checks(Head(settings.expected_workers or 0, 0, "a node of Ray"), asked)
    if settings.preflight is PreflightMode.STRICT:
        unfit = lines(replace(report, results=report.fails))
    try:
        storage = proof.show()
    except wait.NotYetError as error:
        storage, unfit = "", [*unfit, str(error)]
    address = settings.node_address or ""
    return {
        "versions": versions(settings),
        "inventory": inventory(settings, address),
        "warnings": list(findings := not_well(report, settings.secrets)),
        "findings": findings,
        "unfit": [" ".join(sentence.split()) for sentence in unfit],
        "environment": collective_variables(settings.environ),
        "storage": storage,
        "clock": time.time(),
    }


if __name__ == "__main__":
    sys.exit(main())
