"""What the words after the image's name mean."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.journal import append_event
from contract.launch.programs import Program
from contract.run_dir import RunFiles
from entrypoint.__main__ import recipe_takes_command
from entrypoint.commands import arguments, cli, up
from entrypoint.commands.cli import COMMANDS, Invocation, PlannedNodes, UsageError, parse
from entrypoint.config.read import read_settings
from entrypoint.config.recipe_registry import BUILTIN, RECIPES
from entrypoint.job.recipes.base import UnknownFlag
from entrypoint.processes.programs import program

SUPERVISED = {"ROLLCALL_RECIPE": "supervised"}
NODES = {"EXPECTED_WORKERS": "--nodes"}
ELSEWHERE = PlannedNodes(elsewhere=True, flags=NODES)


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("", Invocation("up")),
        ("up", Invocation("up")),
        ("up -- --pretrain m", Invocation("up", ("--pretrain", "m"))),
        ("up --pretrain m", Invocation("up", ("--pretrain", "m"))),
        ("-- --pretrain m", Invocation("up", ("--pretrain", "m"))),
        ("--pretrain m --json", Invocation("up", ("--pretrain", "m", "--json"))),
        ("-c 1", Invocation("up", ("-c", "1"))),
        ("plan", Invocation("plan")),
        ("plan --json", Invocation("plan", (), as_json=True)),
        ("plan --json -- --pretrain m", Invocation("plan", ("--pretrain", "m"), as_json=True)),
        (
            "plan --nodes 3 --pretrain m --gpus=8 --json --gpu-memory 80GB",
            Invocation(
                "plan",
                ("--pretrain", "m"),
                as_json=True,
                variables={
                    "EXPECTED_WORKERS": "2",
                    "ROLLCALL_NUM_GPUS": "8",
                    "ROLLCALL_GPU_MEMORY": "80GB",
                },
                planned=PlannedNodes(
                    elsewhere=True,
                    flags={
                        **NODES,
                        "ROLLCALL_NUM_GPUS": "--gpus",
                        "ROLLCALL_GPU_MEMORY": "--gpu-memory",
                    },
                ),
            ),
        ),
        (
            "plan --gpus 8,8,4",
            Invocation(
                "plan",
                variables={"EXPECTED_WORKERS": "2", "ROLLCALL_NUM_GPUS": "8"},
                planned=PlannedNodes(
                    gpus=(8, 8, 4),
                    elsewhere=True,
                    flags=dict.fromkeys(("EXPECTED_WORKERS", "ROLLCALL_NUM_GPUS"), "--gpus"),
                ),
            ),
        ),
        ("plan --memory 512GB", Invocation("plan", planned=PlannedNodes(memory=512 * 10**9))),
        ("plan true --nodes 3", Invocation("plan", ("true", "--nodes", "3"))),
        (
            "plan --json pipeline stages.yaml",
            Invocation("plan", (), True, True, stages_of="stages.yaml"),
        ),
        ("doctor --json", Invocation("doctor", (), as_json=True)),
        ("up --wait-for-jobs", Invocation("up", waits_for_jobs=True)),
        ("--wait-for-jobs", Invocation("up", waits_for_jobs=True)),
        ("-- --wait-for-jobs", Invocation("up", waits_for_jobs=True)),
        ("plan --json --wait-for-jobs", Invocation("plan", (), True, True)),
        (
            "plan --nodes 3 --wait-for-jobs",
            Invocation(
                "plan",
                waits_for_jobs=True,
                variables={"EXPECTED_WORKERS": "2"},
                planned=ELSEWHERE,
            ),
        ),
        (
            "--no-code --pretrain m",
            Invocation("up", ("--pretrain", "m"), variables={"ROLLCALL_CHECK_CODE": "0"}),
        ),
        (
            "plan --no-code --json --pretrain m",
            Invocation("plan", ("--pretrain", "m"), True, variables={"ROLLCALL_CHECK_CODE": "0"}),
        ),
        ("up sh --no-code", Invocation("up", ("sh", "--no-code"))),
        ("up sh --wait-for-jobs", Invocation("up", ("sh", "--wait-for-jobs"))),
        ("status", Invocation("status")),
        ("logs --json", Invocation("logs", ("--json",))),
        ("submit --no-wait -- a --b", Invocation("submit", ("--no-wait", "--", "a", "--b"))),
        ("submit -- --pretrain m", Invocation("submit", ("--", "--pretrain", "m"))),
        ("stop", Invocation("stop")),
        ("prepare arithmetic --out d", Invocation("prepare", ("arithmetic", "--out", "d"))),
        ("demo --crash", Invocation("demo", ("--crash",))),
        ("sft --x", Invocation("up", ("sft", "--x"), variables=SUPERVISED)),
        ("up rm --x", Invocation("up", ("rm", "--x"), variables=SUPERVISED)),
        ("help dpo", Invocation("dpo", ("--help",))),
        ("plan rm --x --json", Invocation("plan", ("rm", "--x"), True, variables=SUPERVISED)),
        (
            "plan --nodes 3 rm --x",
            Invocation(
                "plan",
                ("rm", "--x"),
                variables={"EXPECTED_WORKERS": "2", **SUPERVISED},
                planned=ELSEWHERE,
            ),
        ),
        ("--help", Invocation("help")),
        ("-h", Invocation("help")),
        ("help", Invocation("help")),
        ("sh -c true", Invocation("exec", ("sh", "-c", "true"))),
        ("/bin/sh", Invocation("exec", ("/bin/sh",))),
    ],
)
def test_words_mean(words: str, meaning: Invocation) -> None:
    assert parse(words.split()) == meaning


OF_TRANSLATE = ("--pretrain", "m", "--input_template", "{} Think.")
BESIDE = {"EXPECTED_WORKERS": "0"}


@pytest.mark.parametrize(
    ("words", "beside"),
    [
        (("EXPECTED_WORKERS=0", "rollcall", "up", "--", *OF_TRANSLATE), BESIDE),
        (("env", "EXPECTED_WORKERS=0", "/opt/bin/rollcall", "up", *OF_TRANSLATE), BESIDE),
        (("rollcall", "up", "--", *OF_TRANSLATE), {}),
        (("python3", "-m", "rollcall", *OF_TRANSLATE), {}),
        (("up", *OF_TRANSLATE), {}),
        ((f"EXPECTED_WORKERS=0 rollcall up -- \\\n  {shlex.join(OF_TRANSLATE)}",), BESIDE),
    ],
)
def test_a_whole_up_that_is_pasted_as_the_job_is_its_job(
    words: tuple[str, ...], beside: dict[str, str]
) -> None:
    for found in (parse(["plan", *words]), parse(["up", *words]), parse(["up", "--", *words])):
        assert (found.arguments, found.variables) == (OF_TRANSLATE, beside)
    found = parse(["plan", "--nodes", "2", "--json", *words])
    assert (found.arguments, found.as_json) == (OF_TRANSLATE, True)
    assert found.variables == {"EXPECTED_WORKERS": "1"}, "a flag of plan counts more"
    assert parse(["plan", "A=b", "rollcall", "sft", "--x"]).variables == {"A": "b", **SUPERVISED}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rollcall", "translate", "x.sh"), "give the flags that it prints"),
        (("rollcall", "status"), "`rollcall status` is no job"),
        (("nohup", "rollcall", "up", "--", "--x"), "leave out `rollcall up --`"),
        (("bash", "-c", "cd / && rollcall up -- --x"), "leave out `rollcall up --`"),
        (("A=b rollcall up -- --x $Y | tee log",), "leave out `rollcall up --`"),
    ],
)
def test_a_command_of_rollcall_s_that_is_no_job_is_refused(
    words: tuple[str, ...], said: str
) -> None:
    for command in ("plan", "up"):
        with pytest.raises(UsageError, match=said):
            parse([command, *words])


def test_programs_of_rollcall_s_and_of_others_are_jobs() -> None:
    for job in (("rollcall", "prepare", "x"), ("python3", "up"), ("echo", "rollcall", "up")):
        assert parse(["up", *job]).arguments == parse(["plan", *job]).arguments == job


@pytest.mark.parametrize(
    "words",
    ["--nodes", "--nodes 0", "--nodes many", "--gpus 8,8 --nodes 3", "--gpus 8,x", "--memory much"],
)
def test_a_cluster_that_plan_cannot_mean_is_refused(words: str) -> None:
    with pytest.raises(UsageError, match=r"--nodes|--gpus|--memory"):
        parse(["plan", *words.split()])


@pytest.mark.parametrize("words", ["sh -c true", "no-such-program --flag", "stat /", "/opt/statu"])
def test_with_the_command_recipe_any_other_program_is_the_job(words: str) -> None:
    meaning = Invocation("up", tuple(words.split()))
    assert parse(words.split(), recipe_takes_command=True) == meaning


@pytest.mark.parametrize("recipe", RECIPES)
def test_with_any_recipe_but_builtin_a_program_is_the_job(recipe: str) -> None:
    takes = recipe_takes_command({"ROLLCALL_RECIPE": recipe})
    meaning = "exec" if recipe == BUILTIN else "up"
    assert parse([sys.executable, "-m", "x"], recipe_takes_command=takes).command == meaning


def test_with_a_recipe_that_has_stages_of_these_names_they_are_that_recipes() -> None:
    assert parse(["sft", "--x"], recipe_takes_command=True) == Invocation("up", ("sft", "--x"))


def test_the_help_of_a_stage_has_its_flags() -> None:
    done = run("dpo", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: rollcall dpo [--config FILE]")
    assert "--beta NUMBER" in done.stdout


def test_with_the_command_recipe_a_command_is_still_a_command() -> None:
    assert parse(["status"], recipe_takes_command=True) == Invocation("status")


@pytest.mark.parametrize(
    ("words", "meant"), [("sttaus", "status"), ("PLAN", "plan"), ("doctr --json", "doctor")]
)
def test_with_the_command_recipe_a_misspelt_command_is_not_the_job(words: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean {meant}?"):
        parse(words.split(), recipe_takes_command=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("statsu", "did you mean status?"),
        ("qqqqqq", "`rollcall --help` lists the commands"),
        ("doctor now", "doctor does not take now; it takes --json"),
        (
            "--pretrain m --wait-for-jobs",
            "up --wait-for-jobs does not take --pretrain m: `rollcall",
        ),
        ("plan --wait-for-jobs -x", "plan --wait-for-jobs does not take -x: `rollcall submit`"),
    ],
)
def test_words_that_mean_nothing_are_answered_with_what_would(words: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words.split())
    assert said in str(caught.value)


def test_the_help_names_every_command() -> None:
    assert [name for name in COMMANDS if f"  {name} " not in cli.help_text()] == []


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "entrypoint", *words],
        env={"PATH": os.environ["PATH"], "RAY_WORKER": "maybe"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_another_program_is_executed_as_it_is_whatever_the_settings() -> None:
    done = run("sh", "-c", "echo $RAY_WORKER; exit 7")
    assert (done.returncode, done.stdout) == (7, "maybe\n")


def test_words_that_mean_nothing_end_with_64_and_one_line() -> None:
    done = run("statsu")
    assert done.returncode == 64
    assert done.stderr.splitlines() == [
        "statsu is neither a command nor a program here: did you mean status?"
    ]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("cancel", "did you mean stop?\n  stop: ask the head to save and to stop, or end one job"),
        ("start", "did you mean up?\n  up: run this node"),
        ("jobs", "did you mean list?\n  list: the jobs of a cluster"),
    ],
)
def test_a_word_of_other_programs_names_the_command_that_does_it(
    word: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(cli.UsageError) as caught:
        cli.parse([word, "job-4"])
    assert f"{word} is neither a command nor a program here: {said}" in str(caught.value)


def test_a_program_with_the_name_of_a_mistyped_command_is_asked_about() -> None:
    path = shutil.which("stat")
    with pytest.raises(cli.UsageError, match=f"did you mean status\\? `rollcall {path}` runs"):
        cli.parse(["stat", "/"])
    assert cli.parse([str(path), "/"]) == Invocation("exec", (str(path), "/"))


def test_nothing_typed_and_nothing_set_shows_what_it_can_do() -> None:
    done = subprocess.run(
        program(Program.ROLLCALL),
        env={"PATH": os.environ["PATH"], "RAY_WORKER": "0"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE
    assert done.stdout.startswith("usage: rollcall [COMMAND] [ARGUMENTS]")
    assert done.stderr == f"{up.NO_JOB}\n"


@pytest.mark.parametrize("recipe", ["builtin", "command"])
def test_a_head_without_a_job_says_how_to_have_a_cluster_that_waits_for_jobs(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = read_settings({"RAY_WORKER": "0", "ROLLCALL_RECIPE": recipe})
    assert up.up(settings) == 64
    said = capsys.readouterr().err
    assert said.startswith("no job is given: ") == (recipe == "builtin")
    assert "start every node with `rollcall up --wait-for-jobs`" in said


@pytest.mark.parametrize(
    "words",
    [
        *("entrypoint plan", "entrypoint help", "entrypoint sft --help", "trainer --help"),
        *("trainer.supervised --help", "trainer.supervised sft --help"),
    ],
)
def test_a_reader_that_leaves_early_ends_a_program_without_a_traceback(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", *words.split()],
        env={"PATH": os.environ["PATH"]},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["help", "plan", "report RUN", "events"])
def test_an_output_on_a_full_disk_is_named_without_a_traceback(
    tmp_path: Path, words: str, unbuffered: str
) -> None:
    append_event(RunFiles(tmp_path).journal, "start", "this is the head")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            program(Program.ROLLCALL, *words.replace("RUN", str(tmp_path)).split()),
            env={
                "PATH": os.environ["PATH"],
                "PYTHONUNBUFFERED": unbuffered,
                "RAY_WORKER": "0",
                "ROLLCALL_RUN_DIR": str(tmp_path),
            },
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    said = "the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (ExitCode.RUN_DIR, said)


def test_a_program_that_the_system_does_not_execute_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo no first line says which shell\n")
    script.chmod(0o755)
    done = subprocess.run(
        program(Program.ROLLCALL, str(script)), capture_output=True, text=True, check=False
    )
    said = f"{script} cannot be executed: Exec format error\n"
    assert (done.returncode, done.stderr) == (ExitCode.USAGE, said)


def test_the_hint_at_a_flag_of_the_node_depends_on_no_word_of_the_fault() -> None:
    fault = UnknownFlag("told otherwise", "--jsno")
    assert arguments.hinted([fault, "--jsno: unknown flag. See --help"], "plan") == [
        "--jsno: unknown flag. Did you mean --json?",
        "--jsno: unknown flag. See --help",
    ]


@pytest.mark.parametrize(
    ("words", "job", "name"),
    [
        ("up --name first-try --pretrain m", "--pretrain m", "first-try"),
        ("--pretrain m --name=first-try", "--pretrain m", "first-try"),
        ("up --no-code --name a python x.py --name b", "python x.py --name b", "a"),
        ("up python x.py --name b", "python x.py --name b", None),
        ("plan --nodes 2 --name a --pretrain m", "--pretrain m", "a"),
        ("up --wait-for-jobs --name a", "", "a"),
    ],
)
def test_the_name_of_a_run_is_no_word_of_its_job(words: str, job: str, name: str | None) -> None:
    call = cli.parse(words.split())
    assert call.arguments == tuple(job.split())
    assert call.variables.get("ROLLCALL_NAME") == name
    assert call.waits_for_jobs == ("--wait-for-jobs" in words)


def test_a_name_without_a_value_is_refused() -> None:
    with pytest.raises(cli.UsageError, match="--name has no value, as in --name first-try"):
        cli.parse(["up", "--name"])


@pytest.mark.parametrize(
    ("words", "job"),
    [
        ("up --name a -- torchrun t.py --name b --json", "torchrun t.py --name b --json"),
        ("up --name=a --no-code torchrun t.py --no-code", "torchrun t.py --no-code"),
        ("plan --name a -- torchrun t.py --nodes 2 --json", "torchrun t.py --nodes 2 --json"),
        ("plan --nodes 3 --name a torchrun t.py --gpus 8", "torchrun t.py --gpus 8"),
        ("plan --no-code --name a bash -c x --cost", "bash -c x --cost"),
        ("up --pretrain m --name a --max_steps 3", "--pretrain m --max_steps 3"),
        ("up -- --pretrain m --name a", "--pretrain m"),
        ("plan --pretrain m --name a --gpus 2", "--pretrain m"),
    ],
)
def test_own_flags_stand_before_a_job_whose_words_are_its_own(words: str, job: str) -> None:
    call = cli.parse(words.split())
    assert call.arguments == tuple(job.split())
    assert call.variables["ROLLCALL_NAME"] == "a"
    assert (call.as_json, call.shows_cost) == (False, False)


@pytest.mark.parametrize("command", ["status", "wait", "stop", "events", "list", "logs"])
def test_a_directory_with_a_run_is_that_run_and_another_word_is_a_job(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "first"):
        (tmp_path / name).mkdir()
    append_event(RunFiles(tmp_path / "first").journal, "start", "this is the head")
    options = arguments.parse(command, ["first"])
    assert options.run_dir == tmp_path / "first"
    assert not (options.names if command == "logs" else options.job)
    if command == "list":
        with pytest.raises(SystemExit):
            arguments.parse(command, ["empty"])
        return
    options = arguments.parse(command, ["empty"])
    assert options.run_dir is None
    assert (options.names == ["empty"]) if command == "logs" else (options.job == "empty")
