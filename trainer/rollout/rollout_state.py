"""Rollouts that no step was made of yet, and their form on disk."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from env.types import Prompt, Score, ScoreStatus
from trainer.types import Completion, PartialRollout, Sample

FILE = "in_flight.npz"
"""In a checkpoint."""
ARRAYS = ("tokens", "actions", "log_probs", "versions")


@dataclass(slots=True, kw_only=True)
class PromptGroup:
    """All samples of one prompt, keyed by their index in the group."""

    number: int
    """Id of the group for engines; no two living groups share one."""
    prompt: Prompt
    version: int
    """Of the engines when it was begun: no token is older."""
    partials: dict[int, PartialRollout] = field(default_factory=dict)
    completions: dict[int, Completion] = field(default_factory=dict)
    scores: list[Score] | None = None
    """In the order of the places; None: not known yet."""

    @property
    def written(self) -> list[Completion]:
        return [self.completions[place] for place in sorted(self.completions)]

    @property
    def samples(self) -> list[Sample]:
        """Once it is scored."""
        assert self.scores is not None
        pairs = zip(self.written, self.scores, strict=True)
        return [Sample(self.prompt, completion, score) for completion, score in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRollouts:
    settings: Mapping[str, float]
    """Sampling flags of these rollouts; under others the prompts are sampled again."""
    groups: list[PromptGroup]
    """In the order in which they were begun."""
    prompts: list[Prompt] = field(default_factory=list)
    """Prompts that the stream has dealt and that are in no group."""

    def dump(self) -> bytes:
        """As an npz archive of numbers and JSON."""
        pieces: dict[str, list[NDArray[Any]]] = {name: [] for name in ARRAYS}
        told = {
            "settings": dict(self.settings),
            "prompts": [asdict(prompt) for prompt in self.prompts],
            "groups": [_told(group, pieces) for group in self.groups],
        }
        lengths = np.array([len(piece) for piece in pieces["tokens"]], dtype=np.int64)
        joined = {name: np.concatenate(parts) for name, parts in pieces.items() if parts}
        file = io.BytesIO()
        np.savez_compressed(file, told=np.array(json.dumps(told)), lengths=lengths, **joined)
        return file.getvalue()

    @classmethod
    def parse(cls, content: bytes) -> PendingRollouts:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            told = json.loads(str(file["told"]))
            cuts = np.cumsum(file["lengths"])[:-1]
            columns = {name: np.split(file[name], cuts) for name in ARRAYS if name in file}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return cls(
            settings=told["settings"],
            groups=[_group(one, rows) for one in told["groups"]],
            prompts=[Prompt(**prompt) for prompt in told["prompts"]],
        )


def _told(group: PromptGroup, pieces: dict[str, list[NDArray[Any]]]) -> dict[str, Any]:
    """A group without its arrays; appends those to `pieces`, partial rollouts first."""
    parts: list[PartialRollout | Completion] = [
        *group.partials.values(),
        *group.completions.values(),
    ]
    for part in parts:
        chosen = part.actions if isinstance(part, Completion) else None
        actions = np.ones(len(part.tokens), dtype=np.bool_) if chosen is None else chosen
        row = (part.tokens, actions, part.log_probs, part.versions)
        for name, array in zip(ARRAYS, row, strict=True):
            pieces[name].append(array)
    return {
        "number": group.number,
        "prompt": asdict(group.prompt),
        "version": group.version,
        "seeds": {place: partial.seed for place, partial in group.partials.items()},
        "texts": {place: c.text for place, c in group.completions.items()},
        "finished": [c.finished for c in group.completions.values()],
        "scores": None if group.scores is None else [asdict(score) for score in group.scores],
    }


def _group(told: dict[str, Any], rows: list[dict[str, NDArray[Any]]]) -> PromptGroup:
    """Takes its arrays from the front of `rows`."""
    prompt, number = Prompt(**told["prompt"]), told["number"]
    group = PromptGroup(number=number, prompt=prompt, version=told["version"])
    for place, seed in told["seeds"].items():
        row = rows.pop(0)
        del row["actions"]
        group.partials[int(place)] = PartialRollout((number, int(place)), prompt.text, seed, **row)
    for (place, text), finished in zip(told["texts"].items(), told["finished"], strict=True):
        group.completions[int(place)] = Completion(text=text, finished=finished, **rows.pop(0))
    if told["scores"] is not None:
        group.scores = [_score(score) for score in told["scores"]]
    return group


def _score(told: dict[str, Any]) -> Score:
    return Score(**told | {"status": ScoreStatus(told["status"])})
