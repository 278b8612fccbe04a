"""Forms in which trainers' repositories write their scripts → the command that is run."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

from entrypoint.job.recipes.recognise import Recognised, recognised

VERL = "python3 -m verl.trainer.main_ppo"
BEGAN = datetime(2026, 11, 29, 9, 5, 7, tzinfo=UTC).timestamp()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("LR", "MODEL", "TAG", "TZ"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def of(text: str, *arguments: str) -> Recognised:
    Path("run.sh").write_text(text)
    return recognised(["bash", "run.sh", *arguments], None, BEGAN)


def command(text: str, *arguments: str) -> str:
    found = of(text, *arguments)
    assert found.is_known, found.said
    return shlex.join(found.words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("now() { date -u '+%d-%H-%M'; }\nNAME=a_$(now)\n{} n=$NAME", "{} n=a_29-09-05"),
        (
            'export TZ=Asia/Tokyo\n{} n=`date "+%Y%m%d_%H%M%S"`',
            "TZ=Asia/Tokyo {} n=20261129_180507",
        ),
        ("{} n=$(date -u +%s)", f"{{}} n={BEGAN:.0f}"),
        ("{} n=$(nproc --all | wc -l)", ""),
        ("{} n=$(hostname | wc -l)", "{} n=1"),
        (r"{} n=$(printf 'a b\nc\n' | head -n 1 | awk '{print $2}')", "{} n=b"),
        (
            "export A_1=1 A_2=2 B=3\nfor v in $(env | awk -F= '/^(A|C)_/{print $1}'); do\n"
            '  unset "$v"\ndone\nexport A_3=${A_1:-no}\n{}',
            "B=3 A_3=no {}",
        ),
        ("if echo 'NVIDIA H100' | grep -q 'NVIDIA H'; then X=1; fi\n{} x=$X", "{} x=1"),
        ("if ! echo 'gpu a' | grep -iE '^(b|GPU b)$'; then X=2; fi\n{} x=$X", "{} x=2"),
        ("echo a | grep -P 'a' && X=1\n{} x=$X", ""),
        ("{} n=$(git rev-parse HEAD)", ""),
        ("{} n=$(date +%B)", ""),
    ],
)
def test_what_a_script_asks_the_clock_and_the_machine_is_known_before_it_runs(
    here: Path, text: str, words: str
) -> None:
    text = text.replace("{}", VERL)
    if words:
        assert command(text) == words.replace("{}", VERL)
    else:
        assert "not all of its command is known before it runs" in of(text).said


@pytest.mark.parametrize("dot", ["source", "."])
def test_a_file_that_a_script_sources_is_read(here: Path, dot: str) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "env.sh").write_text(
        'DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nLR=$1\nexport TAG=a\nreturn\nLR=9'
    )
    text = f"set -- x\n{dot} sub/env.sh 3e-6\n{VERL} lr=$LR dir=$DIR name=$1 of=$0"
    found = of(text)
    assert found.words == (
        *("TAG=a", *VERL.split(), "lr=3e-6", f"dir={here}/sub", "name=x", "of=run.sh"),
    )
    assert found.warnings == ()


def test_a_file_that_is_sourced_and_is_not_there_sets_nothing_and_a_warning_says_it(
    here: Path,
) -> None:
    found = of(f"set -x\nsource ./env.sh\n{VERL} lr=${{LR:-1}}")
    assert shlex.join(found.words) == f"{VERL} lr=1"
    assert found.warnings == ("run.sh, line 2: ./env.sh is not a file here, and sets nothing",)
    guarded = of(f"[ -f env.sh ] && source env.sh\n{VERL} lr=${{LR:-1}}")
    assert (shlex.join(guarded.words), guarded.warnings) == (f"{VERL} lr=1", ())
    toolkit = of(f"source /none/set_env.sh\nsource conda.sh\n{VERL} lr=${{LR:-1}}")
    assert [one.split(" is not")[0] for one in toolkit.warnings] == [
        "run.sh, line 1: /none/set_env.sh",
        "run.sh, line 2: conda.sh",
    ]
    ends = of(f"set -e\nsource ./env.sh\n{VERL} lr=${{LR:-1}}")
    assert str(ends.fault).startswith("run.sh, line 2: the script ends there with an error")


def test_a_program_that_is_absent_here_is_named_with_its_line(here: Path) -> None:
    lacks = "This machine has no program {}, which line 2 runs"
    asked = f"PATH=/none\nN=$(nvidia-smi -L)\n{VERL} n=$N"
    (warning,) = of(asked).warnings
    assert warning.startswith(f"run.sh: {lacks.format('nvidia-smi')}. ")
    ends = of(asked.replace("PATH", "set -e; PATH"))
    problem = f"the script ends there with an error. {lacks.format('nvidia-smi')}. Run this where"
    assert problem in str(ends.fault)
    untold = of(f"PATH=/none\nN=$(no-such-smi -L)\n{VERL} n=$N").said
    assert f"{lacks.format('no-such-smi')}. Put a fixed value there" in untold
    unset = of(f"N=$(scontrol show)\n{VERL} n=$N id=$SLURM_JOB_ID").said
    assert "Put a fixed value there. Not set here: $SLURM_JOB_ID" in unset
    beside = of(f"PATH=/none\nnvidia-smi\n{VERL} n=1")
    assert beside.warnings == ()


def test_a_test_of_a_file_is_answered_unless_the_script_may_have_made_it(here: Path) -> None:
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text("{}")
    text = "if [ -d model ] && [[ ! -e none ]] && test -s model/config.json; then M=model; fi"
    assert command(f"M=hub/m\n{text}\n{VERL} m=$M") == f"{VERL} m=model"
    made = f"mkdir -p out\nif [ -d out/x ]; then M=out; fi\n{VERL} m=$M"
    assert "it depends on `[ -d out/x ]`, which only a run tells" in of(made).said


@pytest.mark.parametrize(
    "start",
    [
        "bash sub/train.sh $X",
        "exec bash -x sub/train.sh $X",
        "cd sub && bash train.sh $X",
        'bash "$(dirname "$0")/sub/train.sh" "$@"',
        "nohup bash sub/train.sh $X > log 2>&1 &\nwait",
        "chmod() { :; }; chmod +x sub/train.sh; ./sub/train.sh $X | tee log",
    ],
)
def test_a_script_that_another_one_runs_is_read_with_the_variables_that_it_gets(
    here: Path, start: str
) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "train.sh").write_text(
        f"export TAG=t-$MODEL\nif [ $# -ne 1 ]; then exit 1; fi\n{VERL} lr=$LR x=$1 own=$OWN"
    )
    text = f"export MODEL=m\nOWN=1\nX=${{1:-5}}\nLR=2 true\nexport LR=7\n{start}\nexport LR=8"
    found = of(text, "5")
    assert shlex.join(found.words) == f"MODEL=m LR=7 TAG=t-m {VERL} lr=7 x=5 own="
    assert [one.split(": ")[1].split(",")[0] for one in found.warnings] == ["$OWN is not set"]


def test_a_line_for_a_shell_in_a_script_is_read_too(here: Path) -> None:
    assert command(f'export LR=1\nbash -c "{VERL} lr=\\$LR a=\\$1" x 2') == (
        f"LR=1 {VERL} lr=1 a=2"
    )


@pytest.mark.parametrize("download", ["huggingface-cli download", "hf download"])
def test_a_download_is_left_out_once_its_directory_has_files(here: Path, download: str) -> None:
    text = f"{download} Qwen/Qwen3-8B --local-dir models/q &\nwait\n{VERL} m=models/q"
    found = of(text)
    assert not found.is_known
    assert f"it runs {download} Qwen/Qwen3-8B --local-dir models/q, too. Run that" in found.said
    (here / "models" / "q").mkdir(parents=True)
    assert not of(text).is_known
    (here / "models" / "q" / "config.json").touch()
    assert of(text).words == (*VERL.split(), "m=models/q")
    assert command(f"{download} Qwen/Qwen3-8B\n{VERL} m=Qwen/Qwen3-8B") == f"{VERL} m=Qwen/Qwen3-8B"


def test_a_line_that_a_missing_backslash_cuts_off_is_named_and_is_no_program(here: Path) -> None:
    found = of(f"{VERL} \\\n  a.b=1 \\\n  c.d=2\n  e.f=3 \\\n  g.h=4")
    assert shlex.join(found.words) == f"{VERL} a.b=1 c.d=2"
    assert found.warnings == (
        "run.sh, line 4: e.f=3 is no part of the command above: a comment or a missing backslash "
        "ends it, in bash too",
    )


def test_a_space_behind_a_backslash_is_a_warning_for_bash_ends_the_command_there(
    here: Path,
) -> None:
    found = of(f"{VERL} \\ \n  a.b=1")
    assert shlex.join(found.words) == f"{VERL} a.b=1"
    assert found.warnings == (
        "run.sh, line 1: spaces follow the backslash: bash ends the command there, and here it "
        "goes on",
    )


def test_what_sets_up_a_shell_or_looks_at_the_machine_is_left_out(here: Path) -> None:
    text = (
        "module load cuda\nconda activate verl\npkill -9 ray\nray stop --force\n"
        "A=1 nohup ray start --head &\nray status\nnvidia-smi\n"
        f"nohup {VERL} a.b=1 > log 2>&1 &\ntail -f log"
    )
    found = of(text)
    assert found.words[-4:] == (*VERL.split(), "a.b=1")
    no_effect = "no effect here; run it before Rollcall starts"
    assert found.warnings == (f"module load cuda: {no_effect}", f"conda activate verl: {no_effect}")
    assert "pkill -9 ray, ray stop --force, A=1 nohup ray start --head" in found.said
