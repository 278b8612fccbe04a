"""Prompts and completions of an engine, with tokenisers as models have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoConfig

from tests.support.engines import settings
from tests.support.tiny_run import Tiny
from tests.support.tokenisers import KINDS, made
from trainer.rollout.tokenizer_io import Texts, TokenRow


def texts_of(kind: str, directory: Path, *, chats: bool = False, **config: object) -> Texts:
    made(kind).save_pretrained(directory)
    AutoConfig.for_model("llama", **config).save_pretrained(directory)
    engine = settings(Tiny(directory, directory, directory))
    return Texts(replace(engine, add_special_tokens=not chats))


@pytest.mark.parametrize("kind", ["llama2", "llama3", "gemma", "deepseek"])
@pytest.mark.parametrize("chats", [True, False])
def test_a_prompt_that_begins_with_bos_has_one(kind: str, chats: bool, tmp_path: Path) -> None:
    texts, bos = texts_of(kind, tmp_path, chats=chats), KINDS[kind].bos
    tokens = texts.prompt(f"{bos}a question")
    assert tokens.count(texts.tokenizer.bos_token_id) == 1
    assert (texts.prompt("a question")[0] == texts.tokenizer.bos_token_id) is not chats


def test_a_completion_shows_all_but_the_models_own_end(tmp_path: Path) -> None:
    tokenizer = made("llama3")
    eom = tokenizer.convert_tokens_to_ids("<|eom_id|>")
    texts = texts_of("llama3", tmp_path, eos_token_id=[eom])
    written = tokenizer("<think>a .</think><|eot_id|>b<|eom_id|>", add_special_tokens=False)
    tokens = np.array(written["input_ids"], dtype=np.int32)
    row = TokenRow.of(tokens, np.zeros(len(tokens), dtype=np.float32), True, 0)
    (completion,) = texts.completions([[1]], [row])
    assert completion.text == "<think>a .</think><|eot_id|>b"


@pytest.mark.parametrize(("chats", "says"), [(False, " it"), (True, "it")])
def test_the_space_between_two_texts_stays_and_a_message_begins_without(
    chats: bool, says: str, tmp_path: Path
) -> None:
    texts = texts_of("llama2", tmp_path, chats=chats)
    prompt, whole = texts.prompt("Say"), texts.prompt("Say it")
    tokens = np.array(whole[len(prompt) :], dtype=np.int32)
    row = TokenRow.of(tokens, np.zeros(len(tokens), dtype=np.float32), True, 0)
    (completion,) = texts.completions([prompt], [row])
    assert completion.text == says
