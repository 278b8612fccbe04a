from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from tests.support.tiny_run import Tiny
from trainer.config.options.rollout import SamplingSettings
from trainer.rollout.engine import EngineSettings
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.supervised import main
from trainer.types import Request


def test_a_model_learns_to_continue_as_the_data_do(tiny: Tiny, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+0=", "completion": "77"} for n in range(32)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    argv = [
        *("sft", "--pretrain", tiny.model, "--dataset", tmp_path / "rows.jsonl"),
        *("--save_path", tmp_path / "taught", "--max_steps", 60, "--max_epochs", 60),
        *("--learning_rate", 0.03, "--train_batch_size", 32, "--micro_train_batch_size", 16),
    ]
    assert main([str(part) for part in argv]) == ExitCode.FINISHED
    engine = HFEngine(
        EngineSettings(
            model=str(tmp_path / "taught"),
            add_special_tokens=True,
            prompt_max_len=32,
            sampling=SamplingSettings(max_new_tokens=5),
            mixed_precision=False,
            slots=2,
        )
    )
    requests = [Request(text, (0,)) for text in ("40+0=", "5+0=")]
    written = engine.generate(requests, SamplingSettings(max_new_tokens=5, temperature=0))
    assert [(completion.text, completion.finished) for completion in written] == [("77", True)] * 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["dpo"], "dpo: no such command. Known: sft"),
        (["sft", "--dataset", "/nowhere"], "no such file (given: /nowhere)"),
        (["sft", "--train_batch_size", "10", "--micro_train_batch_size", "4"], "does not divide"),
    ],
)
def test_bad_usage_is_one_message_and_64(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == ExitCode.USAGE
    assert said in capsys.readouterr().err
