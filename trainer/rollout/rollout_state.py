"""Pending rollouts: rollouts that are in no step yet, and their format in a checkpoint."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.files import stored_json
from env.data.prompts import images_of
from env.episodes.types import Task, metric_name
from env.types import Prompt, RewardPart, Score, ScoreStatus
from trainer.checkpoint.resume import ResumeError
from trainer.checkpoint.writer import DriverState
from trainer.config.config import Config
from trainer.config.options.episodes import EpisodeSettings
from trainer.config.options.rollout import SamplingSettings
from trainer.config.schema import flags_of
from trainer.types import Completion, FinishedRollout, PartialRollout, Sample

ARRAYS: Mapping[str, type[np.generic]] = {
    "tokens": np.int32, "actions": np.bool_, "log_probs": np.float32, "versions": np.int32
}  # fmt: skip
"""Name → type in memory. Older versions stored tokens and versions as int64."""


@dataclass(slots=True, kw_only=True)
class PromptGroup:
    """All samples of one prompt, keyed by their index in the group."""

    number: int
    """Id of the group for engines, unique among living groups."""
    prompt: Prompt
    version: int
    """Version of the engines' weights when the group began: no token is older."""
    partials: dict[int, PartialRollout] = field(default_factory=dict)
    completions: dict[int, Completion] = field(default_factory=dict)
    given_scores: dict[int, Score] = field(default_factory=dict)
    """Scores that an environment gave, by index in the group."""
    scores: list[Score] | None = None
    """By index in the group; None before they are known."""
    greedy: int | None = None
    """Index in the group of the greedy completion, which is no sample; None: there is none."""

    def finish(self, rollout: FinishedRollout) -> None:
        """Take a finished rollout in place of the partial one."""
        index = rollout.key[1]
        self.partials.pop(index, None)
        self.completions[index] = rollout.completion
        if rollout.score is not None:
            self.given_scores[index] = rollout.score

    def begin_again(self) -> None:
        """Begin the unfinished episodes from their task."""
        self.partials = {
            index: PartialRollout(p.key, p.text, p.seed, task=Task.of(self.prompt))
            for index, p in self.partials.items()
        }

    @property
    def sees_images(self) -> bool:
        """Whether the prompt has images, or a completion was shown one."""
        shown = any(completion.images for completion in self.completions.values())
        return shown or next(images_of(self.prompt), None) is not None

    @property
    def written(self) -> list[Completion]:
        return [self.completions[index] for index in sorted(self.completions)]

    @property
    def unscored(self) -> list[Completion]:
        """The completions that the reward function must score."""
        return [self.completions[i] for i in sorted(self.completions.keys() - self.given_scores)]

    def add_scores(self, found: Iterator[Score]) -> None:
        """Take the scores of `unscored` from `found`."""
        given = self.given_scores
        self.scores = [given.get(i) or next(found) for i in sorted(self.completions)]

    @property
    def samples(self) -> list[Sample]:
        """Only for a scored group."""
        assert self.scores is not None
        found = {
            index: Sample(self.prompt, self.completions[index], whole(self.completions[index], s))
            for index, s in zip(sorted(self.completions), self.scores, strict=True)
        }
        greedy = None if self.greedy is None else found.pop(self.greedy)
        return [replace(sample, greedy=greedy) for sample in found.values()]


def whole(completion: Completion, score: Score) -> Score:
    """Return a score with an episode's metrics, and with the rewards of its turns."""
    if not completion.metrics:
        return score
    of_turns = sum(completion.turn_rewards.values())
    parts = (*score.parts, RewardPart(of_turns, 1.0)) if score.parts else ()
    scored = {metric_name(name): value for name, value in score.metrics.items()}
    reward, metrics = score.reward + of_turns, {**completion.metrics, **scored}
    return replace(score, reward=reward, metrics=metrics, parts=parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRollouts:
    settings: Mapping[str, Any]
    """Sampling flags of these rollouts; under others the prompts are sampled again."""
    groups: list[PromptGroup]
    """In the order in which they began."""
    prompts: list[Prompt] = field(default_factory=list)
    """Prompts that the stream has dealt and that are in no group."""

    def dump(self) -> bytes:
        """Return an npz archive of arrays and JSON."""
        pieces: dict[str, list[NDArray[Any]]] = {name: [] for name in ARRAYS}
        header = {
            "settings": dict(self.settings),
            "prompts": [_prompt(prompt) for prompt in self.prompts],
            "groups": [_described(group, pieces) for group in self.groups],
        }
        lengths = np.array([len(piece) for piece in pieces["tokens"]], dtype=np.int64)
        joined = {name: np.concatenate(parts) for name, parts in pieces.items() if parts}
        file = io.BytesIO()
        np.savez_compressed(file, told=np.array(json.dumps(header)), lengths=lengths, **joined)
        return file.getvalue()

    @classmethod
    def parse(cls, content: bytes) -> PendingRollouts:
        """Return what `dump` wrote, perhaps in another version of this program.

        An unknown field is left out. What a missing one raises is not defined.
        """
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            header = json.loads(str(file["told"]))
            cuts = np.cumsum(file["lengths"])[:-1]
            columns = {
                name: np.split(file[name].astype(kind, copy=False), cuts)
                for name, kind in ARRAYS.items()
                if name in file
            }
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return cls(
            settings=header["settings"],
            groups=[_group(row, rows) for row in header["groups"]],
            prompts=[_prompt_of(prompt) for prompt in header["prompts"]],
        )


def settings_of(config: Config) -> dict[str, Any]:
    """Return the flags that pending rollouts depend on, by name: all sampling flags, and more."""
    episodes = flags_of(EpisodeSettings).items() if config.runs_episodes else ()
    return {
        **{name: str(flag.value_in(config.episodes)) for name, flag in episodes},
        "max_staleness": config.allowed_staleness,
        "rollout_batch_size": config.rollout_batch_size,
        "n_samples_per_prompt": config.n_samples_per_prompt,
        **({"greedy": True} if config.advantage.wants_greedy else {}),
        "prompt_max_len": config.prompt_max_len,
        **({"max_len": config.longest_sample} if config.has_environment else {}),
        **({"image_max_pixels": config.image_max_pixels} if config.sees_images else {}),
        **{
            name: flag.value_in(config.sampling)
            for name, flag in flags_of(SamplingSettings).items()
        },
    }


def _described(group: PromptGroup, pieces: dict[str, list[NDArray[Any]]]) -> dict[str, Any]:
    """Return a group without arrays; appends its arrays to `pieces`, partial rollouts first."""
    parts: list[PartialRollout | Completion] = [
        *group.partials.values(),
        *group.completions.values(),
    ]
    for part in parts:
        chosen = part.action_mask if isinstance(part, Completion) else None
        action_mask = np.ones(len(part.tokens), dtype=np.bool_) if chosen is None else chosen
        row = (part.tokens, action_mask, part.log_probs, part.versions)
        for name, array in zip(ARRAYS, row, strict=True):
            pieces[name].append(array)
    return {
        "number": group.number,
        "prompt": _prompt(group.prompt),
        "version": group.version,
        "seeds": {index: partial.seed for index, partial in group.partials.items()},
        "texts": {index: c.text for index, c in group.completions.items()},
        "finished": [c.finished for c in group.completions.values()],
        "greedy": group.greedy,
        "scores": None if group.scores is None else [asdict(score) for score in group.scores],
        "episodes": {
            index: {"turn_rewards": dict(c.turn_rewards), "metrics": dict(c.metrics)}
            for index, c in group.completions.items()
            if c.metrics
        },
        "given_scores": {index: asdict(score) for index, score in group.given_scores.items()},
    }


def _prompt(prompt: Prompt) -> dict[str, Any]:
    """Return a prompt without its columns, which JSON may not have, and without images.

    A resumed run reads the row again.
    """
    messages = None if next(images_of(prompt), None) else prompt.messages
    return asdict(replace(prompt, columns={}, messages=messages))


def _group(described: dict[str, Any], rows: list[dict[str, NDArray[Any]]]) -> PromptGroup:
    """Return a group; takes its arrays from the front of `rows`."""
    prompt, number = _prompt_of(described["prompt"]), described["number"]
    group = PromptGroup(number=number, prompt=prompt, version=described["version"])
    group.greedy = described.get("greedy")
    for text_index, seed in described["seeds"].items():
        row, index = rows.pop(0), int(text_index)
        del row["actions"]
        begun = PartialRollout((number, index), prompt.text, seed)
        group.partials[index] = replace(begun, **row)  # type: ignore[arg-type]
    texts = described["texts"].items()
    for (text_index, text), finished in zip(texts, described["finished"], strict=True):
        row = rows.pop(0)
        episode = described.get("episodes", {}).get(text_index, {})
        turn_rewards = {int(at): reward for at, reward in episode.get("turn_rewards", {}).items()}
        group.completions[int(text_index)] = Completion(
            text=text,
            finished=finished,
            action_mask=row.pop("actions"),
            turn_rewards=turn_rewards,
            metrics=episode.get("metrics", {}),
            images=(),
            **row,
        )
    given = described.get("given_scores", {}).items()
    group.given_scores = {int(index): _score(score) for index, score in given}
    if described["scores"] is not None:
        group.scores = [_score(score) for score in described["scores"]]
    return group


def _prompt_of(row: dict[str, Any]) -> Prompt:
    return Prompt(**stored_json.fields_of(Prompt, row))


def _score(row: dict[str, Any]) -> Score:
    parts = tuple(RewardPart(*part) for part in row.get("parts", ()))
    known = {"status": ScoreStatus(row["status"]), "parts": parts, "raised": None}
    return Score(**stored_json.fields_of(Score, row) | known)


def pending_at(config: Config, beginning: DriverState) -> PendingRollouts | None:
    """Return the pending rollouts of the state that the run resumes from; None: there are none.

    Raises ResumeError if this run would lose them, or this version cannot read them.
    """
    if beginning.in_flight is None:
        return None
    step = beginning.run.step
    try:
        found = PendingRollouts.parse(beginning.in_flight)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ResumeError(
            f"--load_checkpoint: the rollouts that were under way at step {step} cannot be read: "
            f"{error!r}. Go on with the version of Rollcall that wrote them, or give another "
            "--run_dir"
        ) from None
    if (found.groups or found.prompts) and not config.async_train:
        prompts = len(found.groups) + len(found.prompts)
        raise ResumeError(
            f"--load_checkpoint: {prompts} prompts were under way at step {step}, and without "
            "--async_train they would be left out. Give --async_train; with --max_staleness 0 "
            "beside it the run goes on synchronously"
        )
    return found
