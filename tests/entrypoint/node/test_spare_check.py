"""A spare is checked now and then, and no longer once it has work."""

from __future__ import annotations

import queue
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.role import Worker
from entrypoint.node import spare_check
from entrypoint.node.spare_check import SpareCheck
from entrypoint.preflight import gpu_burn
from entrypoint.preflight.check import Context
from entrypoint.preflight.verdict import Finding, Verdict
from entrypoint.processes.inbox import SpareUnfit

PASSES = Finding(Verdict.PASS, "GPU 0: 700 TFLOP/s")
FAILS = Finding(Verdict.FAIL, "GPU 3: a wrong product", "replace the GPU")


class Burns:
    def __init__(self, *findings: Finding) -> None:
        self._findings = list(findings)
        self.began: queue.Queue[None] = queue.Queue()

    def __call__(self, over: threading.Event) -> Finding:
        self.began.put(None)
        if not self._findings:
            over.wait(10)
            return FAILS
        return self._findings.pop(0)


def test_a_spare_that_fails_is_told_once_with_what_to_do() -> None:
    told: queue.Queue[str] = queue.Queue()
    check = SpareCheck(Burns(PASSES, FAILS, FAILS), 0.01, told.put)
    check.told(is_spare=True)
    assert told.get(timeout=10) == "gpu.burn: GPU 3: a wrong product (replace the GPU)"
    with pytest.raises(queue.Empty):
        told.get(timeout=0.2)


def test_a_spare_that_gets_work_ends_its_burn_which_then_says_nothing() -> None:
    told: queue.Queue[str] = queue.Queue()
    burns = Burns()
    check = SpareCheck(burns, 0.01, told.put)
    check.told(is_spare=True)
    burns.began.get(timeout=10)
    check.told(is_spare=False)
    with pytest.raises(queue.Empty):
        told.get(timeout=0.2)


def test_without_a_gpu_nothing_runs(tmp_path: Path) -> None:
    env = {"ROLLCALL_RUN_DIR": str(tmp_path), "ROLLCALL_NUM_GPUS": "0", "RAY_WORKER": "0"}
    told: list[SpareUnfit] = []
    check = spare_check.of_node(read_settings(env), told.append)
    before = threading.active_count()
    check.told(is_spare=True)
    assert threading.active_count() == before


def test_a_burn_that_is_to_end_leaves_no_process(tmp_path: Path) -> None:
    settings = read_settings({"ROLLCALL_RUN_DIR": str(tmp_path)})
    over = threading.Event()
    threading.Timer(0.5, over.set).start()
    began = time.monotonic()
    words = [sys.executable, "-c", "import time; time.sleep(77.25)"]
    gpu_burn.run(words, Context(Worker("", "a spare"), settings), over)
    assert time.monotonic() - began < 30
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == words]
