"""The examples and the README's three nodes, planned: every GPU has work, and the numbers agree."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from entrypoint.commands import cli, plan
from entrypoint.config import pipeline
from entrypoint.config.parsers import STAGES
from entrypoint.config.read import read_settings
from env.prepare.model import write_model
from env.prepare.tiny_model import TinyModel
from tests.support import chats, examples, qwen
from tests.support.examples import EXAMPLES, IMAGES, NOTEBOOK, README, TRAINED
from tests.support.repository import ROOT
from trainer.supervised import batches
from trainer.supervised.parse import unchecked

PAGE = ROOT / "docs" / "quickstart-gpu.md"
CLUSTERS = {
    "gsm8k-0.5b-one-gpu.yaml": "--nodes 1 --gpus 1 --gpu-memory 24GB",
    "gsm8k-0.5b-three-nodes.yaml": "--nodes 3 --gpus 1 --gpu-memory 24GB",
    "gsm8k-7b-eight-gpus.yaml": "--nodes 1 --gpus 8 --gpu-memory 80GB",
    "gsm8k-7b-three-nodes.yaml": "--nodes 3 --gpus 8 --gpu-memory 80GB",
}

WITH_STEPS = ("gsm8k-0.5b-one-gpu.yaml", "gsm8k-7b-eight-gpus.yaml", "gsm8k-7b-three-nodes.yaml")
"""Those of which the page says the steps, in its order."""
GSM8K_ROWS = 7473
"""Rows of its training split."""


@pytest.fixture(autouse=True)
def cached_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(qwen.write_cache(tmp_path / "hub")))


def planned(words: str, *job: str) -> dict[str, Any]:
    call = cli.parse(["plan", *words.split(), *job])
    variables = {"ROLLCALL_RUN_DIR": "/shared/run", **call.variables}
    return plan.plan(read_settings(variables, call.arguments), call.planned)


def prompts(root: Path) -> str:
    path = root / "prompts.jsonl"
    path.write_text(GSM8K_ROWS * '{"prompt": "1+1=", "answer": "2"}\n')
    return str(path)


def test_every_example_is_planned_or_run() -> None:
    of_stages = {"pipeline.yaml", "sums.yaml"}  # tests/scenarios/test_pipeline.py: to a head
    by_hand = {"ppo_by_hand.py"}  # tests/trainer/training
    searches = {"search.yaml", "ask.py"}  # tests/cluster/test_search_tutorial.py
    trains = {*TRAINED, IMAGES, NOTEBOOK}
    assert examples.names() == CLUSTERS.keys() | of_stages | by_hand | searches | trains


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_stages_of_sums_fit_one_to_three_nodes_as_the_file_says(
    nodes: int, tmp_path: Path
) -> None:
    read = pipeline.parsed((ROOT / "examples" / "sums.yaml").read_text(), tmp_path)
    supervised = [stage.words for stage in read if stage.words[0] in STAGES]
    assert [words[0] for words in supervised] == ["sft", "rm"]
    for stage, *flags in supervised:
        assert [*batches.faults(unchecked(stage, flags, tmp_path), nodes)] == []


@pytest.mark.parametrize("name", CLUSTERS)
def test_an_example_uses_every_gpu_and_needs_what_the_page_says(name: str, tmp_path: Path) -> None:
    data = prompts(tmp_path)
    job = ["--config", str(ROOT / "examples" / name), "--prompt_data", data, "--eval_dataset", data]
    row = planned(CLUSTERS[name], *job)
    assert row["faults"] == []
    assert row["warnings"] == []
    (counts,) = re.findall(r"^\| steps of the run \|(.*)\|$", PAGE.read_text(), re.M)
    if name in WITH_STEPS:
        assert counts.split("|")[WITH_STEPS.index(name)].strip() == str(row["steps"]["count"])
    layout = row["layout"]
    assert layout["idle"] is None
    (need,) = re.findall(r"a GPU needs (.*)", "\n".join(layout["chosen"]["reasons"]))[:1]
    assert re.search(rf"^\| `examples/{re.escape(name)}` \|.*\| {need} \|$", PAGE.read_text(), re.M)


def test_the_page_gives_each_example_a_run_directory_of_its_own() -> None:
    named = re.findall(r"-v (\S+):/checkpoints", PAGE.read_text())
    assert named == ["/shared/runs/EXAMPLE", *2 * ["/shared/runs/three-nodes"]]


def test_the_page_shows_what_its_command_says_with_and_without_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    (block,) = re.findall(r"^rollcall plan (--nodes 3 .*?)\n```", page, re.S | re.M)
    words = shlex.split(block.replace("\\\n", " "))
    (need,) = re.findall(r"The estimate is then (\S+ GiB)", page)
    with_model = planned("", *words)["layout"]["chosen"]["reasons"]
    assert f"by the estimate a GPU needs {need} of its 74.5 GiB" in with_model
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    chosen = planned("", *words)["layout"]["chosen"]
    shown = re.findall(r"^chosen +(.*)$", page, re.M)
    shown += [f"by the estimate a GPU needs {one}" for one in _memory(page)]
    assert len(shown) == 3
    assert set(shown) <= set(chosen["reasons"])
    (flags,) = re.findall(r"^the same by flags (.*) …$", page, re.M)
    assert shlex.join(chosen["flags"]).startswith(flags)


def _memory(page: str) -> list[str]:
    shown = re.findall(r"^memory +(.*) or more on each GPU, which has (.* GiB), ", page, re.M)
    return [f"{need} of its {memory}" for need, memory in shown]


def test_the_readme_s_three_nodes_of_eight_gpus_leave_none_idle(tmp_path: Path) -> None:
    (block,) = re.findall(
        r"# on the head\n(docker run .*?)\n\n", (ROOT / "README.md").read_text(), re.S
    )
    words = shlex.split(block.replace("\\\n", " "))
    job = words[words.index("rollcall:cuda") + 1 :]
    over = ["--pretrain", qwen.name_of("7B"), "--prompt_data", prompts(tmp_path)]
    rest = [word for word in job if not word.startswith("/checkpoints/")]
    rest = [word for word in rest if word not in ("--pretrain", "--prompt_data")]
    row = planned("--nodes 3 --gpus 8 --gpu-memory 80GB", *rest, *over)
    assert row["faults"] == []
    assert row["layout"]["idle"] is None
    assert row["layout"]["slots"] == 24


@pytest.mark.parametrize(
    ("page", "block"),
    [
        (ROOT / "README.md", r"-e EXPECTED_WORKERS=0 rollcall:cuda (.*?)\n```"),
        (PAGE, r"rollcall plan --nodes 3 --gpus 8 --gpu-memory 80GB (.*?)\n```"),
    ],
)
@pytest.mark.parametrize("seen", ["", "--assume-columns question,answer "])
def test_a_page_s_command_reads_the_columns_of_the_data_set_that_it_names(
    page: Path, block: str, seen: str
) -> None:
    (found,) = re.findall(block, page.read_text(), re.S)
    words = shlex.split(found.replace("\\\n", " "))
    row = planned(f"{seen}--nodes 1 --gpus 8 --gpu-memory 80GB", *words)
    assert row["faults"] == []
    notes = " ".join(row["notes"])
    assert "--input_key question" in notes
    assert "--label_key answer" in notes


ELSEWHERE = "--assume-columns prompt,answer --nodes 3 --gpus 8 --gpu-memory 80GB --config"
SEVEN_BILLION = str(ROOT / "examples" / "gsm8k-7b-three-nodes.yaml")


def test_an_example_is_planned_without_its_data_and_says_what_it_has_not_seen() -> None:
    row = planned(ELSEWHERE, SEVEN_BILLION)
    assert row["faults"] == []
    assert row["layout"] is not None
    unseen = [warning for warning in row["warnings"] if warning.startswith("not seen: ")]
    assert ["/shared/data/train.jsonl" in unseen[0], "/shared/data/eval.jsonl" in unseen[1]] == [
        True,
        True,
    ]
    (without,) = [
        fault["problem"]
        for fault in planned("--nodes 3 --gpus 8", "--config", SEVEN_BILLION)["faults"]
        if "--prompt_data" in fault["problem"]
    ]
    assert "/shared/data/train.jsonl" in without
    assert without.endswith("as in --assume-columns prompt,answer")


def test_assumed_columns_hide_no_other_fault(tmp_path: Path) -> None:
    (wrong,) = planned(ELSEWHERE, SEVEN_BILLION, "--label_key", "solution")["faults"]
    assert "--label_key solution: none of the assumed columns prompt, answer" in wrong["problem"]
    faults = planned(ELSEWHERE, SEVEN_BILLION, "--remote_rm_url", "nowhere.py")["faults"]
    assert any("nowhere.py" in fault["problem"] for fault in faults)
    here = prompts(tmp_path)
    row = planned(ELSEWHERE, SEVEN_BILLION, "--prompt_data", here, "--eval_dataset", here)
    assert not any(warning.startswith("not seen: ") for warning in row["warnings"])
    assert row["faults"] == []


ONE_GPU = "gsm8k-0.5b-one-gpu.yaml"
ON_GPUS = {
    "lora.yaml": (ONE_GPU, ["--config", "examples/lora.yaml", "--actor_learning_rate", "1e-5"]),
    "async.yaml": ("gsm8k-7b-eight-gpus.yaml", ["--config", "examples/async.yaml"]),
    "own_reward.py": (ONE_GPU, ["--remote_rm_url", "examples/own_reward.py:reward"]),
}
"""What the example says of GPUs: the file in place of tiny.yaml, and further flags."""


@pytest.mark.parametrize("name", ON_GPUS)
def test_an_example_for_a_cpu_is_planned_for_gpus_as_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    base, flags = ON_GPUS[name]
    text = (ROOT / "examples" / name).read_text()
    assert f"{base} in place of tiny.yaml" in text
    data = prompts(tmp_path)
    job = ["--config", f"examples/{base}", *flags, "--prompt_data", data, "--eval_dataset", data]
    row = planned(CLUSTERS[base], *job)
    assert row["faults"] == []
    assert row["layout"]["idle"] is None


def test_the_example_of_a_tool_is_planned_with_a_chat_template_that_has_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    found = re.search(r"^rollcall (.+\n.+)$", (EXAMPLES / "tools.py").read_text(), re.M)
    assert found
    words = shlex.split(found[1].replace("\\\n", ""))
    data, model = prompts(tmp_path), tmp_path / "model"
    write_model(TinyModel(hidden_size=16, layers=1, heads=2, max_length=4096), None, model)
    chats.tokenizer("qwen2_5").save_pretrained(model)
    over = ["--pretrain", str(model), "--prompt_data", data, "--eval_dataset", data]
    row = planned(CLUSTERS[ONE_GPU], *words, *over)
    assert row["faults"] == []


def test_the_page_of_examples_has_the_command_of_each() -> None:
    page = README.read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    missing = {name for name in examples.names() if not any(f"]({name})" in row for row in rows)}
    assert missing == set()
    commands = {examples.command(name) for name in examples.names()} - {None}
    assert {command for command in commands if f"| `{command}` |" not in page} == set()


def test_the_notebook_has_its_curves_stored_and_no_advice_of_other_programs() -> None:
    """A reader sees the curves without a run of it. They are small, and of one run in order."""
    cells = [cell for cell in examples.notebook().cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    pictures = [
        output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 2
    assert max(map(len, pictures)) < 100_000


def test_the_notebook_makes_the_data_of_the_page() -> None:
    source = "\n".join(cell.source for cell in examples.notebook().cells)
    (script,) = examples.scripts(README)
    shown = [line for line in script.splitlines() if "data/sees" not in line]
    assert [line for line in shown if line not in source] == []


@pytest.mark.parametrize("opened", ["examples", "."])
def test_the_notebooks_paths_begin_at_the_root_wherever_its_kernel_starts(opened: str) -> None:
    first = next(cell for cell in examples.notebook().cells if cell.cell_type == "code")
    done = subprocess.run(
        [sys.executable, "-c", f"{first.source}\nprint(os.getcwd())"],
        cwd=ROOT / opened,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(ROOT)
