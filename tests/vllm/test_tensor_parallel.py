"""vLLM over two ranks, each in a process of its own: on CPUs, as over two GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel

pytestmark = [pytest.mark.vllm, pytest.mark.faults, pytest.mark.timeout(480)]

PROGRAM = """
import os, signal, sys
from types import SimpleNamespace
from tests.support.vllm import SAMPLING, requests, settings
from trainer.rollout.vllm_engine import VLLMEngine
from trainer.types import EngineFailedError

if __name__ == "__main__":
    engine = VLLMEngine(settings(SimpleNamespace(model=sys.argv[1]), tensor_parallel_size=2))
    ballast = b"1" * 3 * 2**30  # of vLLM's process, which has no GPU
    print("wrote", len(engine.generate(requests(1), SAMPLING)), flush=True)
    print("peak", engine.peaks()["engine_rollout_memory_gb"], flush=True)
    executor = engine._llm.llm_engine.engine_core.engine_core.model_executor
    os.kill(executor.workers[1].proc.pid, signal.SIGKILL)
    for act in (lambda: engine.generate(requests(1), SAMPLING), engine.begin):
        try:
            act()
        except EngineFailedError as error:
            print(error, flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Lines of a program: vLLM imports that of its ranks' parent anew."""
    tmp_path = tmp_path_factory.mktemp("tensor-parallel")
    shape = TinyModel(hidden_size=64, layers=2, heads=2, max_length=256)
    write_model(shape, "0123456789+=", tmp_path / "model")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environ = {"OMP_NUM_THREADS": "1", "LD_PRELOAD": "", "PYTHONPATH": str(Path.cwd())}
    started = subprocess.Popen(
        [sys.executable, program, tmp_path / "model"],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        return started.communicate(timeout=400)[0].splitlines()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


def test_a_dead_rank_ends_the_engine_alone_in_a_call_and_before_the_next(said: list[str]) -> None:
    assert said.count("wrote 4") == 1
    assert len([line for line in said if line.startswith("vLLM ended: ")]) == 2


def test_the_peak_of_an_engine_is_that_of_its_ranks(said: list[str]) -> None:
    (peak,) = (float(line.split()[1]) for line in said if line.startswith("peak "))
    assert 0.01 < peak < 3
