from __future__ import annotations

import shutil
from pathlib import Path

from transformers import AutoTokenizer

from tests.support.tiny_run import Tiny
from trainer.rollout import prompts


def test_a_chat_template_wraps_every_prompt(tiny: Tiny, run_dir: Path, tmp_path: Path) -> None:
    model = tmp_path / "chat"
    shutil.copytree(tiny.model, model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{% for m in messages %}+{{ m['content'] }}+{% endfor %}="
    tokenizer.save_pretrained(model)
    flags = {"pretrain": model, "apply_chat_template": True, "eval_dataset": tiny.held_out}
    loaded = prompts.load(tiny.config(run_dir, **flags))
    assert loaded.held_out[0].text == "+24+1=+="
    assert all(prompt.text.endswith("+=") for prompt in loaded.stream.next_batch(24))


def test_training_and_held_out_prompts_come_with_their_answers(tiny: Tiny, run_dir: Path) -> None:
    loaded = prompts.load(tiny.config(run_dir, eval_dataset=tiny.held_out, max_samples=5))
    assert [(p.text, p.label) for p in loaded.held_out] == [
        (f"{n}+1=", str(n + 1)) for n in range(24, 28)
    ]
    assert len(loaded.stream) == 5
