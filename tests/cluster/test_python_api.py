"""`train` in a program: a local Ray of its own, a reward that is a function, a callback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ray_nodes import short_directory
from tests.support.tiny_run import Tiny

PROGRAM = """
import signal, sys
import ray
from rollcall import Callback, CallbackError, ConfigError, Score, train

model, prompts, run_dir = sys.argv[1:]
flags = dict(
    pretrain=model, prompt_data=prompts, input_key="prompt", label_key="answer", run_dir=run_dir,
    rollout_batch_size=4, n_samples_per_prompt=2, train_batch_size=4, micro_train_batch_size=2,
    generate_max_len=3, advantage_estimator="group_norm", init_kl_coef=0, save_steps=1,
)

def reward(requests):
    return [Score.of(float(len(request.response))) for request in requests]

class Stops(Callback):
    def on_step_end(self, step):
        raise ValueError("enough")

handler = signal.getsignal(signal.SIGTERM)
try:
    train(**flags, reward=reward, callbacks=[Stops()], max_steps=2)
except CallbackError as error:
    print(error)
result = train(**flags, reward=reward, max_steps=2)
print(result)
assert [row["step"] for row in result.metrics()] == list(result.to_pandas().index) == [1, 2]
assert len(result.plot().axes[0].lines) == 1
assert not ray.is_initialized()
assert signal.getsignal(signal.SIGTERM) is handler
try:
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    train(**flags, reward=reward, max_steps=3)
except ConfigError as error:
    print(error)
"""


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_a_program_trains_in_a_local_ray_that_ends_with_each_run(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for name in ("env", "trainer"):  # beside it: Python finds them first
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the user\\'s own module')\n")
    kept = {n: t for n, t in os.environ.items() if not n.startswith(("RAY_", "WANDB_"))}
    with short_directory() as ray_directory:
        done = subprocess.run(
            [sys.executable, program, tiny.model, tiny.prompts, run_dir],
            env=kept | {"RAY_TMPDIR": str(ray_directory), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=350,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Stops.on_step_end raised ValueError after step 1: enough" in done.stdout
    assert f"import {tmp_path}/env.py in place of Rollcall's package" in done.stdout
    assert "Result(steps=2, samples=16" in done.stdout
    assert (run_dir / "hf" / "config.json").exists()


ENDS_WITH_RAY = """
import time
import ray
from trainer.cluster.stop import StopRequest

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
stop = StopRequest()
stop.install()
print("here", flush=True)
time.sleep(120)
"""


@pytest.mark.cluster
@pytest.mark.parametrize("is_group", [True, pytest.param(False, marks=pytest.mark.faults)])
def test_a_sigterm_that_ends_a_local_ray_too_ends_the_run_with_a_sentence(is_group: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDS_WITH_RAY],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout
        assert program.stderr
        assert program.stdout.readline() == "here\n"
        if is_group:
            os.killpg(program.pid, signal.SIGTERM)
        else:
            program.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                program.wait(3)
            program.send_signal(signal.SIGTERM)  # the second one ends it
        assert program.wait(60) == 143
        said = program.stderr.read()
        assert ("Stopped without saving: SIGTERM has ended Ray" in said) == is_group, said
