"""The model card of a finished run: data, curve, flags and versions, as Markdown for the hub."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from contract.durations import counted, significant
from contract.journal import attempt_number
from contract.journal_file.index import landmarks
from contract.launch import distribution
from contract.metrics import json_lines
from contract.metrics.charts import CHARTS
from contract.redaction import redact, secret_texts
from trainer.checkpoint.writer import RunState
from trainer.config.config import Config, declared_flags

MOST_ROWS = 20
"""Rows of the curve."""
CURVE = {chart.label: chart.first for chart in CHARTS if chart.first}
PACKAGES = (distribution.NAME, "torch", "transformers", "vllm", "deepspeed", "ray", "datasets")
DIRECTORY = re.compile(r"(?<![\w.:/-])/(?:[^\s,'\"/]+/)*(?=[^\s,'\"/])")
"""The directories before the name of a file."""
LEFT_OUT = frozenset({"run_dir", "ckpt_path", "save_path", "use_tensorboard", "hub_model_id"})
"""Flags that say where things lie here, not how the model was made."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a card says of a run."""

    config: Config
    """The flags as they were given: with names of the hub."""
    state: RunState
    rows: Sequence[Mapping[str, Any]]
    """Rows of metrics.jsonl, of up to MOST_ROWS steps."""
    failures: Mapping[str, int]
    """How many attempts failed in each class."""
    attempts: int


def facts_of(config: Config, state: RunState) -> Facts:
    """Return what the run's files say. Raises OSError."""
    events = landmarks(config.files.journal).events(["failure"])
    classes = Counter(str(event["details"]["failure"]) for event in events)
    rows = json_lines.spread(config.files.metrics, MOST_ROWS)
    return Facts(config, state, rows, classes, attempt_number())


def card(facts: Facts, environ: Mapping[str, str]) -> str:
    """Return the card. Secrets are masked, and paths of this machine are left out."""
    config, state = facts.config, facts.state
    base, columns = _shown(config.pretrain), _columns(state)
    name = config.hub_model_id.partition("/")[2]
    parts = [
        "---",
        *_front(config),
        "---",
        "",
        f"# {name}",
        "",
        f"{base}, trained with Rollcall for {counted(state.step, 'step')} on {_data(config)}, "
        f"with advantages by `{config.advantage.estimator}`.",
        "",
        *_table(("result", "value"), _results(facts)),
        "## Curve",
        "",
        *_table(("step", *columns), _curve(facts.rows, [*columns.values()])),
        "## Flags",
        "",
        "Flags that differ from their defaults.",
        "",
        *_table(("flag", "value"), _flags(config)),
        "## Versions",
        "",
        *_table(("package", "version"), _versions()),
    ]
    return redact("\n".join(parts), secret_texts(environ))


def _front(config: Config) -> Iterator[str]:
    """Yield the lines that the hub reads, as YAML: JSON strings are YAML."""
    yield "library_name: transformers"
    yield f"pipeline_tag: {'image-text-to-text' if config.sees_images else 'text-generation'}"
    if not _is_path(config.pretrain):
        yield f"base_model: {json.dumps(config.pretrain)}"
    names = config.prompt_data.names if config.prompt_data else ()
    if on_hub := [name.partition(":")[0] for name in names if not _is_path(name)]:
        yield f"datasets: {json.dumps(on_hub)}"
    yield f"tags: {json.dumps(['rollcall', 'reinforcement-learning', config.advantage.estimator])}"


def _results(facts: Facts) -> Iterator[tuple[str, str]]:
    state = facts.state
    held_out = "held-out reward" if state.eval_is_reward else "held-out accuracy"
    yield "steps", str(state.step)
    yield "completions trained on", str(state.samples)
    for label, value in (
        ("mean reward of the first step", state.reward_first),
        ("mean reward of the last step", state.reward),
        (f"{held_out} before", state.eval_before),
        (f"{held_out} after", state.eval_after),
        ("best held-out value after a step", state.best),
    ):
        if value is not None:
            yield label, significant(value)
    best, before = state.best, state.best_before
    if best is not None and before is not None and before > best:
        yield "best model", "that before training: the training has made it worse"
    yield "attempts", str(facts.attempts)
    for failure, count in sorted(facts.failures.items()):
        yield f"failures: {failure}", str(count)


def _columns(state: RunState) -> dict[str, str]:
    """Return the curve's columns: a graded reward of held-out data, or an accuracy."""
    absent = "eval/accuracy" if state.eval_is_reward else "eval/reward"
    return {label: name for label, name in CURVE.items() if name != absent}


def _curve(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the steps, with their numbers."""
    steps: dict[int, dict[str, Any]] = {}
    for row in rows:
        steps.setdefault(row["step"], {}).update(row)
    for step, row in sorted(steps.items()):
        values = (row.get(name) for name in names)
        yield str(step), *("" if value is None else significant(value) for value in values)


def _flags(config: Config) -> Iterator[tuple[str, str]]:
    defaults, given = Config().public(), config.public()
    for name in declared_flags():
        text = given.get(name, "")
        if text != defaults.get(name, "") and name not in LEFT_OUT:
            yield f"`--{name}`", f"`{_shown(text)}`" if text else ""


def _versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _data(config: Config) -> str:
    names = config.prompt_data.names if config.prompt_data else ()
    return ", ".join(map(_shown, names)) or "no data"


def _is_path(text: str) -> bool:
    return text.startswith((".", "/")) or text.count("/") > 1


def _shown(text: str) -> str:
    """Return the text without directories of this machine, in one line of a table."""
    return DIRECTORY.sub("", " ".join(text.split())).replace("|", "\\|").replace("`", "'")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
