"""What a real driver of Ray prints as it ends, and what is made of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint.failures import Ending, FailureClass, classify, evidence
from entrypoint.signs import Signs
from tests.cluster.relays import REASON, RELAYED

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_the_drivers_own_error_is_the_evidence_and_not_what_ray_relays_after_it() -> None:
    program = Path(__file__).with_name("relays.py")
    colours = {"RAY_COLOR_PREFIX": "1", "FORCE_COLOR": "1"}
    driver = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, **colours},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    signs = Signs(lambda: 0)
    for line in driver.stdout.splitlines():
        signs.read(line)
    reason, relayed = (driver.stdout.index(words) for words in (REASON, RELAYED))
    assert reason < relayed, driver.stdout
    assert "\x1b[" in driver.stdout
    ending = Ending(
        status="FAILED",
        exit_code=driver.returncode,
        message=driver.stdout,
        last_error=signs.last_error,
        signs=signs.at(0),
    )
    assert classify(ending) is FailureClass.USAGE
    assert evidence(ending, FailureClass.USAGE) == REASON
