"""A script of a shell that has one command of a trainer is that command, or the reason why not."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from entrypoint.config.read import read_settings
from entrypoint.job.recipes.command.recipe import RECIPE as ANY_COMMAND
from entrypoint.job.recipes.recognise import recognised, words_to_run

VERL = "python3 -m verl.trainer.main_ppo"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".bashrc").touch()
    monkeypatch.setenv("HOME", str(tmp_path))


def script(directory: Path, text: str) -> str:
    path = directory / "run.sh"
    path.write_text(text)
    return str(path)


def test_a_script_as_verl_has_them_is_its_command_with_the_scripts_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL", "m/from-outside")
    monkeypatch.delenv("LR", raising=False)
    path = script(
        tmp_path,
        """
set -xeuo pipefail
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
export NCCL_DEBUG=INFO
cd "$(dirname "$0")"
mkdir -p logs
LAUNCH=(python3)
if [ "$DEVICE" = gpu ]; then LAUNCH=(uv run --frozen --extra vllm python3); fi
DATA=(
    data.train_batch_size=$((128 * 2))  # of all nodes
    "data.train_files=['a b']"
)
HYDRA_FULL_ERROR=1 "${LAUNCH[@]}" -m verl.trainer.main_ppo "${DATA[@]}" \\
    actor_rollout_ref.model.path=$MODEL optim.lr=${LR:-1e-6} device=$DEVICE "$@" 2>&1 | tee logs/1
""",
    )
    found = recognised(["bash", path, "trainer.nnodes=2"], None)
    assert (found.recipe, found.is_known) == ("verl", True)
    assert Path(found.directory) == tmp_path
    assert shlex.join(found.words) == (
        "NCCL_DEBUG=INFO HYDRA_FULL_ERROR=1 uv run --frozen --extra vllm "
        "python3 -m verl.trainer.main_ppo data.train_batch_size=256 "
        "'data.train_files=['\"'\"'a b'\"'\"']' "
        "actor_rollout_ref.model.path=m/from-outside optim.lr=1e-6 device=gpu trainer.nnodes=2"
    )
    assert found.said.startswith(f"{path} has a command of verl: recipe verl; ROLLCALL_RECIPE deci")
    assert f"`rollcall translate {path}`" in found.said
    assert found.said.endswith("Left out: mkdir -p logs, tee logs/1")


@pytest.mark.parametrize(
    ("line", "recipe", "words"),
    [
        (f"set -x; {VERL} a.b=1 > log 2>&1 &", "verl", f"{VERL} a.b=1"),
        (f"{VERL} \\\n  a.b=1 \\\n  c=\"d e\"", "verl", f"{VERL} a.b=1 'c=d e'"),
        ("ray stop; ray start --head; trl sft --x 1", "trl", "trl sft --x 1"),
        ("uv sync --extra vllm --frozen; trl sft --x 1", "trl", "trl sft --x 1"),
        ("exec torchrun train.py --name $0", "torchrun", "torchrun train.py --name bash"),
        ("export A=1; B=2 deepspeed a.py", "torchrun", "A=1 B=2 deepspeed a.py"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", [[], ["bash", "-c"], ["nohup", "bash", "-exc"]])
def test_a_line_of_a_shell_is_its_command(
    before: list[str], line: str, recipe: str, words: str
) -> None:
    found = recognised([*before, line], None)
    assert (found.recipe, shlex.join(found.words), found.directory) == (recipe, words, "")


def test_variables_before_the_shell_reach_the_script() -> None:
    found = recognised(["LR=3", "bash", "-c", f"{VERL} lr=$LR"], None)
    assert found.words == ("LR=3", *VERL.split(), "lr=3")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"pip install -q x && {VERL} a.b=1", "it runs pip install -q x, too. Run that f"),
        (f"for s in 1 2; do {VERL} seed=$s; done", "it has 2 commands of trainers"),
        (f"{VERL} name=$(date)", "not all of its command is known before it runs ($(date), line 1"),
        (f"cat > e.sh <<E\nE\n. ./e.sh; {VERL} a.b=1", "line 3: `. ./e.sh` may set it"),
        (f"cat > a.json <<E\n{{}}\nE\n{VERL} a.b=a.json", "it writes a.json, which its command na"),
        (f"cd /nowhere && {VERL} a.b=1", "it goes to /nowhere, which is not a directory here"),
        (f"[ $# -gt 1 ] || exit 0\n{VERL} a.b=$1", "it ends at line 1, before a command"),
        (f"set -u\n. ~/.bashrc\n{VERL} a.b=$LR", "line 3, unless what it sources sets $LR"),
        (
            "python3 train.py",
            "knows. ROLLCALL_RECIPE=torchrun with `python3 train.py` alone",
        ),
        ("srun ray start --head", "by srun, and docs/platforms/slurm.md has the file for Slurm"),
        (f'srun ray start\nsrun --overlap bash -c "{VERL} x=1"', "(verl.trainer.main_ppo) by srun"),
        ("if", "it cannot be read ("),
    ],
)
def test_any_doubt_runs_the_script_as_it_is_and_the_reason_is_said(
    tmp_path: Path, text: str, why: str
) -> None:
    words = ("bash", script(tmp_path, text))
    found = recognised(words, None)
    assert (found.words, found.recipe, found.is_known) == (words, "command", False)
    assert found.said.startswith(f"{words[1]} runs as it is on the head, by recipe command: ")
    assert why in found.said


def test_a_submitted_script_is_its_command_unless_it_starts_elsewhere_than_on_the_head() -> None:
    line = ("bash", "-c", f"set -x; {VERL} a.b=1 2>&1 | tee log")
    assert words_to_run(line, {}, "builtin") == (*VERL.split(), "a.b=1")
    assert words_to_run(line, {"working_dir": "/code"}, "builtin") == line
    assert words_to_run(line, {}, "command") == line
    elsewhere = ("bash", "-c", f"cd / && {VERL} a.b=1")
    assert words_to_run(elsewhere, {}, "builtin") == elsewhere
    assert words_to_run(("--pretrain", "m"), {}, "builtin") == ("--pretrain", "m")


def test_rollcall_recipe_decides_otherwise(tmp_path: Path) -> None:
    words = ("bash", script(tmp_path, f"{VERL} a.b=1"))
    assert recognised(words, "command").words == words
    found = recognised(words, "search-r1")
    assert (found.recipe, found.words) == ("search-r1", (*VERL.split(), "a.b=1"))


def test_a_variable_that_is_not_set_is_named_with_the_scripts_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NPROC", "LR", "EXTRA", "FOO", "SUFFIX", "ROOT_OF_IT", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    path = script(
        tmp_path,
        """
export PYTHONPATH=/x:$PYTHONPATH
[ -z "$FOO" ] && mkdir -p x
PROCESSES=${NPROC}
ARGS=(--lr $LR --name a${SUFFIX:+-}${SUFFIX})
function launch() { torchrun --nproc-per-node $PROCESSES "$@" $1; }
launch train.py "${ARGS[@]}" --port ${PORT:-29500} \\
    $EXTRA --total $((NODES_OF_IT * 8))
""",
    )
    found = recognised(["bash", path], None)
    assert found.recipe == "torchrun"
    named = [warning.removeprefix(f"{path}, ").split(" and ")[0] for warning in found.warnings]
    assert sorted(named) == [
        "line 4: $NPROC is not set,",
        "line 5: $LR is not set,",
        "line 8: $EXTRA is not set,",
        "line 8: $NODES_OF_IT is not set,",
    ]
    assert "Set it first, as in export NPROC=VALUE" in found.warnings[0]
    monkeypatch.setenv("NPROC", "2")
    sourced = "source ~/.bashrc\ntorchrun $LR"
    assert recognised(["bash", script(tmp_path, sourced)], None).warnings == ()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"set -eu\n{VERL} a.b=$LR", "line 2: $LR is not set, and the script ends there"),
        (f"\n: ${{LR:?give it}}\n{VERL} a.b=$LR", "line 2: $LR is not set"),
        (f"set -u\n{VERL} a.b=$1", "line 2: argument 1 of the script is not set"),
        (f"set -u\nsource ~/.bashrc\n{VERL} a.b=$LR", ""),
        (f"[ $# -gt 1 ] || exit 1\n{VERL}", "line 1: the script ends there with an error. Give"),
        (
            f"if [ $# -lt 2 ]; then\n echo 'Usage: run.sh GPUS DIR'\n exit 1\nfi\n{VERL} a.b=$1",
            "line 3: the script ends there with an error. It says: Usage: run.sh GPUS DIR. Give w",
        ),
        (f"say() {{ echo 'needs $LR' >&2; exit 2; }}\n[ -n \"$LR\" ] || say\n{VERL}", "needs $LR."),
        (f'set -e\n[ -n "$LR" ]\n{VERL}', "line 2: the script ends there with an error"),
        (f"[ -d /nowhere ] || exit 0\n{VERL}", ""),
        (f"set -u\n{VERL} a.b=${{LR:-1}}", ""),
    ],
)
def test_a_script_that_ends_for_a_variable_is_a_fault_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fault: str
) -> None:
    monkeypatch.delenv("LR", raising=False)
    found = recognised(["bash", script(tmp_path, text)], None)
    assert str(found.fault or "").find(fault) >= 0
    assert bool(found.fault) == bool(fault)


def test_a_python_or_a_shell_without_its_script_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    environ = {"ROLLCALL_RECIPE": "command", "ROLLCALL_RUN_DIR": str(tmp_path)}

    def faults(words: str) -> Sequence[str]:
        return ANY_COMMAND.faults(read_settings(environ, shlex.split(words)))

    assert faults("python trian.py") == [f"trian.py is not a file in {tmp_path}: did you mean trai"
                                         "n.py?"]  # fmt: skip
    assert faults("bash run.sh")[0].startswith("run.sh is not a file in ")
    for taken in ("python -u train.py", "python -c 'x.py'", "bash -c a.sh", "python -m none.py"):
        assert faults(taken) == []
