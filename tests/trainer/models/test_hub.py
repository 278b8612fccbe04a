"""Names on the hub: huggingface_hub's own code against a small hub on this machine."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract.options import ConfigError
from entrypoint.run import failure_classes
from entrypoint.run.failure_classes import FailureClass
from tests.support.hub_server import Hub
from tests.support.tiny_run import Tiny, to_argv
from trainer.models import hub
from trainer.training import run

FETCH = """
import sys
from trainer.models import hub
for name in sys.argv[1:]:
    try:
        print(name, hub.fetch(name))
    except hub.HubError as error:
        print(type(error).__name__, error)
"""


CONFIGURATIONS = """---
configs:
- config_name: all
  data_files: data/train.jsonl
- config_name: few
  data_files:
  - {split: train, path: data/main.jsonl}
  - {split: test, path: data/held.jsonl}
---
"""


def environment(home: Path, url: str, **more: str) -> dict[str, str]:
    return os.environ | {"HF_HOME": str(home), "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1"} | more


def start(home: Path, url: str, *names: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, *names],
        env=environment(home, url, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> list[str]:
    """A line for each name."""
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out.splitlines()


def repository(directory: Path, **files: str) -> Path:
    directory.mkdir()
    for name, text in {"config.json": "{}", "model.onnx": "", **files}.items():
        (directory / name).write_text(text)
    return directory


def test_a_bar_says_how_far_a_download_is_and_nothing_after_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hub, "SECONDS_BETWEEN_LINES", -1)
    bar = hub._lines("owner/model")(total=4_000_000_000, unit="B", mininterval=0)
    capsys.readouterr()
    bar.update(1_000_000_000)
    assert capsys.readouterr().out == "owner/model: 1.00 of 4.00 GB\n"
    del bar  # huggingface_hub leaves bars open
    gc.collect()
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_two_processes_make_one_download_and_then_nobody_asks(tmp_path: Path) -> None:
    new = {"model.safetensors": "new", "pytorch_model.bin": "old"}
    with Hub({"owner/model": repository(tmp_path / "model", **new)}, slow=0.3) as served:
        both = [start(tmp_path / "home", served.url, "owner/model") for _ in range(2)]
        lines = [said(process) for process in both]
        assert served.downloads == {
            "owner/model/config.json": 1,
            "owner/model/model.safetensors": 1,
        }
    assert lines[0] == lines[1]
    directory = Path(lines[0][0].split()[-1])
    assert (directory / "model.safetensors").read_text() == "new"
    cached, absent = said(start(tmp_path / "home", served.url, "owner/model", "owner/other"))
    assert cached == f"owner/model {directory}"
    assert absent.startswith("HubUnreachableError owner/other is not a directory here")
    assert f"{served.url} does not answer: give a directory that all nodes see" in absent


def test_what_a_repository_has_is_fetched_whole_and_what_it_is_not_is_said(tmp_path: Path) -> None:
    """Old weights where there are no others; the rest of a download that was cut off."""
    old = repository(tmp_path / "old", **{"pytorch_model.bin": "old"})
    large = repository(tmp_path / "large", **{"model.safetensors": "x" * 30 * 2**20})
    with Hub({"owner/old": old, "owner/large": large}) as served:
        served.cut_at = 15 * 2**20
        names = ("owner/old", "owner/large", "owner/none")
        lines = said(start(tmp_path / "home", served.url, *names))
    found = [Path(line.split()[-1]) for line in lines[:2]]
    assert (found[0] / "pytorch_model.bin").is_file()
    assert (found[1] / "model.safetensors").stat().st_size == 30 * 2**20
    first, second = sorted(name for name in served.downloads if "safetensors" in name)
    assert int(second.removeprefix(f"{first}@")) >= 10 * 2**20
    assert not any("onnx" in name for name in served.downloads)
    assert lines[2] == (
        "HubError owner/none is not a directory here and not a public model on the hub: check the "
        "spelling, or give HF_TOKEN if it is private"
    )


def test_offline_is_one_sentence_with_what_to_do(tmp_path: Path) -> None:
    (line,) = said(start(tmp_path, "http://127.0.0.1:9", "owner/model", HF_HUB_OFFLINE="1"))
    assert line.startswith(
        "HubUnreachableError owner/model is not a directory here and not whole in"
    )
    assert "HF_HUB_OFFLINE is set" in line
    assert failure_classes.service_of(FailureClass.SERVICE, line) == failure_classes.HUB
    assert "`hf download owner/model`" in line


def test_a_directory_is_no_name(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub.is_name("owner/model")
    (tmp_path / "owner" / "model").mkdir(parents=True)
    assert not hub.is_name("owner/model")
    assert not hub.is_name(str(tiny.model))
    assert not hub.is_name("a/b/c")


def test_a_run_s_names_are_those_of_the_models_that_it_uses(tiny: Tiny, run_dir: Path) -> None:
    given = {
        "pretrain": "an/actor",
        "critic_pretrain": "a/critic",
        "reward_pretrain": "a/b,an/actor",
    }
    config = tiny.config(run_dir, **given, remote_rm_url=None)
    assert run.hub_models(config) == ["an/actor", "a/critic", "a/b"]
    assert run.hub_models(tiny.config(run_dir, **given, advantage_estimator="reinforce")) == [
        "an/actor"
    ]
    found = run.with_local_models(config, {"an/actor": "/here", "a/b": "/there"})
    assert (found.pretrain, found.critic_pretrain) == ("/here", "a/critic")
    assert found.reward_pretrain == "/there,/here"


def test_a_data_set_by_name_is_no_missing_file_and_a_file_is(
    tiny: Tiny, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny.config(run_dir, prompt_data="owner/prompts", eval_dataset=tiny.held_out)
    assert config.prompt_data is not None
    assert config.prompt_data.names == ("owner/prompts",)
    assert config.prompt_data.on_disk == ()
    assert config.eval_dataset is not None
    assert config.eval_dataset.paths == (tiny.held_out,)
    for name in ("data/train.jsonl", "prompts", "/owner/prompts"):
        with pytest.raises(ConfigError, match="--prompt_data: no such file"):
            tiny.config(run_dir, prompt_data=name)


def test_the_rows_of_a_data_set_by_name_lie_in_the_run_directory(
    tiny: Tiny, run_dir: Path, tmp_path: Path
) -> None:
    source = tmp_path / "repository"
    (source / "data").mkdir(parents=True)
    rows = tiny.prompts.read_text().splitlines(keepends=True)
    for name, first in (("train", 24), ("main", 7), ("held", 5)):
        (source / "data" / f"{name}.jsonl").write_text("".join(rows[:first]))
    (source / "README.md").write_text(CONFIGURATIONS)
    code = (
        "import json, sys; from trainer.config.parse import parse\n"
        "from trainer.training import run; from trainer.rollout import prompts\n"
        "config = run.with_local_data(parse(sys.argv[1:]))\n"
        "loaded = prompts.load(config)\n"
        "print(json.dumps([config.prompt_data.names, len(loaded.stream), len(loaded.held_out),"
        " config.input_key]))"
    )
    flags = {
        "pretrain": tiny.model,
        "prompt_data": "owner/prompts:all,owner/prompts:few",
        "eval_dataset": "owner/prompts:few",
        "eval_split": "test",
        "remote_rm_url": "arithmetic",
        "run_dir": run_dir,
    }
    with Hub({"owner/prompts": source}, kind="dataset") as served:
        done = subprocess.run(
            [sys.executable, "-c", code, *to_argv(flags)],
            env=environment(tmp_path / "home", served.url),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    paths, training, held_out, column = json.loads(done.stdout.splitlines()[-1])
    data = run_dir / "data"
    assert paths == [str(data / "owner--prompts+all"), str(data / "owner--prompts+few")]
    assert (training, held_out, column) == (24 + 7, 5, "prompt")
    assert (data / "owner--prompts+few@test" / "state.json").is_file()
