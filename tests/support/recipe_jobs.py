"""A job for each of the recipes `torchrun`, `trl` and `command`, which records its own steps."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT

HERE = "tests/support/jobs"
STEPS = 100_000
OUT, RECORD, INPUT = "/checkpoints/out", "/record/rows.jsonl", "/data"
"""As the containers see them."""
ALPHABET = "0123456789+= "
VOLUMES = (f"{ROOT / HERE}:/jobs/{HERE}:ro",)
VARIABLES = {
    "PYTHONPATH": "/jobs",
    "JOB_RECORD": RECORD,
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeJob:
    recipe: str
    script: str
    flags: tuple[str, ...]
    length: str
    """The flag that takes the number of steps."""
    resume: str
    """The flag that takes a checkpoint."""
    weights: str = "model.safetensors"
    """The file of a checkpoint that holds the weights."""
    marker: str
    """The file of a checkpoint that is written last."""
    pause: float = 0.1
    """Seconds that it waits after each step."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables of Rollcall, for the head."""
    hang_seconds: int

    def words(self, steps: int = STEPS) -> list[str]:
        """The script and its flags."""
        return [f"/jobs/{HERE}/{self.script}", *self.flags, self.length, str(steps)]

    def variables(self) -> dict[str, str]:
        """Of the head."""
        own = {"ROLLCALL_RECIPE": self.recipe, "ROLLCALL_HANG_TIMEOUT": str(self.hang_seconds)}
        return {**VARIABLES, "JOB_PAUSE": str(self.pause), **own, **self.settings}


PLAIN = {
    "ROLLCALL_STEP_PATTERN": r"^step (?P<step>\d+)/(?P<total_steps>\d+)",
    "ROLLCALL_CHECKPOINTS": "out/checkpoint-{step}/done",
    "ROLLCALL_RESUME_ARGS": "--resume {checkpoint}",
}
TORCHRUN = RecipeJob(
    recipe="torchrun",
    script="ranks.py",
    flags=("--out", OUT),
    length="--steps",
    resume="--resume",
    marker="done",
    settings=PLAIN,
    hang_seconds=45,
)
COMMAND = RecipeJob(
    recipe="command",
    script="ray_program.py",
    flags=("--out", OUT),
    length="--steps",
    resume="--resume",
    weights="weights.npy",
    marker="done",
    settings=PLAIN,
    hang_seconds=45,
)
TRL = RecipeJob(
    recipe="trl",
    script="sft.py",
    flags=(
        *("--model_name_or_path", f"{INPUT}/model", "--dataset_name", f"{INPUT}/data"),
        *("--output_dir", OUT, "--per_device_train_batch_size", "4", "--max_length", "32"),
        *("--learning_rate", "1e-3", "--lr_scheduler_type", "constant", "--warmup_steps", "0"),
        *("--logging_steps", "1", "--save_steps", "5", "--save_total_limit", "5"),
        *("--use_cpu", "true", "--bf16", "false", "--gradient_checkpointing", "false"),
        *("--report_to", "none", "--disable_tqdm", "true", "--seed", "7"),
    ),
    length="--max_steps",
    resume="--resume_from_checkpoint",
    marker="trainer_state.json",
    pause=0.3,
    hang_seconds=90,
)


def write_input(root: Path) -> Path:
    """A tiny model with random weights, and sums to train on."""
    from env.prepare.model import write_model
    from env.prepare.tiny_model import TinyModel

    write_model(TinyModel(hidden_size=32, layers=2, heads=2), ALPHABET, root / "model")
    draw = random.Random(7)
    pairs = [(draw.randint(0, 99), draw.randint(0, 99)) for _ in range(600)]
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in pairs]
    (root / "data").mkdir()
    (root / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def rows(path: Path) -> list[dict[str, Any]]:
    """What the job has recorded so far; a last line without its end is left out."""
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def losses(recorded: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Of each step."""
    return {row["step"]: row["value"] for row in recorded if row["kind"] == "step"}
