"""`init` writes a run that `plan` takes, and overwrites nothing."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.exit_codes import ExitCode
from entrypoint.commands import cli, init, plan
from entrypoint.commands.init_platforms import PLATFORMS
from entrypoint.config.read import read_settings
from entrypoint.machine.gpus import discover
from tests.support.init_files import PLACES, job_of, run, written
from tests.support.model_files import write_files
from tests.support.repository import ROOT

__all__ = ["run"]


def planned(run: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    monkeypatch.chdir(run)
    call = cli.parse(["plan", "--gpu-memory", "80GB", "--memory", "1000GB", *words])
    return plan.plan(read_settings(call.variables, call.arguments), call.planned)


@pytest.mark.parametrize("platform", PLACES)
def test_what_was_written_is_planned(
    run: Path, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the words of the platform's file, and by those that the command prints."""
    assert written(run, "--platform", platform, "--nodes", "2", "--gpus", "4") == 0
    cluster = ("--nodes", "2", "--gpus", "4")
    of_platform = job_of(platform, run)
    assert f"--config={run}/run.yaml" in of_platform
    for words in (("--config", "run.yaml"), tuple(of_platform)):
        row = planned(run, monkeypatch, *cluster, *words)
        assert row["faults"] == []
        assert ":reward, row 1: '1' → 1, " in row["code"][0]
    policy = row["layout"]["groups"][0]
    assert (policy["nodes"], policy["per_node"]) == (2, 4)


@pytest.mark.parametrize("platform", PLACES)
def test_a_platforms_file_has_the_runs_nodes_image_and_directory(run: Path, platform: str) -> None:
    assert (
        written(run, "--platform", platform, "--nodes", "5", "--gpus", "2", "--image", "me/x:1")
        == 0
    )
    texts = {path: (run / path).read_text() for path in _names(platform)}
    first = next(iter(texts.values()))
    nodes = {
        "slurm": "#SBATCH --nodes=5",
        "kubernetes": "nodes: 5",
        "dstack": "nodes: 5",
        "skypilot": "num_nodes: 5",
        "compose": "EXPECTED_WORKERS: ${EXPECTED_WORKERS:-4}",
        "runpod": '"EXPECTED_WORKERS": "4"',
    }
    assert nodes[platform] in first
    assert "me/x:1" in first
    if platform == "slurm":
        assert f"export SHARED=${{SHARED:-{run.parent}}}\n" in first
    else:
        assert "registry.example.com" not in "".join(texts.values())
    if platform != "compose":  # whose RUN_DIR is a variable
        assert f"{run}/run" in first
    for name, text in texts.items():
        assert json.loads(text) if name.endswith(".json") else True
        assert yaml.safe_load(text) if name.endswith(("yaml", "yml")) else True
    if platform == "slurm":
        subprocess.run(["bash", "-n", str(run / "rollcall.sbatch")], check=True)


@pytest.mark.parametrize(
    ("image", "noted"),
    [("me.io/x/y:1", True), ("me.io#x/y:1", False), ("/shared/x.sqsh", False), ("rollcall", False)],
)
def test_an_image_that_pyxis_reads_otherwise_is_noted(
    run: Path, image: str, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(run, "--platform", "slurm", "--image", image) == 0
    assert (f"--image {image}: pyxis" in capsys.readouterr().err) == noted


def _names(platform: str) -> list[str]:
    return [file.name for file in PLATFORMS[platform].files]


def test_the_columns_are_those_of_the_data_and_the_reward_has_a_test_that_passes(
    run: Path,
) -> None:
    assert written(run) == 0
    flags = yaml.safe_load((run / "run.yaml").read_text())
    assert (flags["input_key"], flags["label_key"]) == ("question", "solution")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_reward.py"],
        cwd=run,
        capture_output=True,
        text=True,
    )
    assert "4 passed" in done.stdout


def test_a_reward_of_this_package_needs_no_file(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(run, "--reward", "arithmetic", "--gpus", "1") == 0
    assert not (run / "reward.py").exists()
    assert planned(run, monkeypatch, "--gpus", "1", "--config", "run.yaml")["faults"] == []


def test_a_file_of_rows_without_its_flag_gets_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        init.main(["train.jsonl"])
    assert ended.value.code == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "unknown argument train.jsonl: did you mean --data train.jsonl?" in said


def test_nothing_is_overwritten(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "reward.py").write_text("mine")
    assert written(run, "--platform", "slurm") is ExitCode.USAGE
    assert "reward.py: there already" in capsys.readouterr().err
    assert (run / "reward.py").read_text() == "mine"
    assert not (run / "run.yaml").exists()


@pytest.mark.parametrize("platform", PLACES)
def test_a_platform_is_added_to_a_run_that_keeps_its_files(
    run: Path, platform: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also from another directory, and with the flags that wrote the run."""
    other = run / "other"
    words = ("--data", str(run / "train.jsonl"), "--label-key", "solution")
    assert init.main(["--yes", "--dir", str(other), *words]) == 0
    for name in ("run.yaml", "reward.py"):
        (other / name).write_text((other / name).read_text() + "# mine\n")
    kept = {path: path.read_text() for path in other.iterdir()}
    assert len(kept) == 3
    assert init.main(["--yes", "--dir", str(other)]) is ExitCode.USAGE
    said = capsys.readouterr().err
    assert "run.yaml: there already" in said
    assert "--platform NAME keeps them" in said
    where = ["--platform", platform, "--yes", "--dir", str(other)]
    with pytest.raises(SystemExit):
        init.main([*where, "--model", "owner/m"])
    assert "run.yaml is kept, and says Qwen/Qwen2.5-0.5B-Instruct" in capsys.readouterr().err
    assert init.main([*where, *words, "--reward", "own"]) == 0
    said = capsys.readouterr().out
    assert all(f"kept  {path}\n" in said and path.read_text() == kept[path] for path in kept)
    assert all(f"wrote {other / name}\n" in said for name in _names(platform))
    job = job_of(platform, other)
    assert [Path(word.partition("=")[2]).name for word in job] == [
        "run.yaml",
        "train.jsonl",
        "reward.py:reward",
    ]
    assert "image:" in said
    assert init.main(where) is ExitCode.USAGE
    assert f"{_names(platform)[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("pretrain: owner/m", "run.yaml: it has no prompt_data, which the platform's files need"),
        ("pretrain: [", "is not YAML in line 1"),
    ],
)
def test_a_platform_needs_flags_that_can_be_read(
    run: Path, lines: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "run.yaml").write_text(lines)
    with pytest.raises(SystemExit) as caught:
        init.main(["--yes", "--dir", str(run), "--platform", "slurm"])
    assert caught.value.code == ExitCode.USAGE
    assert said in capsys.readouterr().err
    assert not (run / "rollcall.sbatch").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--platform", "k8s"], "--platform k8s: did you mean kubernetes?"),
        (["--platform", "lsf"], "--platform lsf: it is one of none, slurm, kubernetes"),
        (["--platform", "aws"], "complete compose/aws-batch/job-definition.json"),
        (["--nodes", "0"], "--nodes 0: it is a whole number from 1 to 10000"),
        (["--nodes", "-2"], "--nodes -2: it is a whole number from 1 to 10000"),
        (["--nodes", "9" * 5000], "it is a whole number from 1 to 10000"),
        (["--gpus", "many"], "--gpus many: it is a whole number from 0 to 64"),
        (["--platform", "runpod", "--gpus", "0"], "--gpus 0: RunPod's pods for Rollcall have GPUs"),
        (["--name", "odd name!"], "--name 'odd name!': use at most 64 letters, digits"),
        (["--name", ""], "--name '': use at most 64 letters, digits"),
        (["--name", "Up", "--platform", "kubernetes"], "--name Up: a release of Helm has up to 40"),
        (["--name", "x", "--platform", "slurm"], "--name x: --shared says the directory already"),
        (["--shared", "/x y"], "--shared '/x y': nodes need the whole path"),
        (["--shared", "/"], "--shared '/': nodes need the whole path"),
        (["--shared", "/x"], "--shared /x: only the files of a platform name it. Give one by"),
        (["--image", "me/x:1"], "--image me/x:1: only the files of a platform name it"),
        (["--image", "a b"], "--image 'a b': it is the name of no image"),
        (["--data", "a\nb.jsonl"], "it has a line break or another control character"),
        (["--data", "{x}.jsonl", "--platform", "compose"], "a compose file takes no } in"),
        (["--data", "hub/rows", "--label-key", "the answer"], "the answer: .* Rename the column"),
        (["--label-key", "nope"], "--label-key nope: no such column. .* has 'question', 'sol"),
        (["--input-key", "questoin"], "no such column.*did you mean question?"),
        (["--model", ""], "--model '': no directory and no name of a model"),
        (["--model", "."], "is no model: it has no config.json"),
        (["--model", "rows.csv"], "--model 'rows.csv': no directory and no name of a model"),
        (["--shared", "rel"], "--shared 'rel': nodes need the whole path"),
        (["--data", "y"], "--data y: no such file"),
        (["--data", "trian.jsonl"], "trian.jsonl: no such .*. Did you mean train.jsonl?"),
        (["--data", "train.json"], "train.json: no such .*. Did you mean train.jsonl?"),
        (["--data", "trains.jsonl", "--platform", "slurm"], "Did you mean train.jsonl?"),
        (["--data", "far.jsonl"], "no such .* Give one that is there; `rollcall prepare"),
        (["--reward", "far.py:mine"], "--reward far.py: no such file .*Give one that is there"),
        (["--model", "./modle"], "--model ./modle: no such .* Did you mean model?"),
        (["--reward", "gsm8"], "--reward gsm8: .*Did you mean 'gsm8k'\\? own writes"),
        (["--platform", "slrum"], "--platform slrum: did you mean slurm?"),
        (["--modle", "x"], "unknown argument --modle.*did you mean --model"),
    ],
)
def test_a_wrong_argument_ends_with_64_and_writes_nothing(
    run: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        written(run, *words)
    assert caught.value.code == ExitCode.USAGE
    assert re.search(said, capsys.readouterr().err)
    assert not (run / "run.yaml").exists()


def test_a_terminal_is_asked_for_what_no_flag_says(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answers = {"number of nodes": "2", "where it runs": "dstack"}

    def ask(question: str) -> str:
        asked.append(question)
        return next((answer for words, answer in answers.items() if words in question), "")

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert init.main(["--dir", str(run), "--model", "owner/m", "--gpus", "1"], ask) == 0
    assert not any("the model" in question or "GPUs" in question for question in asked)
    assert len(asked) == 4
    assert "nodes: 2" in (run / "task.dstack.yml").read_text()
    assert yaml.safe_load((run / "run.yaml").read_text())["prompt_data"] == "train.jsonl"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.jsonl", "", "it has no rows"),
        ("broken.jsonl", '{"prompt": ', "not JSON"),
        ("rows.csv", "prompt,answer\n1,2\n", "unknown kind of file"),
        ("rows.jsonl.gz", "\x1f", "unknown kind of file.*`gunzip rows.jsonl.gz` unpacks it"),
        ("list.jsonl", "[1]\n2\n", "where an object is wanted"),
        ("own.jsonl", '{"Text": "a", "Sol.": "1"}\n', "--input-key: which column .*'Text', 'Sol.'"),
        ("own.jsonl", '{"Problem text": "a", "Sol.": "1"}\n', "--label-key: which column"),
        ("mine.py:foo", "def reward(completions): ...", "no function foo; it defines reward"),
        ("mine.py", "def reward(completions): ...", "no function reward_func; it defines reward"),
        ("mine.py:foo", "def (", "not readable as Python"),
    ],
)
def test_a_file_that_no_run_can_use_is_refused(
    run: Path, name: str, content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name.partition(":")[0]).write_text(content)
    with pytest.raises(SystemExit) as caught:
        written(run, "--reward" if ".py" in name else "--data", name)
    assert caught.value.code == ExitCode.USAGE
    assert re.search(said, capsys.readouterr().err)
    assert not (run / "run.yaml").exists()


SPLIT = (
    "Split the last (assistant) message of 'messages' off into a column of its own. Or train on "
    "the conversations by `rollcall sft` (docs/supervised.md)"
)
CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "1"}]

TURNS = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "1"}]


@pytest.mark.parametrize(
    ("row", "words", "said"),
    [
        ({"messages": CHAT}, (), f"answers? train.jsonl has 'messages'. {SPLIT}"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, (), "train on them by `rollcall dpo`"),
        (
            {"messages": CHAT},
            ("--label-key", "messages"),
            f"--label-key messages: this column has the prompts. {SPLIT}",
        ),
        *(
            ({"id": "7", "conversations": TURNS}, words, "'conversations' has turns as ShareGPT's")
            for words in ((), ("--input-key", "conversations"))
        ),
        (
            {"prompt": "a", "key": "1"},
            ("--label-key", "prompt"),
            "--label-key prompt: this column has the prompts. Give the column of the answers",
        ),
        (
            {"problem": "a", "extra_info": {"gold": {"value": "1"}, "level": 2}},
            (),
            "train.jsonl has 'problem', 'extra_info.gold.value', 'extra_info.level'",
        ),
        *(
            (
                {"problem": "a", "extra_info": {"gold": {"value": "1"}, "level": 2}},
                (*before, flag, "extra_info.gold.valeu"),
                f"{flag} extra_info.gold.valeu: no such column. train.jsonl has 'problem', "
                "'extra_info.gold.value', 'extra_info.level'; did you mean extra_info.gold.value?",
            )
            for before, flag in (((), "--label-key"), ((), "--input-key"))
        ),
    ],
)
def test_the_answers_are_in_no_column_of_prompts_and_parts_of_columns_are_listed(
    run: Path,
    row: dict[str, Any],
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (run / "train.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(SystemExit) as caught:
        written(run, *words)
    assert caught.value.code == ExitCode.USAGE
    assert said in capsys.readouterr().err
    assert not (run / "run.yaml").exists()


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        ({"id": "7", "Problem text": "a", "Answer": "1"}, ("Problem text", "Answer")),
        ({"messages": [{"role": "user", "content": "a"}], "label": "1"}, ("messages", "label")),
        ({"text": "a", "answer": 3}, ("text", "answer")),
        ({"question": "a", "answerKey": "B"}, ("question", "answerKey")),
        ({"question": "a", "final_answer": "1"}, ("question", "final_answer")),
        (
            {"prompt": [{"role": "user", "content": "a"}], "reward_model": {"ground_truth": "1"}},
            ("prompt", "reward_model.ground_truth"),
        ),
    ],
)
def test_columns_of_other_names_are_found(
    run: Path, row: dict[str, Any], keys: tuple[str, str]
) -> None:
    (run / "train.jsonl").write_text(json.dumps(row) + "\n")
    assert written(run) == 0
    flags = yaml.safe_load((run / "run.yaml").read_text())
    assert (flags["input_key"], flags["label_key"]) == keys
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_reward.py"]
    assert "4 passed" in subprocess.run(test, cwd=run, capture_output=True, text=True).stdout


def test_multiple_choice_gets_its_options_into_the_prompt_as_the_docs_say(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/data-and-rewards.md").read_text()
    part = page.partition("### Multiple choice\n")[2].partition("\n### ")[0]
    row, command, made = re.findall(r"```\w+\n(.*?\n)```", part, re.DOTALL)
    (run / "exam.jsonl").write_text(row)
    assert written(run, *shlex.split(command)[2:]) == 0
    assert json.loads((run / "exam-choices.jsonl").read_text()) == json.loads(made)
    said = capsys.readouterr().err
    assert "the options are in the column `choices`, which no prompt shows" in said
    flags = yaml.safe_load((run / "run.yaml").read_text())
    named = ("prompt_data", "input_key", "label_key", "remote_rm_url")
    assert [flags[name] for name in named] == ["exam-choices.jsonl", "prompt", "answer", "choice"]
    report = planned(run, monkeypatch, "--gpus", "1", "--config", "run.yaml")
    assert report["faults"] == []
    assert "the options" not in str(report["warnings"])
    data = ("--prompt_data", "exam.jsonl", "--input_key", "question")
    report = planned(run, monkeypatch, "--gpus", "1", "--config", "run.yaml", *data)
    assert "the model does not see the options" in str(report["warnings"])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"article": "a", "question": "b", "options": ["c", "d"], "answer": "A"},
            "which no prompt shows; each prompt begins with the column `article`",
        ),
        (
            {"passage": "a", "question": "b", "answer": True},
            "the column `passage` is not in the prompt: the model does not see it",
        ),
        (  # SciQ
            {"question": "a", "distractor1": "b", "distractor2": "c", "correct_answer": "d"},
            "the wrong answers in 'distractor1', 'distractor2' are left out: the model",
        ),
        ({"question": 512 * "four", "answer": "1"}, ""),
        (
            {"question": 512 * "four" + "?", "answer": "1"},
            "1 of the first 1 prompt may be longer than 512 tokens, at 4 characters a token, and",
        ),
        (
            {"prompt": [{"role": "user", "content": 2500 * "a"}], "answer": "1"},
            "The longest has 2500 characters: raise prompt_max_len in run.yaml",
        ),
    ],
)
def test_what_a_question_is_about_is_in_the_prompt_or_noted(
    run: Path, row: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "train.jsonl").write_text(json.dumps(row) + "\n")
    assert written(run) == 0
    noted = capsys.readouterr().err
    assert said in noted
    assert noted.count("note:  --data ") == bool(said)


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        (  # HellaSwag
            {
                **{"activity_label": "c", "ctx_a": "He", "ctx_b": "runs", "ctx": "He runs"},
                **{"endings": ["up", "down"], "split": "train", "label": "1"},
            },
            "He runs\nA. up\nB. down\n",
        ),
        (  # OpenBookQA
            {
                **{"id": "7", "question_stem": "Which?", "answerKey": "B"},
                "choices": {"text": ["car", "apple"], "label": ["A", "B"]},
            },
            "Which?\nA. car\nB. apple\n",
        ),
    ],
)
def test_public_data_sets_of_multiple_choice_need_no_column(
    run: Path, row: dict[str, Any], prompt: str
) -> None:
    (run / "train.jsonl").write_text(json.dumps(row) + "\n")
    assert written(run) == 0
    made = json.loads((run / "train-choices.jsonl").read_text())
    assert (made["prompt"].startswith(prompt), made["answer"]) == (True, "B")


@pytest.mark.parametrize("platform", PLACES)
def test_the_job_of_a_platform_reads_the_rows_with_options(run: Path, platform: str) -> None:
    row = {"question": "Which?", "options": ["car", "apple"], "answer": 1}
    (run / "train.jsonl").write_text(json.dumps(row) + "\n")
    assert written(run, "--platform", platform, "--reward", "own") == 0
    (data,) = [word for word in job_of(platform, run) if word.startswith("--prompt_data=")]
    assert data == f"--prompt_data={run}/train-choices.jsonl"
    assert (run / "reward.py").exists()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "Which?"}, ("--reward", "exact-match")),
        ({"question": [{"role": "user", "content": "Which?"}]}, ()),
    ],
)
def test_options_that_init_leaves_where_they_are_are_noted(
    run: Path, row: dict[str, Any], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = row | {"options": ["car", "apple"], "answer": "B"}
    (run / "train.jsonl").write_text(json.dumps(whole) + "\n")
    assert written(run, *words) == 0
    assert yaml.safe_load((run / "run.yaml").read_text())["input_key"] == "question"
    assert not (run / "train-choices.jsonl").exists()
    assert "the column `options` is not in the prompt: the model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "template", "is_applied", "why"),
    [
        ("a", "{{ messages }}", True, "the model has one; input_template is not needed"),
        ("a", "", False, "the model has none; input_template may add words"),
        ([{"role": "user", "content": "a"}], "", True, "the prompts are messages, which"),
    ],
)
def test_the_chat_template_is_applied_as_model_and_prompts_need_it(
    run: Path,
    prompt: object,
    template: str,
    is_applied: bool,
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (run / "train.jsonl").write_text(json.dumps({"prompt": prompt, "answer": "1"}) + "\n")
    (run / "model/tokenizer_config.json").write_text("{")  # damaged files are no traceback
    if template:
        (run / "model/chat_template.jinja").write_text(template)
    assert written(run) == 0
    text = (run / "run.yaml").read_text()
    assert yaml.safe_load(text)["apply_chat_template"] is is_applied
    assert f"# {why}" in text
    refused = "the prompts are messages, which need a chat template. By its files"
    assert (refused in capsys.readouterr().err) == (is_applied and not template)


def test_the_columns_of_a_known_data_set_need_not_be_seen(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(run, "--data", "openai/gsm8k:main", "--reward", "gsm8k") == 0
    flags = yaml.safe_load((run / "run.yaml").read_text())
    assert (flags["input_key"], flags["label_key"]) == ("question", "answer")
    assert "####" in flags["input_template"]  # which this reward reads
    assert "columns were not seen" not in capsys.readouterr().err


@pytest.mark.parametrize("here", [0, 2])
def test_without_a_platform_the_gpus_are_this_machines(
    run: Path,
    here: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(discover, "count", lambda *_: here)
    assert written(run) == 0
    assert "plan --config run.yaml\n" in capsys.readouterr().out


@pytest.mark.parametrize("platform", PLACES)
def test_odd_names_of_files_stay_whole_in_the_job(run: Path, platform: str) -> None:
    odd = "my $data: y's #1.jsonl"
    (run / odd).write_text((run / "train.jsonl").read_text())
    assert written(run, "--data", odd, "--platform", platform) == 0
    words = job_of(platform, run)
    assert [one.replace("$$", "$") for one in words][2] == f"--prompt_data={run}/{odd}"


@pytest.mark.parametrize("platform", [one for one in PLACES if one != "runpod"])
def test_a_platform_without_gpus_is_asked_for_none(run: Path, platform: str) -> None:
    assert written(run, "--platform", platform, "--gpus", "0") == 0
    asked = {
        "slurm": "--gpus-per-node",
        "kubernetes": "count: 8",
        "dstack": "gpu: ",
        "skypilot": "  accelerators:",
        "compose": "capabilities: [gpu]",
    }
    texts = [(run / name).read_text() for name in _names(platform)]
    assert not any(asked[platform] in text for text in texts)
    assert all(yaml.safe_load(text) for text in texts[:1] if platform != "slurm")


def test_a_file_that_is_still_to_be_made_is_named_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--model", "./m", "--data", "nope.jsonl", "--reward", "./far.py:mine")
    assert init.main(["--yes", "--dir", "new/run", *words]) == 0
    flags = yaml.safe_load(Path("new/run/run.yaml").read_text())
    named = [flags[name] for name in ("pretrain", "prompt_data", "remote_rm_url")]
    assert named == [f"{tmp_path}/m", f"{tmp_path}/nope.jsonl", f"{tmp_path}/far.py:mine"]


@pytest.mark.parametrize(("reads", "length"), [(128, 64), (4096, 512), ("many", 512)])
def test_a_prompt_and_a_completion_are_as_long_as_the_model_reads(
    run: Path, capsys: pytest.CaptureFixture[str], reads: object, length: int
) -> None:
    model = write_files(run / "small", max_position_embeddings=reads)
    assert written(run, "--model", str(model)) == 0
    flags = yaml.safe_load((run / "run.yaml").read_text())
    assert (flags["prompt_max_len"], flags["generate_max_len"]) == (length, length)
    said = f"it reads at most {reads} tokens. In run.yaml, a prompt and a completion have at most"
    assert (said in capsys.readouterr().err) == (length < 512)


def test_what_lies_only_on_the_cluster_is_possible_and_said(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--data", "far.jsonl", "--model", "/models/m", "--reward", "far.py:mine")
    assert written(run, *words, "--platform", "slurm") == 0
    said = capsys.readouterr().err
    for flag in ("--data far.jsonl", "--model /models/m", "--reward far.py"):
        assert f"{flag}: it is not on this machine" in said
    assert job_of("slurm", run) == [
        f"--config={run}/run.yaml",
        "--pretrain=/models/m",
        f"--prompt_data={run}/far.jsonl",
        f"--remote_rm_url={run}/far.py:mine",
    ]


def test_files_of_the_current_directory_are_found_from_the_runs(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run)
    words = ("--yes", "--model", "model", "--data", "train.jsonl", "--platform", "slurm")
    assert init.main([*words, "--gpus", "0", "--dir", "made"]) == 0
    said = capsys.readouterr().out
    flags = yaml.safe_load(Path("made/run.yaml").read_text())
    assert flags["input_key"] == "question"
    copied = f"run.yaml reward.py {run}/train.jsonl {run}/model /shared/rollcall-run"
    assert f"copy:  cd made && mkdir -p /shared/rollcall-run && cp -r {copied}" in said
    assert "start: cd made && sbatch rollcall.sbatch" in said
    assert "--prompt_data=/shared/rollcall-run/train.jsonl" in job_of("slurm", run / "made")
    words = ("--yes", "--data", "train.jsonl", "--platform", "dstack", "--dir", "fleet")
    assert init.main(words) == 0
    there = "/mnt/shared/rollcall-run"  # the path on dstack's machines, where this is typed
    assert f"mkdir -p {there} && cp -r run.yaml" in capsys.readouterr().out
    assert planned(run / "made", monkeypatch, "--gpus", "0", "--config", "run.yaml")["faults"] == []


def test_gsm8ks_answers_score_by_their_last_number(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"question": "40 + 2", "answer": "40 + 2 = 42\n#### 42"}
    (run / "train.jsonl").write_text(json.dumps(row) + "\n")
    assert written(run) == 0
    assert "--reward gsm8k" in capsys.readouterr().err
    code: dict[str, Any] = {}
    exec((run / "reward.py").read_text(), code)
    assert code["reward"](["It is 42", "It is 142"], [row["answer"]] * 2) == [1.0, 0.0]


def test_a_directory_that_cannot_be_made_is_said(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--yes", "--data", str(run / "train.jsonl"), "--dir", "/proc/x"]
    assert init.main(words) is ExitCode.USAGE
    assert "--dir /proc/x: " in capsys.readouterr().err


def test_a_question_is_asked_until_its_answer_is_possible(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "own.jsonl").write_text('{"Text": "a", "Sol.": "1", "key": "2"}\n')
    data = ("nope", "own.jsonl")
    columns = ("text", "Text", "Sol", "key")
    others = ("reward.py:foo?", "own", "lsf", "", "0", "1", "abc", "0")
    answers = iter(("", *data, *others, *columns))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert init.main(["--dir", str(run)], lambda _: next(answers)) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 7
    flags = yaml.safe_load((run / "run.yaml").read_text())
    assert (flags["input_key"], flags["label_key"]) == ("Text", "key")
