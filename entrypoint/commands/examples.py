"""Examples for the help of each command. A test parses them as the command does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BREAK = " \\\n      "
"""A shell reads on behind it; no line is longer than a terminal of 80 columns."""
MODEL = "--pretrain Qwen/Qwen2.5-0.5B-Instruct"
JOB = f"{MODEL}{BREAK}--prompt_data openai/gsm8k:main --reward gsm8k"
EXAMPLES: Mapping[str, Sequence[str]] = {
    "up": (
        f"rollcall up {JOB}",
        f"EXPECTED_WORKERS=2 ROLLCALL_RUN_DIR=/shared/run{BREAK}rollcall up torchrun train.py",
        "RAY_WORKER=1 ROLLCALL_HEAD_ADDRESS=10.0.0.2 rollcall up",
        "rollcall up --wait-for-jobs",
    ),
    "plan": (
        f"rollcall plan --nodes 3 --gpus 8 --gpu-memory 80GB{BREAK}{JOB}",
        "rollcall plan torchrun train.py",
        "rollcall plan pipeline stages.yaml",
    ),
    "init": (
        "rollcall init",
        f"rollcall init --yes --platform slurm --nodes 3{BREAK}--data train.jsonl --model model",
    ),
    "doctor": ("rollcall doctor", "rollcall doctor --json"),
    "submit": (
        "rollcall submit -- python train.py --lr 1e-5",
        "rollcall submit --name first --no-wait --working-dir . -- torchrun train.py",
        f"ROLLCALL_TOKEN=TOKEN rollcall submit --address http://HOST:8267{BREAK}-- python train.py",
    ),
    "pipeline": ("rollcall pipeline stages.yaml",),
    "list": ("rollcall list", "rollcall list --address http://HOST:8267"),
    "status": ("rollcall status", "rollcall status --watch", "rollcall status job-1"),
    "wait": ("rollcall wait --timeout 2h", "rollcall wait job-1"),
    "open": ("rollcall open", "rollcall open runs", "rollcall open --key"),
    "logs": ("rollcall logs", "rollcall logs -f", "rollcall logs -n 100 attempt-1"),
    "events": ("rollcall events -f", "rollcall events --since 10m job-1"),
    "report": ("rollcall report runs/first", "rollcall report --html report.html runs/first"),
    "bundle": ("rollcall bundle --out bug.tar.gz runs/first",),
    "stop": ("rollcall stop", "rollcall stop job-1"),
    "rotate-token": ("rollcall rotate-token /shared/run", "rollcall rotate-token http://HOST:8267"),
    "demo": ("rollcall demo --steps 20", "rollcall demo --crash --dir runs/demo"),
    "completion": ('eval "$(rollcall completion)"',),
}


def shown(command: str) -> str:
    """Return the examples of a command for its help; "" if it has none."""
    lines = [f"  {line}\n" for line in EXAMPLES.get(command, ())]
    return "".join(["\nexamples:\n", *lines]) if lines else ""
