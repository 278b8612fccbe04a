"""What `init` is told: whether it is possible, and where the files lie that it names.

init.py beside it asks the questions.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.options import MISTYPED, did_you_mean, ended, nearest
from entrypoint.commands.init_platforms import (
    COMPOSE,
    KUBERNETES,
    NO_PLATFORM,
    OTHER_NAMES,
    PLATFORMS,
    RUNPOD,
)

FILES = ("--model", "--data", "--reward")
"""Flags whose answers may name files."""
OWN = "own"
"""The reward that is written for the run."""
ROW_FILES = (".jsonl", ".json", ".parquet")
NO_MODELS = (*ROW_FILES, ".csv", ".txt", ".py", ".yaml", ".yml")
"""Ends of names that are a file's, and no model's."""
TRUTH = "ground_truth"
"""What verl calls the answer in the column `reward_model`."""
OTHER_ANSWERS = (
    "finalanswer", "correctanswer", "expectedanswer", "referenceanswer", "answerkey", "correct",
    "gold",
)  # fmt: skip
"""Rarer names of the answers' column, in small letters without underscores."""
OTHER_PROMPTS = ("ctx", "questionstem")
"""Rarer names of the prompts' column (HellaSwag, OpenBookQA), spelled likewise."""
PAIR = {"chosen", "rejected"}
"""Columns of preferences."""
SUPERVISED = "docs/supervised.md"
ABSENT = object()
MISTYPED_FILE = 0.9
"""difflib's ratio from which a file's name, with its end, counts as a mistyped one."""
NUMBERS = {"--nodes": (1, 10_000), "--gpus": (0, 64)}
"""Flag → the least and the greatest number."""
SPELLINGS = {
    "--name": (
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
        "use at most 64 letters, digits and any of . _ -, a letter or digit first",
    ),
    "--shared": (
        r"/[A-Za-z0-9._@%+=~/-]*[A-Za-z0-9_]/?",
        "nodes need the whole path of the directory, from /, in letters, digits and ._@%+=~-",
    ),
    "--image": (
        r"[A-Za-z0-9/][A-Za-z0-9._:/@#+-]*",
        "it is the name of no image, such as registry.example.com/team/rollcall:cuda",
    ),
}
"""Flag → what its value looks like, and what is said of another. Platforms' files take no more."""
RELEASE = r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?"


class AnswerError(ValueError):
    """An answer that no run can have; the sentence says what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file or directory that an answer names."""

    name: str
    """As it was given."""
    directory: Path
    """Of the run."""

    @property
    def path(self) -> Path | None:
        """Return where it is: seen from the run's directory, else from the current one."""
        paths = (Path(os.path.normpath(base / self.name)) for base in (self._run, Path.cwd()))
        return next((path for path in paths if path.exists()), None)

    @property
    def near(self) -> str:
        """Return the name that is most like it where it would lie; "" if none is."""
        path = Path(self.name)
        for base in (self._run, Path.cwd()):
            there = _entries((base / path).parent)
            of_kind = {one.stem: one.name for one in there if one.suffix == path.suffix}
            whole = nearest(path.name, [one.name for one in there], cutoff=MISTYPED_FILE)
            if near := whole or of_kind.get(nearest(path.stem, of_kind, cutoff=MISTYPED), ""):
                return str(path.with_name(near))
        return ""

    @property
    def could_be_here(self) -> bool:
        """Return whether the directory in which it would lie is here."""
        return (self._run / self.name).parent.is_dir()

    @property
    def spelled(self) -> str:
        """Return how run.yaml names it: by its whole path, if the run's directory lacks it."""
        away = self.path not in (None, Path(os.path.normpath(self._run / self.name)))
        return str(self.path) if away else self.name

    @property
    def beside(self) -> str:
        """Return where it lies, seen from the directory of the run, after all is copied there."""
        path = Path(self.name)
        return path.name if ".." in path.parts or self.spelled != self.name else self.name

    @property
    def _run(self) -> Path:
        return self.directory.absolute()


def _entries(directory: Path) -> Sequence[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return ()


@dataclass(frozen=True, slots=True)
class Data:
    """The prompts, as far as they can be seen here."""

    place: Place
    rows: Sequence[Mapping[str, Any]]
    """The first ones; none if the data are not here."""
    unseen: str = ""
    """Why there are none."""

    @property
    def is_file(self) -> bool:
        """Return whether it is no data set of the hub."""
        from trainer.config import new_run

        name = self.place.name
        return self.place.path is not None or not new_run.is_hub_name(name) or _is_rows(name)

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self.rows[0]) if self.rows else ()

    @property
    def known(self) -> Sequence[str]:
        """Return the columns of prompts and answers of a data set that is away, if it is known."""
        from trainer.config import new_run

        return () if self.rows else new_run.known_columns(self.place.name)

    @property
    def template(self) -> str | None:
        """Return the template of a data set that is away; None if none is known."""
        from trainer.config import new_run

        return None if self.rows else new_run.known_template(self.place.name)

    def input_key(self, given: str | None) -> str:
        """Return the column of the prompts. Raises AnswerError."""
        from trainer.config import new_run

        found = self._column("--input-key", given, new_run.PROMPT_COLUMNS)
        found = found or next(self._named(OTHER_PROMPTS), "")
        turns = next((one for one in self.columns if new_run.is_share_gpt(self.rows[0][one])), "")
        if turns and found in ("", turns):
            raise AnswerError(
                f"--input-key: {turns!r} has turns as ShareGPT's, {{'from', 'value'}}. Write them "
                "as messages: {'role': 'user', 'content': …} for human, assistant for gpt. The "
                "answer that the reward compares is a column of its own"
            )
        if found:
            return found
        row = self.rows[0]
        chats = [name for name in row if new_run.is_chat(row[name])]
        texts = [name for name in row if isinstance(row[name], str)]
        if chats or len(texts) == 1:
            return (chats or texts)[0]
        raise AnswerError(f"--input-key: {self._which('prompts')}")

    def label_key(self, given: str | None, prompts: str, *, needed: bool) -> str:
        """Return the column of the answers; "" if there is none. Raises AnswerError if `needed`.

        `prompts`: the column of the prompts, which has no answers.
        """
        from trainer.config import new_run

        if given is not None and given == prompts:
            split = self._split(prompts) or " Give the column of the answers"
            raise AnswerError(f"--label-key {given}: this column has the prompts.{split}")
        found = self._column("--label-key", given, new_run.ANSWER_COLUMNS)
        found = found or next(self._other_answers(), "")
        if given is None and found == prompts:
            found = ""
        if needed and not found:
            split = self._split(prompts)
            said = f"--label-key: {self._which('answers')}"
            raise AnswerError(f"{said}.{split}" if split else said)
        return found

    def _split(self, prompts: str) -> str:
        """Return what to do with messages that end with the answer; "" if they do not."""
        from trainer.config import new_run

        messages = new_run.value_at(self.rows[0], prompts) if self.rows else None
        if not isinstance(messages, list) or not new_run.is_chat(messages):
            return ""
        if messages[-1]["role"] != "assistant":
            return ""
        return (
            f" Split the last (assistant) message of {prompts!r} off into a column of its own. Or "
            f"train on the conversations by `rollcall sft` ({SUPERVISED})"
        )

    def _other_answers(self) -> Iterator[str]:
        """Yield the columns, and parts of them, that have answers under rarer names."""
        row = self.rows[0] if self.rows else {}
        yield from (
            f"{name}.{TRUTH}"
            for name, value in row.items()
            if isinstance(value, Mapping) and TRUTH in value
        )
        yield from self._named(OTHER_ANSWERS)

    def _named(self, rarer: Sequence[str]) -> Iterator[str]:
        plain = {name.lower().replace("_", ""): name for name in self.columns}
        yield from (plain[name] for name in rarer if name in plain)

    def _column(self, flag: str, given: str | None, usual: Sequence[str]) -> str:
        from trainer.config import new_run

        if not self.rows:
            return given or next((one for one in self.known if one in usual), usual[0])
        if given is None:
            words = {
                name: re.findall(r"[a-z]+", name.lower().replace("_", "")) for name in self.columns
            }
            wanted = (name.replace("_", "") for name in usual)
            return next((name for one in wanted for name in words if one in words[name]), "")
        if all(new_run.value_at(row, given, ABSENT) is ABSENT for row in self.rows):
            near = did_you_mean(given, self._names, begin="; ")
            raise AnswerError(f"{flag} {given}: no such column. {self._have}{near}")
        return given

    def _which(self, what: str) -> str:
        said = f"which column has the {what}? {self._have}"
        pairs = ". These are pairs: train on them by `rollcall dpo` or `rollcall rm`"
        return f"{said}{pairs} ({SUPERVISED})" if PAIR.issubset(self.columns) else said

    @property
    def _have(self) -> str:
        return f"{self.place.name} has {', '.join(map(repr, self._names))}"

    @property
    def _names(self) -> Sequence[str]:
        """Return the columns; in place of one with parts, their dotted names."""
        parts = ((name, row[name]) for row in self.rows for name in row)
        return list(dict.fromkeys(one for part in parts for one in _dotted(*part)))


def _dotted(name: str, value: object) -> Iterator[str]:
    """Yield the names of a value's parts that have none themselves."""
    if not isinstance(value, Mapping) or not value:
        yield name
        return
    for part, inner in value.items():
        yield from _dotted(f"{name}.{part}", inner)


def _is_rows(name: str) -> bool:
    return name.endswith(ROW_FILES)


def data(name: str, directory: Path) -> Data:
    """Return what is seen of the data. Raises AnswerError for what cannot be data."""
    from trainer.config import new_run

    place = Place(name, directory)
    if place.path is None:
        if not (_is_rows(name) or name.startswith(("/", ".")) or new_run.is_hub_name(name)):
            raise AnswerError(
                f"--data {name}: no such file or directory, and no OWNER/NAME of the hub. A file "
                f"of rows ends in {', '.join(ROW_FILES)}"
            )
        return Data(place, (), "it is not on this machine")
    try:
        return Data(place, new_run.first_rows(place.path))
    except ImportError as error:
        return Data(place, (), f"{error.name} is not installed here")
    except (ValueError, OSError) as error:
        raise AnswerError(f"--data {name}: {error}") from error


def value_at(row: Mapping[str, Any], key: str) -> Any:
    """Return what a row has under a column's name, or a dotted path; "" if it has neither."""
    from trainer.config import new_run

    return new_run.value_at(row, key, "")


def unseen(data: Data, input_key: str, tokens: int) -> Iterator[str]:
    """Yield what is said of columns that prompts lack, and of prompts above so many tokens."""
    from trainer.config import new_run

    yield new_run.unseen_passage(data.rows, input_key)
    yield new_run.unseen_wrong_answers(data.rows)
    if data.rows and data.place.path:
        yield new_run.long_prompts(data.place.path, input_key, tokens)


def flags_in(file: Path, names: Collection[str]) -> Mapping[str, str]:
    """Return the trainer's flags that a file of them gives. Raises AnswerError."""
    from trainer.config import new_run

    try:
        return new_run.flags_in(file, names)
    except ValueError as error:
        raise AnswerError(str(error)) from error


def reward_file(reward: str, directory: Path) -> Place | None:
    """Return where a reward's own code lies; None if it has none. Raises AnswerError."""
    from trainer.config import new_run

    if reward == OWN:
        return None
    try:
        named = new_run.own_file(reward)
    except ValueError as error:
        said = ended(f"--reward {reward}: {error}")
        raise AnswerError(f"{said} {OWN} writes reward.py") from error
    if named is None:
        return None
    place = Place(named[0], directory)
    if place.path is not None and (fault := new_run.defined_fault(place.path, named[1])):
        raise AnswerError(f"--reward {reward}: {fault}")
    return place


def model(name: str, directory: Path) -> Place | None:
    """Return where a model's directory lies; None for one of the hub. Raises AnswerError."""
    place = Place(name, directory)
    if name.strip() and place.path is not None:
        if not (place.path / "config.json").is_file():
            raise AnswerError(f"--model {name}: {place.path} is no model: it has no config.json")
        return place
    from trainer.config import new_run

    if name.startswith(("/", "./", "../")):
        return place
    if not new_run.may_be_on_hub(name) or name.endswith(NO_MODELS):
        wanted = "give a directory, or OWNER/NAME of the hub"
        raise AnswerError(f"--model {name!r}: no directory and no name of a model: {wanted}")
    return None


def _place(flag: str, value: str, directory: Path) -> Place | None:
    """Return where the file lies that an answer names; None if it names none.

    Raises AnswerError.
    """
    if flag == "--data":
        found = data(value, directory)
        return found.place if found.is_file else None
    return model(value, directory) if flag == "--model" else reward_file(value, directory)


def _refuse_absent(place: Place | None, flag: str, *, is_run_here: bool) -> None:
    """Raise AnswerError for what is not there, and is like another name, or could be nowhere else.

    `is_run_here`: the run is started here, and not by a platform whose nodes may have it.
    """
    if place is None or place.path is not None:
        return
    if near := place.near:
        raise AnswerError(f"{flag} {place.name}: no such file or directory. Did you mean {near}?")
    if is_run_here and place.could_be_here:
        made = "; `rollcall prepare arithmetic --out .` makes one" if flag == "--data" else ""
        raise AnswerError(
            f"{flag} {place.name}: no such file or directory. Give one that is there{made}"
        )


def platform_of(name: str) -> str:
    """Return the platform that a name in any case means; the name as it is if none does."""
    return name.lower() if name.lower() in PLATFORMS else name


def check(flag: str, value: str, directory: Path) -> None:
    """Raise AnswerError if an answer to the question of a flag is not possible."""
    if not value.isprintable():
        raise AnswerError(f"{flag} {value!r}: it has a line break or another control character")
    if flag in FILES:
        _refuse_absent(_place(flag, value, directory), flag, is_run_here=False)
    elif flag == "--platform":
        if platform_of(value) not in PLATFORMS:
            of = f"it is one of {', '.join(PLATFORMS)}"
            if value.lower().startswith("aws"):
                of += ". For AWS Batch, complete compose/aws-batch/job-definition.json"
            meant = OTHER_NAMES.get(value.lower(), value)
            raise AnswerError(f"{flag} {value}: {did_you_mean(meant, PLATFORMS, of)}")
    elif flag in NUMBERS:
        least, most = NUMBERS[flag]
        is_number = value.isascii() and value.isdecimal() and len(value) < 10
        if not is_number or not least <= int(value) <= most:
            raise AnswerError(f"{flag} {value}: it is a whole number from {least} to {most}")
    elif not re.fullmatch(SPELLINGS[flag][0], value):
        raise AnswerError(f"{flag} {value!r}: {SPELLINGS[flag][1]}")


def check_together(options: argparse.Namespace) -> None:
    """Raise AnswerError for an answer that has no effect beside the others, or contradicts them."""
    platform, name = options.platform, options.name
    for flag in FILES:
        place = _place(flag, getattr(options, flag[2:]), options.dir)
        _refuse_absent(place, flag, is_run_here=platform == NO_PLATFORM)
    if platform == NO_PLATFORM:
        for flag, given in (("--image", options.image), ("--shared", options.shared)):
            if given is not None:
                of = ", ".join(one for one in PLATFORMS if one != NO_PLATFORM)
                said = "only the files of a platform name it. Give one by --platform"
                raise AnswerError(f"{flag} {given}: {said}: {of}")
    elif platform == KUBERNETES and name is not None and not re.fullmatch(RELEASE, name):
        wanted = "up to 40 small letters, digits and hyphens, a letter first"
        raise AnswerError(f"--name {name}: a release of Helm has {wanted}")
    elif name is not None and options.shared is not None and platform != KUBERNETES:
        said = "--shared says the directory already, and nothing else has the name"
        raise AnswerError(f"--name {name}: {said}. Give one of the two")
    if platform == RUNPOD and options.gpus == "0":
        raise AnswerError("--gpus 0: RunPod's pods for Rollcall have GPUs. Give 1 or more")
    given = (options.data, options.model, options.reward)
    if platform == COMPOSE and (wrong := next((one for one in given if "}" in one), "")):
        raise AnswerError(f"{wrong}: a compose file takes no }} in the job's words. Rename it")


def room(name: str, place: Place | None) -> int | None:
    """Return the tokens that a model of a directory, or of the hub, reads; None if unknown here."""
    from trainer.config import new_run

    if place is not None and place.path is None:
        return None
    return new_run.room(str(place.path) if place else name)
