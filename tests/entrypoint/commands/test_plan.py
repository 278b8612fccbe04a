"""`plan` says what a node would do, masks secrets, does nothing, and starts fast."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from contract.options import ConfigError
from entrypoint.commands import plan
from entrypoint.commands.cli import PlannedNodes
from entrypoint.config.read import read_settings
from entrypoint.machine.address import this_machines
from tests.support.model_files import write_files
from tests.support.plan_command import run_plan

SECRET = "9f86d081884c7d659a2feaa0c55ad015"
ROW = '{"input": "1+1=", "answer": "2"}\n'
WORKER = {"RAY_WORKER": "1", "HEAD_POD_ID": "abc123"}


def test_the_plan_has_what_the_design_promises() -> None:
    row = plan.plan(read_settings(WORKER))
    assert row["role"] == "worker"
    assert row["head_address"] == "abc123.runpod.internal"
    assert row["expected_workers"] is None
    assert row["recipe"] == "builtin"
    assert row["run_dir"] == "/checkpoints"
    assert row["platform"] is None
    assert row["sources"]["head_address"] == "HEAD_POD_ID"
    assert row["faults"] == []
    assert set(plan.plan(read_settings({}))) == set(row)


def test_a_head_by_default_that_is_told_of_a_head_is_reminded_of_ray_worker() -> None:
    """`plan` looks nothing up: `up` and `doctor` know whether the address is its own."""
    named = {"ROLLCALL_HEAD_ADDRESS": "10.0.0.2"}
    row = plan.plan(read_settings(named))
    (warning,) = row["warnings"]
    assert (row["role"], row["faults"]) == ("head", [])
    assert "ROLLCALL_HEAD_ADDRESS=10.0.0.2" in warning
    assert "RAY_WORKER=1" in warning
    for role in ("0", "1"):
        assert plan.plan(read_settings(named | {"RAY_WORKER": role}))["warnings"] == []
    own = [
        {"RUNPOD_POD_ID": "abc123", "HEAD_POD_ID": "ABC123"},
        {"ROLLCALL_HEAD_ADDRESS": "127.0.0.2"},
        named | {"ROLLCALL_NODE_ADDRESS": "10.0.0.2"},
        named | {"ROLLCALL_BIND": "10.0.0.2"},
        *({"ROLLCALL_HEAD_ADDRESS": one} for each in this_machines() for one in each.addresses),
    ]
    assert [plan.plan(read_settings(environ))["warnings"] for environ in own] == [[]] * len(own)


@pytest.mark.parametrize(
    ("recipe", "job", "said"),
    [
        ("openrlhf", "python3 -m openrlhf.cli.train_ppo_ray --pretrain x", "has no OpenRLHF"),
        ("verl", "python3 -m verl.trainer.main_ppo data.train_files=x", "has verl"),
        ("command", "nosuchprogram run", "nosuchprogram is not a program on this node"),
    ],
)
def test_what_this_machine_lacks_is_a_warning_in_a_plan_for_others(
    recipe: str, job: str, said: str
) -> None:
    settings = read_settings({"EXPECTED_WORKERS": "1"}, tuple(job.split()), recipe)
    here = plan.plan(settings)
    assert said in " ".join(fault["problem"] for fault in here["faults"])
    elsewhere = plan.plan(settings, PlannedNodes(elsewhere=True))
    assert [fault for fault in elsewhere["faults"] if said in fault["problem"]] == []
    assert said in " ".join(elsewhere["warnings"])


def test_secrets_are_masked_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"WANDB_API_KEY": SECRET, "ROLLCALL_TOKEN": SECRET[::-1], "HF_TOKEN": "hf_123456"}
    environ["ROLLCALL_RECIPE"] = "command"
    job = ["true", "--use_wandb", SECRET, "--note", "hf_123456", "--api_key=hunter22"]
    for as_json in (True, False):
        assert plan.main(read_settings(environ, job), as_json) == 0
    printed = "".join(capsys.readouterr())
    for secret in (SECRET, SECRET[::-1], "hf_123456", "hunter22"):
        assert secret not in printed
    assert "--note" in printed


def test_faults_of_settings_and_of_the_role_end_with_64(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings({"EXPECTED_WORKERS": "two"})
    for given in (caught.value, read_settings({"RAY_WORKER": "1"})):
        assert plan.main(given, True) == 64
        (fault,) = json.loads(capsys.readouterr().out)["faults"]
        assert set(fault) == {"variable", "value", "problem", "remedy"}
        assert plan.main(given, False) == 64
        assert fault["remedy"] in capsys.readouterr().err


def test_a_terminal_gets_a_table_with_what_decided_each_fact(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert plan.main(read_settings(WORKER | {"ROLLCALL_JOB": "--note [bold]"}), False) == 0
    printed = capsys.readouterr().out
    assert "decided by" in printed
    assert "HEAD_POD_ID" in printed
    assert "[bold]" in printed


def test_the_command_prints_one_object_and_reads_its_own_environment() -> None:
    done = run_plan(WORKER, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["role"] == "worker"


def test_the_command_reports_faults_without_a_traceback() -> None:
    done = run_plan({"RAY_WORKER": "maybe", "ROLLCALL_WROKERS": "2"})
    assert done.returncode == 64
    assert "RAY_WORKER='maybe' is neither yes nor no" in done.stderr
    assert "ROLLCALL_WROKERS" in done.stderr
    assert "Traceback" not in done.stderr


def test_planning_imports_nothing_heavy() -> None:
    done = run_plan({}, interpreter=("-X", "importtime"))
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "entrypoint" in imported
    assert not imported & {"torch", "transformers", "ray", "numpy", "rich", "httpx", "psutil"}


def cluster(nodes: int, gpus: int, memory: str) -> dict[str, str]:
    return {
        "EXPECTED_WORKERS": str(nodes - 1),
        "ROLLCALL_NUM_GPUS": str(gpus),
        "ROLLCALL_GPU_MEMORY": memory,
    }


def job(tmp_path: Path, *more: str, model: str = "some/model") -> list[str]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(1024 * ROW)
    given = ["--pretrain", model, "--prompt_data", str(prompts), "--label_key", "answer"]
    return [*given, "--remote_rm_url", "arithmetic", *more]


def test_the_plan_says_where_every_group_would_lie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {
        "ROLLCALL_NUM_GPUS": "8",
        "EXPECTED_WORKERS": "1",
        "ROLLCALL_NODE_NAME": "head",
        "ROLLCALL_RESOURCES": '{"v100": 8}',
    }
    flags = ["--actor_num_gpus_per_node", "8", "--ref_num_gpus_per_node", "6"]
    settings = read_settings(environ, job(tmp_path, *flags, "--ref_resources", '{"v100": 1}'))
    layout = plan.plan(settings)["layout"]
    assert {group["role"]: group["on"] for group in layout["groups"]} == {
        "reference": ["head"],
        "critic": ["head"],
        "policy": ["worker-1"],
        "engine": ["head"],
    }
    assert plan.main(settings, False) == 0
    assert "layout: policy    1 x 8 on worker-1" in capsys.readouterr().out


def test_a_layout_that_machines_like_this_cannot_hold_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"ROLLCALL_NUM_GPUS": "4", "EXPECTED_WORKERS": "1"}
    flags = ["--critic_num_gpus_per_node", "8", "--actor_num_nodes", "3"]
    settings = read_settings(environ, job(tmp_path, *flags))
    assert plan.main(settings, True) == 64
    problems = [fault["problem"] for fault in json.loads(capsys.readouterr().out)["faults"]]
    assert problems == [
        "critic wants 8 GPUs on 1 node; 2 nodes offer 4, 4",
        "policy wants 1 GPU on each of 3 nodes; 2 nodes offer 4, 4",
    ]


def test_without_layout_flags_the_plan_shows_the_choice_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"ROLLCALL_NODE_NAME": "head", **cluster(3, 8, "80GB")}
    settings = read_settings(environ, job(tmp_path, model="Qwen/Qwen2.5-7B"))
    layout = plan.plan(settings)["layout"]
    assert layout["slots"] == 24
    assert layout["idle"] is None
    words = layout["chosen"]["flags"]
    assert plan.main(settings, False) == 0
    printed = capsys.readouterr().out
    assert f"the same by flags {' '.join(words)}" in printed
    assert "layout: engine    24 x 1 on head (8), worker-1 (8), worker-2 (8)  (shares" in printed
    assert "chosen            the size of Qwen/Qwen2.5-7B is taken from its name" in printed
    roles = "policy, reference, critic, engine"
    most = rf"which has 74\.5 GiB, at most \S+ GiB free  \({roles}; most while"
    (least,) = re.findall(rf"(\S+ GiB) or more on each GPU, {most}", printed)
    facts = printed.partition("\nsteps ")[2].rpartition("\nverdict ")[0]
    assert facts.count(least) == facts.count("samples packed") == 1, "each fact is told once"
    steps = "steps             1  (1 epoch of 1024 prompts, 1024 a step)"
    assert steps in printed.splitlines()
    verdict = "verdict           this command would run: 1 step on 3 nodes, with "
    last = printed.splitlines()[-1]
    assert re.match(rf"{verdict}\d+\.\d GiB or more of its 74\.5 GiB on each GPU, if the dir", last)
    assert last.endswith("is there and if the hub, which was not asked, has what it names")
    assert adds_up(printed)
    again = plan.plan(read_settings(environ, job(tmp_path, *words, model="Qwen/Qwen2.5-7B")))
    assert again["layout"]["groups"] == layout["groups"]
    assert again["layout"]["chosen"] is None


def test_of_many_workers_alike_the_first_and_the_last_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"ROLLCALL_NODE_NAME": "head", **cluster(8, 8, "80GB")}
    assert plan.main(read_settings(environ, job(tmp_path, model="Qwen/Qwen2.5-7B")), False) == 0
    printed = capsys.readouterr().out
    assert "layout: policy    8 x 8 on head, worker-1 to worker-7  (shares" in printed
    assert "layout: engine    64 x 1 on head (8), worker-1 to worker-7 (8 each)  (sh" in printed


def test_savings_that_a_layout_by_flags_gets_are_a_warning(tmp_path: Path) -> None:
    sizes = ["--actor_num_gpus_per_node", "8", "--critic_num_gpus_per_node", "8"]
    sizes += ["--generate_max_len", "16384"]
    for flags, told in ((sizes, [True]), ([], [])):
        given = job(tmp_path, *flags, model="Qwen/Qwen2.5-7B")
        warnings = plan.plan(read_settings(cluster(3, 8, "80GB"), given))["warnings"]
        assert [" gets --gradient_checkpointing true " in warning for warning in warnings] == told


def test_gpus_and_nodes_without_work_are_named(tmp_path: Path) -> None:
    sizes = [
        f"--{prefix}_num_{unit}=1"
        for prefix in ("actor", "critic", "ref")
        for unit in ("nodes", "gpus_per_node")
    ]
    flags = [*sizes, "--vllm_num_engines=1", "--vllm_tensor_parallel_size=1"]
    layout = plan.plan(read_settings(cluster(3, 8, "80GB"), job(tmp_path, *flags)))["layout"]
    assert layout["idle"] == "20 of 24 GPUs, all of worker-1 and worker-2, have no work"


def test_a_model_that_no_gpu_holds_is_a_fault(tmp_path: Path) -> None:
    given = job(tmp_path, model="meta-llama/Llama-2-70b-hf")
    (fault,) = plan.plan(read_settings(cluster(1, 8, "24GB"), given))["faults"]
    assert fault["problem"].startswith("no layout fits: by the estimate a GPU needs")


def test_nodes_of_the_plan_may_differ(tmp_path: Path) -> None:
    settings = read_settings(cluster(3, 8, "80GB"), job(tmp_path, model="Qwen/Qwen2.5-7B"))
    assert plan.plan(settings, PlannedNodes((8, 8, 4)))["layout"]["slots"] == 20


def test_too_little_memory_of_the_planned_nodes_is_a_fault(tmp_path: Path) -> None:
    settings = read_settings(cluster(1, 2, "80GB"), job(tmp_path, model="Qwen/Qwen2.5-7B"))
    (fault,) = plan.plan(settings, PlannedNodes(memory=50 * 10**9))["faults"]
    assert "of the CPUs' memory while it trains, and has 46.6 GiB" in fault["problem"]


def test_a_node_that_cannot_load_a_layout_by_flags_is_named_in_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = job(tmp_path, "--actor_num_gpus_per_node", "8", "--zero_stage", "0", model="some/7B")
    settings = read_settings(cluster(1, 8, "80GB"), given)
    enough, scarce = (plan.plan(settings, PlannedNodes(memory=n * 10**12)) for n in (9, 1))
    assert not [one for one in enough["warnings"] if "CPUs' memory" in one]
    (warning,) = [one for one in scarce["warnings"] if "CPUs' memory" in one]
    assert "and has 931.3 GiB" in warning
    assert "--zero_stage 3" in warning
    assert enough["layout"]["host"]["need_bytes"] > 10**12
    plan.show(enough, cost=False)
    printed = capsys.readouterr().out
    assert re.search(
        r"^node memory +\d+\.\d GiB of CPU memory on .*, which has 8381\.9 GiB .*while it trains:",
        printed,
        re.M,
    )
    assert adds_up(printed)


def adds_up(printed: str) -> bool:
    """Whether the terms of each line of memory make its sum."""
    lines = re.findall(r"^(?:node )?memory +(\d+\.\d) GiB.*?: ([^;]*? GiB)(?=[;)])", printed, re.M)
    sums = [(total, sum(map(Decimal, re.findall(r"(\d+\.\d) GiB", of)))) for total, of in lines]
    assert sums
    return all(Decimal(total) == found for total, found in sums)


def test_a_job_that_cannot_run_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = job(tmp_path, "--pretrian", "some/model", "--zero_stage", "9")
    assert plan.main(read_settings({}, wrong), False) == 64
    told = capsys.readouterr().err.splitlines()
    assert any(line.startswith("--pretrian: ") and "--pretrain" in line for line in told)
    assert any(line.startswith("--zero_stage: ") for line in told)
    plan.show(plan.plan(read_settings({}, wrong)), cost=True)
    assert re.search(r"^cost +unknown  \(see the faults above\)$", capsys.readouterr().out, re.M)
    assert plan.plan(read_settings({}, wrong))["layout"] is None
    assert plan.plan(read_settings(WORKER, wrong))["faults"] == []  # the head's flags count
    no_program = read_settings({"ROLLCALL_RECIPE": "command"}, ["nosuchprogram"])
    assert plan.main(no_program, False) == 64
    printed = capsys.readouterr()
    assert "nosuchprogram is not a program" in printed.err
    assert printed.out.endswith("verdict           this command would not start, for 1 fault\n")


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (["--rollout_batch_size", "128"], (8, "1 epoch of 1024 prompts, 128 a step")),
        (["--num_episodes", "3", "--max_samples", "512"], (1, "3 epochs of 512 prompts, 1024")),
        (["--max_steps", "7"], (7, "--max_steps")),
        (["--num_episodes=9", "--max_steps=7"], (7, "1024 a step, at most 7")),
    ],
)
def test_the_steps_of_the_run_are_said_with_what_they_come_from(
    tmp_path: Path, flags: list[str], steps: tuple[int, str]
) -> None:
    given = job(tmp_path, *flags)
    row = plan.plan(read_settings(cluster(1, 8, "80GB"), given))
    assert row["steps"]["count"] == steps[0]
    assert steps[1] in row["steps"]["why"]


def test_an_estimate_above_what_the_machines_have_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--actor_num_gpus_per_node=1", "--colocate_all_models", "--vllm_num_engines=1"]
    given = job(tmp_path, *sizes, "--zero_stage=2", model="Qwen/Qwen2.5-7B")
    small, large = (plan.plan(read_settings(cluster(1, 1, n), given)) for n in ("24GB", "900GB"))
    (said,) = [one for one in small["warnings"] if one.startswith("by the estimate, ")]
    assert said.endswith("GiB or more on each GPU, which has 22.4 GiB")
    assert not [one for one in large["warnings"] if one.startswith("by the estimate, ")]
    plan.show(small, cost=False)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "may not fit: 1 step on 1 node, by the estimate it needs" in last
    assert "GiB or more on each GPU, which has 22.4 GiB" in last
    assert last.endswith(f"; {len(small['warnings'])} warnings are above")


def test_what_nodes_without_gpus_cannot_hold_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = job(tmp_path, model="Qwen/Qwen2.5-0.5B")
    environ = {"EXPECTED_WORKERS": "0", "ROLLCALL_NUM_GPUS": "0", "ROLLCALL_NODE_NAME": "vm"}
    settings = read_settings(environ, given)
    for memory, code, verdict, remedy in (
        (30, 0, "may not fit: 1 step on 1 node, by the estimate it needs", "--micro_train_batch"),
        (1, 64, "does not fit: it needs", "Take a smaller model or a machine with more memory"),
    ):
        assert plan.main(settings, False, PlannedNodes(memory=memory * 2**30)) == code
        printed = capsys.readouterr()
        last = printed.out.splitlines()[-1]
        has = rf"this command {verdict} \d+\.\d GiB or more, vm has {memory}\.0 GiB"
        assert re.search(has, last)
        assert remedy in printed.err
        assert ("(--micro_train_batch_size 1 " in last) == (code == 0)
    assert "alone need" in printed.err
    assert re.search(r"^memory +\d+\.\d GiB or more for each process  \(policy", printed.out, re.M)
    node = r"^node memory +\d+\.\d GiB or more on .*, which has 1\.0 GiB  \(all processes together"
    assert re.search(node, printed.out, re.M)


COMMAND = {"ROLLCALL_JOB": "true", "ROLLCALL_RECIPE": "command"}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (WORKER, "this node would join the head at abc123.runpod.internal"),
        ({"RAY_WORKER": "0"}, "no job is given, and it does not wait for jobs. Give a command or"),
        ({"ROLLCALL_WAIT_FOR_JOBS": "1"}, "this head would wait for 1 worker and for jobs"),
        (COMMAND, "would run on 2 nodes, if the directory /checkpoints is there"),
        (
            COMMAND | {"ROLLCALL_RUN_DIR": str(Path(__file__).parent)},
            "would run on 2 nodes\n",
        ),
    ],
)
def test_the_last_line_is_the_verdict(
    capsys: pytest.CaptureFixture[str], environ: dict[str, str], said: str
) -> None:
    assert plan.main(read_settings(environ), False) == 0
    printed = capsys.readouterr().out.splitlines(keepends=True)
    assert said in printed[-1]
    assert not [line for line in printed if line.startswith(("ports", "storage", "node name"))]


def test_what_no_setting_has_changed_has_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    own = {"ROLLCALL_RAY_PORT": "7000", "ROLLCALL_NODE_NAME": "n1", "ROLLCALL_MIN_WORKERS": "0"}
    assert plan.main(read_settings(COMMAND | own), False) == 0
    printed = capsys.readouterr().out
    assert "ports             ray 7000, dashboard 8265" in printed
    assert "node name         n1  (ROLLCALL_NODE_NAME)" in printed
    assert "min workers       0  (ROLLCALL_MIN_WORKERS)" in printed
    assert "spare workers" not in printed


def test_a_fault_of_a_variable_hides_none_of_the_job() -> None:
    for environ in ({"ROLLCALL_MIN_WORKERS": "x"}, {"ROLLCALL_MIN_WORKERS": "5"}):
        done = run_plan(environ, "--pretrian", "some/model")
        assert done.returncode == 64
        assert "ROLLCALL_MIN_WORKERS=" in done.stderr
        assert "--pretrian: unknown flag. Did you mean --pretrain?" in done.stderr
    done = run_plan({"ROLLCALL_MIN_WORKERS": "x"}, "bash", "nope.sh")
    assert "ROLLCALL_MIN_WORKERS=" in done.stderr
    assert "nope.sh is not a file" in done.stderr


def test_what_nobody_can_know_of_a_program_is_a_note_with_the_variables_that_say_it() -> None:
    environ = {"ROLLCALL_RECIPE": "command", "ROLLCALL_JOB": "true"}
    (note,) = plan.plan(read_settings(environ))["notes"]
    names = ("ROLLCALL_STEP_PATTERN", "ROLLCALL_CHECKPOINTS", "ROLLCALL_RESUME_ARGS")
    assert all(name in note for name in names)
    (less,) = plan.plan(read_settings(environ | {names[0]: r"step (?P<step>\d+)"}))["notes"]
    assert less.startswith("not known of this program: checkpoints and how it resumes. ")
    assert names[0] not in less
    unless = "Without them, steps are those of dicts in its log"
    assert (unless in note, unless in less) == (True, False)


def test_a_cluster_that_waits_for_jobs_has_none_to_plan() -> None:
    row = plan.plan(read_settings({"ROLLCALL_WAIT_FOR_JOBS": "1", "ROLLCALL_RECIPE": "command"}))
    assert (row["role"], row["job"], row["faults"]) == ("head", "waits for rollcall submit", [])


def test_what_a_plan_has_not_seen_and_what_contradicts_is_said(tmp_path: Path) -> None:
    given = job(tmp_path, "--bf16", "--param_dtype", "fp32", model="nobody/nothing-7B")
    Path(given[3]).write_text(ROW)
    row = plan.plan(read_settings(cluster(1, 8, "80GB"), given))
    (note,) = row["notes"]
    assert note.startswith("--pretrain nobody/nothing-7B: not in the hub's cache here, and `plan`")
    said = "\n".join(row["warnings"])
    assert "--param_dtype fp32 has no effect: --bf16 contradicts it" in said
    assert "--prompt_data has 1 row, and a step takes 1024 prompts" in said
    hub = [*given[:2], "--prompt_data", "owner/rows", *given[4:]]
    away = plan.plan(read_settings(cluster(1, 8, "80GB"), hub))
    assert away["steps"] == {"count": None, "why": "the data are not on this machine"}
    notes = " ".join(away["notes"] or ())
    assert "--prompt_data owner/rows: a data set of the hub, of which no row is checked" in notes


def test_a_model_whose_size_nobody_can_read_leaves_its_memory_open(tmp_path: Path) -> None:
    given = job(tmp_path, model=str(write_files(tmp_path / "model")))
    layout = plan.plan(read_settings({}, given))["layout"]
    assert all(pool["peak_bytes"] is None for pool in layout["memory"])


def test_engines_that_share_are_each_on_a_node_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--actor_num_gpus_per_node", "4", "--ref_num_gpus_per_node", "4"]
    more = ["--advantage_estimator", "reinforce", "--vllm_num_engines", "4"]
    environ = {"ROLLCALL_NUM_GPUS": "4", "EXPECTED_WORKERS": "1", "ROLLCALL_NODE_NAME": "head"}
    settings = read_settings(environ, job(tmp_path, *flags, *more))
    layout = plan.plan(settings)["layout"]
    (engines,) = (group for group in layout["groups"] if group["role"] == "engine")
    assert engines["on"] == ["head"] * 4
    assert engines["shares_with"] == ["reference"]
    assert plan.main(settings, False) == 0
    assert "no 4 GPUs are left for the engines" in capsys.readouterr().out


def test_a_plan_for_this_machine_alone_warns_that_the_default_run_directory_is_not_there(
    tmp_path: Path,
) -> None:
    alone = {"EXPECTED_WORKERS": "0"}
    missing = replace(read_settings(alone), run_dir=tmp_path / "missing")
    (warning,) = plan.plan(missing)["warnings"]
    assert "ROLLCALL_RUN_DIR is not set" in warning
    assert str(tmp_path / "missing") in warning
    assert plan.plan(replace(missing, run_dir=tmp_path))["warnings"] == []
    given = read_settings(alone | {"ROLLCALL_RUN_DIR": str(tmp_path / "missing")})
    assert plan.plan(given)["warnings"] == []


def test_plan_refuses_the_addresses_and_files_that_up_refuses_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bound = {"EXPECTED_WORKERS": "1", "ROLLCALL_BIND": "127.0.30.2", "ROLLCALL_JOB": "true"}
    settings = read_settings(bound | {"ROLLCALL_RECIPE": "command"})
    assert plan.main(settings, as_json=False) == 64
    assert "set ROLLCALL_HEAD_ADDRESS=127.0.30.2, too" in capsys.readouterr().err
    assert plan.plan(settings, PlannedNodes(elsewhere=True))["faults"] == []
    (tmp_path / "notice").mkdir()
    notice = {"ROLLCALL_PREEMPT_FILE": str(tmp_path / "notice"), "EXPECTED_WORKERS": "0"}
    assert plan.main(read_settings({"ROLLCALL_JOB": "true", **notice}), as_json=False) == 64
    assert "is there, and is not a regular file" in capsys.readouterr().err
    lost = {f"ROLLCALL_TLS_{one}": "/lost.pem" for one in ("CERT", "KEY", "CA")}
    keys = {f"ROLLCALL_{one}_KEY": SECRET for one in ("READ", "SUBMIT")}
    for given, said in (
        (lost, "ROLLCALL_TLS_CERT='/lost.pem' cannot be read: No such file or directory"),
        (keys, "is the same as ROLLCALL_SUBMIT_KEY, which opens more"),
    ):
        typed = {"ROLLCALL_JOB": "true", "EXPECTED_WORKERS": "0", **given}
        assert plan.main(read_settings(typed), as_json=False) == 64
        assert said in capsys.readouterr().err
    named = read_settings(bound | {"ROLLCALL_BIND": "a-name-of-the-cluster"})
    assert "ROLLCALL_BIND" not in str(plan.plan(named)["faults"]), "no name server is asked"
