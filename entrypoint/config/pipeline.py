"""Runs in a row: the stages of a pipeline's file, and what they name of each other."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.files import yaml_text
from contract.options import ParseError, did_you_mean
from contract.run_dir import RunFiles
from entrypoint.config import runtime_env as environments

if TYPE_CHECKING:
    import yaml

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
REFERENCE = re.compile(r"\{stage\.([^{}]*)\.(run|model)\}")
MEANT = re.compile(r"\{stage\b[^{}]*\}?")
"""A reference, right or wrong."""
FIELDS = ("name", "job", "runtime_env")
EXAMPLE = "give `stages:`, a list such as [{name: sft, job: sft --pretrain …}]"


class PipelineError(Exception):
    """A file is not a pipeline; `faults` has a sentence for each reason."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    words: tuple[str, ...]
    """The job, with references to earlier stages."""
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""
    """The same for the same stage after the same stages."""


def parsed(text: str, directory: Path = Path()) -> list[Stage]:
    """Parse the content of a pipeline's file, which lies in `directory`. Raises PipelineError.

    Files of requirements are read; their relative paths begin there.
    """
    try:
        content, nodes = yaml_text.parsed(text), yaml_text.composed(text)
    except yaml_text.NotYamlError as error:
        raise PipelineError([f"the text {error}"]) from None
    if not isinstance(content, dict):
        raise PipelineError([f"there are no stages: {EXAMPLE}"])
    found = [_unknown("the file", key, ("stages",)) for key in content if key != "stages"]
    found += _given_twice(nodes)
    rows = content.get("stages")
    if not isinstance(rows, list) or not rows:
        raise PipelineError([*found, f"there are no stages: {EXAMPLE}"])
    stages = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            found.append(f"stage {number} is not an object with the fields {', '.join(FIELDS)}")
            continue
        stage, more = _stage(number, row, directory)
        stages.append(stage)
        found += more
    found += faults(stages)
    if found:
        raise PipelineError(found)
    return keyed(stages)


def faults(stages: Sequence[Stage]) -> Iterator[str]:
    """Pure: yield a sentence for each wrong name, environment or reference of the stages."""
    names = [stage.name for stage in stages]
    for place, stage in enumerate(stages):
        if not NAME.fullmatch(stage.name):
            yield (
                f"stage {place + 1} has the name {stage.name!r}: use at most 64 letters, digits, "
                "- and _, such as sft"
            )
        elif stage.name in names[:place]:
            yield f"stage {place + 1} has the name {stage.name}, as an earlier stage has"
        for fault in environments.faults(stage.runtime_env):
            yield f"stage {stage.name}: {fault}"
        for word in stage.words:
            for found in MEANT.findall(word):
                problem = _reference_fault(found, names, place)
                if problem:
                    yield f"stage {stage.name}: {found} {problem}"


def filled(words: Sequence[str], runs: Mapping[str, Path]) -> tuple[str, ...]:
    """Return the words with the paths that they name. `runs`: run directories by stage."""

    def path(found: re.Match[str]) -> str:
        files = RunFiles(runs[found[1]])
        return str(files.exported if found[2] == "model" else files.root)

    return tuple(REFERENCE.sub(path, word) for word in words)


def models_named(words: Sequence[str]) -> list[str]:
    """Return the names of the stages whose models the words name, each once."""
    found = (
        match[1] for word in words for match in REFERENCE.finditer(word) if match[2] == "model"
    )
    return list(dict.fromkeys(found))


def keyed(stages: Sequence[Stage]) -> list[Stage]:
    """Return the stages with keys: a hash of each stage and of all stages before it."""
    key, result = "", []
    for stage in stages:
        row = [key, stage.name, stage.words, stage.runtime_env]
        text = json.dumps(row, sort_keys=True, default=str)
        key = f"pipeline-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        result.append(replace(stage, key=key))
    return result


def _stage(number: int, row: Mapping[str, Any], directory: Path) -> tuple[Stage, list[str]]:
    """Return the stage of an entry of the file, and what is wrong with it."""
    name = row.get("name", "")
    label = f"stage {name}" if isinstance(name, str) and name else f"stage {number}"
    found = [_unknown(label, key, FIELDS) for key in row if key not in FIELDS]
    environment = row.get("runtime_env", {})
    if not isinstance(environment, dict):
        found.append(f"{label}: runtime_env is not an object of fields")
        environment = {}
    try:
        environment = environments.with_files(environment, directory)
    except ParseError as error:
        found.append(f"{label}: the runtime environment {error}")
        environment = {}
    words: tuple[str, ...] = ()
    try:
        words = _words(row.get("job"))
    except ValueError as error:
        found.append(f"{label}: {error}")
    return Stage(str(name), words, environment), found


def _words(job: object) -> tuple[str, ...]:
    """Return the words of a job. Raises ValueError."""
    if isinstance(job, str):
        try:
            words = shlex.split(job.replace("\\\n", " "))
        except ValueError as error:
            raise ValueError(f"the job is not a command line: {str(error).lower()}") from None
    elif isinstance(job, list):
        for word in job:
            if isinstance(word, bool) or not isinstance(word, str | int | float):
                raise ValueError(f"the job's word {word!r} is not text: put it in quotes")
        words = [str(word) for word in job]
    elif job is None:
        words = []
    elif isinstance(job, bool | int | float):
        raise ValueError(f"the job {job} is not text: put it in quotes")
    else:
        raise ValueError("the job is neither a text nor a list of words")
    if not words or not words[0]:
        raise ValueError("there is no job: give `job: sft --pretrain …`, or a program")
    return tuple(words)


def _reference_fault(found: str, names: Sequence[str], place: int) -> str:
    """Return what is wrong with a reference; "" if nothing is."""
    match = REFERENCE.fullmatch(found)
    if match is None:
        return "names nothing: give {stage.NAME.run} or {stage.NAME.model}"
    if match[1] in names[:place]:
        return ""
    if match[1] in names:
        return "names a stage that does not come before"
    return f"names no stage of the file{did_you_mean(match[1], names[:place], begin=': ')}"


def _given_twice(root: yaml.MappingNode) -> Iterator[str]:
    """Yield a sentence for each field of the file or of a stage whose first value is lost."""
    lists = [value.value for _, value in root.value if value.id == "sequence"]
    for node in [root, *(row for rows in lists for row in rows if row.id == "mapping")]:
        given = set[str]()
        for key, _ in node.value:
            if key.value in given:
                yield (
                    f"line {key.start_mark.line + 1} gives {key.value} a second time: a stage "
                    "begins with a dash, as in `- name: sft`"
                )
            given.add(key.value)


def _unknown(label: str, key: object, known: Sequence[str]) -> str:
    remedy = did_you_mean(str(key), known, f"the fields are {', '.join(known)}")
    return f"{label} has a field {key}, which nothing reads: {remedy}"
