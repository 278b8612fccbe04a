"""How far a row's log-probabilities differ between the ways of computing them, in nats.

    .venv/bin/python -m tests.support.row_differences [ARCHITECTURE …]

prints a table: each architecture in five situations. The yardstick is transformers' eager attention
over the row alone. Models are loaded, scored and decoded by the trainer's own code.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from tests.support.architectures import (
    ARCHITECTURES,
    POSITIONS,
    PRETRAINED,
    VOCABULARY,
    WINDOW,
    model,
)
from tests.support.ragged import scores, sequences_of
from trainer.config.options.rollout import SamplingSettings
from trainer.models.causal_lm import LogProbModel
from trainer.models.loading import load_causal_lm
from trainer.models.settings import ModelSettings
from trainer.rollout.engine import EngineSettings
from trainer.rollout.hf_engine.batch import DecodingBatch, Piece, prefill
from trainer.rollout.hf_engine.engine import HFEngine
from trainer.types import FloatArray, IntArray, UnfitModelError

CPU = torch.device("cpu")
SHORT = (2, 3, WINDOW - 1, 4)
"""Lengths below every limit."""
AROUND = sorted(
    {
        limit * times + beside
        for limit in (WINDOW, PRETRAINED)
        for times in (1, 2, 3)
        for beside in (-1, 0, 1, 2)
    }
    | {POSITIONS - 1, POSITIONS}
)
"""Lengths on both sides of each limit, and of its multiples."""

Found = float | str
"""Nats; or a sentence: why it is refused, or that samples are padded instead."""
PADDED = "padded"


@dataclass(frozen=True)
class Rows:
    """Rows of a run whose samples have up to `longest` tokens."""

    directory: Path
    longest: int
    tokens: Sequence[IntArray]
    expected: Sequence[FloatArray]
    """The log-probability of each token; 0 for the first, which has none."""

    def padded(self) -> float:
        return self._worst(_scored(self._scorer(packing=False), self.tokens))

    def alone(self) -> float:
        scorer = self._scorer(packing=False)
        return self._worst([_scored(scorer, [row])[0] for row in self.tokens])

    def packed(self) -> Found:
        scorer = self._scorer(packing=True)
        return self._worst(_scored(scorer, self.tokens)) if scorer.packed else PADDED

    def decoded(self) -> float:
        return self._worst(_decoded(self._engine(), self.tokens))

    def _scorer(self, *, packing: bool) -> LogProbModel:
        settings = ModelSettings(
            model=str(self.directory),
            mixed_precision=False,
            micro_batch_size=64,
            temperature=1.0,
            packing=packing,
            longest=self.longest,
        )
        of = load_causal_lm(settings.model, torch.float32, longest=settings.longest)
        return LogProbModel(of.eval(), CPU, settings)

    def _engine(self) -> Any:
        """Return the model of a transformers engine."""
        new = 2
        settings = EngineSettings(
            model=str(self.directory),
            add_special_tokens=False,
            prompt_max_len=self.longest - new,
            sampling=SamplingSettings(max_new_tokens=new),
            mixed_precision=False,
            slots=8,
        )
        return HFEngine(settings)._model

    def _worst(self, got: Sequence[FloatArray]) -> float:
        """Return the largest difference; infinite for a number that is none."""
        apart = [np.abs(a - b) for a, b in zip(self.expected, got, strict=True)]
        return max(float(np.nan_to_num(one, nan=np.inf).max()) for one in apart)


def differences(name: str, directory: Path) -> dict[str, Found]:
    """Return the worst difference in each situation. `directory`: for the model's files."""
    model(name).save_pretrained(directory)
    _tokenizer().save_pretrained(directory)
    attention = "sdpa" if name == "falcon+alibi" else "eager"  # eager adds its ALiBi twice
    of = AutoModelForCausalLM.from_pretrained(directory, attn_implementation=attention)
    tokens = _rows(SHORT)
    short = Rows(directory, PRETRAINED, tokens, [_alone(of.eval(), row) for row in tokens])
    return {
        "alone": _or_refusal(short.alone),
        "beside others": _or_refusal(short.padded),
        "packed": _or_refusal(short.packed),
        "decoded": _or_refusal(short.decoded),
        **_at_the_limits(directory, attention),
    }


def _at_the_limits(directory: Path, attention: str) -> dict[str, Found]:
    """Return the same for rows around each limit, in a run that crosses them all."""
    try:
        of = load_causal_lm(str(directory), torch.float32, attention, longest=POSITIONS)
    except UnfitModelError as error:
        return {"at the limits": str(error)}
    tokens = _rows(AROUND)
    around = Rows(directory, POSITIONS, tokens, [_alone(of.eval(), row) for row in tokens])
    return {
        "at the limits": _or_refusal(around.padded),
        "… packed": _or_refusal(around.packed),
        "… decoded": _or_refusal(around.decoded),
    }


def _or_refusal(measure: Callable[[], Found]) -> Found:
    try:
        return measure()
    except UnfitModelError as error:
        return str(error)


def _rows(lengths: Sequence[int]) -> list[IntArray]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, VOCABULARY, length) for length in lengths]


def _alone(of: Any, row: IntArray) -> FloatArray:
    tokens = torch.from_numpy(row)[None]
    with torch.no_grad():
        logits = of(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    chosen = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None]).squeeze(-1)
    return np.concatenate([[0.0], chosen.numpy()])


def _scored(scorer: LogProbModel, tokens: Sequence[IntArray]) -> list[FloatArray]:
    lengths = np.array([len(row) for row in tokens])
    padded = np.zeros((len(tokens), lengths.max()), dtype=np.int64)
    for number, row in enumerate(tokens):
        padded[number, : len(row)] = row
    acts = np.arange(lengths.max()) < lengths[:, None]
    acts[:, 0] = False
    got = scores(scorer, sequences_of(padded, lengths, acts))
    return [got[number, :length] for number, length in enumerate(lengths)]


@torch.inference_mode()
def _decoded(of: Any, tokens: Sequence[IntArray]) -> list[FloatArray]:
    """Return each row's log-probabilities as a transformers engine computes them.

    Prompts have one token, a third or two thirds of a row. Every second row joins the others in
    mid-decoding, and rows leave when they end. A prompt's own tokens get what `of` says of them.
    """
    got = [list(_alone(of, row)) for row in tokens]
    at = [max(1, len(row) * (number % 3) // 3) for number, row in enumerate(tokens)]

    def begun(rows: Sequence[int]) -> DecodingBatch:
        pieces = [Piece(tokens[row][: at[row]].tolist(), np.array([row])) for row in rows]
        return prefill(of, pieces, CPU)

    batch, turn = begun(range(0, len(tokens), 2)), 0
    while len(batch.rows):
        chosen = torch.tensor([int(tokens[row][at[row]]) for row in batch.rows])
        log_probs = batch.logits.float().log_softmax(-1).gather(-1, chosen[:, None])
        for row, value in zip(batch.rows, log_probs[:, 0].tolist(), strict=True):
            got[row][at[row]] = value
            at[row] += 1
        batch.advance(chosen)
        turn += 1
        if turn == 1:
            batch.join(begun(range(1, len(tokens), 2)))
        going = [n for n, row in enumerate(batch.rows) if at[row] < len(tokens[row])]
        if not going:
            break
        if len(going) < len(batch.rows):
            batch.keep(torch.tensor(going))
    return [np.array(one) for one in got]


def _tokenizer() -> PreTrainedTokenizerFast:
    words = {f"t{number}": number for number in range(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t3")),
        pad_token="t0",
        eos_token="t1",
    )


def table(names: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Found]]]:
    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            yield name, differences(name, Path(directory))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("architectures", nargs="*", default=[*ARCHITECTURES])
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    worst: dict[str, float] = {}
    refused: list[str] = []
    for name, found in table(parser.parse_args().architectures):
        cells = []
        for situation, value in found.items():
            if isinstance(value, float):
                worst[situation] = max(value, worst.get(situation, 0.0))
            elif value != PADDED:
                refused.append(f"{name}, {situation}: {value.split(': ', 1)[-1]}")
            shown = f"{value:.0e}" if isinstance(value, float) else value
            cells.append(f"{situation} {shown if len(shown) < 9 else 'refused':8}")
        print(f"{name:20}", *cells, flush=True)
    print("\nWorst, in nats:", ", ".join(f"{key} {value:.1e}" for key, value in worst.items()))
    print("\nRefused:", *refused, sep="\n")


if __name__ == "__main__":
    main()
