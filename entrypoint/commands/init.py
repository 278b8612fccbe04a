"""`init`: writes the files of a new RL run: flags, a reward function with a test, a platform's."""

from __future__ import annotations

import argparse
import json
import keyword
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contract.exit_codes import ExitCode
from entrypoint.commands import init_answers, init_choices, init_kept
from entrypoint.commands.arguments import Parser, fail
from entrypoint.commands.init_answers import OWN, AnswerError, Data, Place
from entrypoint.commands.init_chat_template import Chat
from entrypoint.commands.init_choices import Choices
from entrypoint.commands.init_files import RUN, reward_of, test_of
from entrypoint.commands.init_kept import RUN_FILE
from entrypoint.commands.init_next import NextSteps
from entrypoint.commands.init_platforms import (
    IMAGE,
    NO_PLATFORM,
    PLATFORMS,
    SLURM,
    Cluster,
    NoSourcesError,
    mount_of,
    written,
)
from entrypoint.machine.gpus import discover
from entrypoint.run import errors

IN_PYXIS = re.compile(r"/|[^/]+#")
"""Begins an image as pyxis takes it: a file, or a registry's host before `#`."""
LONG_ANSWER = 80
"""Characters of an answer that no completion is likely to end with."""
SAMPLES = 8
"""Samples of a prompt."""
LENGTH = 512
"""Tokens of a prompt, and of a completion."""
NAME = "rollcall-run"
"""Of a run on a platform."""


@dataclass(frozen=True, slots=True)
class Question:
    """A flag, and what is asked if it is not given."""

    flag: str
    help: str
    default: str = ""

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


QUESTIONS = (
    Question(
        "--model", "the model: a name on the hub, or a directory", "Qwen/Qwen2.5-0.5B-Instruct"
    ),
    Question("--data", "the prompts: a name on the hub, or a file", "train.jsonl"),
    Question(
        "--reward",
        "the reward: own (reward.py is written), a reward's name, FILE.py:NAME or a URL",
        OWN,
    ),
    Question("--platform", f"where it runs: {', '.join(PLATFORMS)}", NO_PLATFORM),
    Question("--nodes", "the number of nodes", "1"),
    Question("--gpus", "GPUs of each node"),
)
GPUS = "8"
"""Of a node of a platform; without one the GPUs are this machine's."""


def parser() -> Parser:
    made = Parser("init", __doc__)
    for one in QUESTIONS:
        default = one.default or f"{GPUS} on a platform, else this machine's"
        default += f"; {init_choices.REWARD} for multiple choice" if one.flag == "--reward" else ""
        default = f" (default: {default})"
        made.add_argument(one.flag, help=f"{one.help}{default}")
    made.add_argument("--input-key", help="column of the prompts (default: the data's own)")
    made.add_argument("--label-key", help="column of the answers (default: the data's own)")
    named = f"of the run; on a platform also of its directory (default there: {NAME})"
    made.add_argument("--name", help=named)
    made.add_argument("--shared", help="that directory, if it is not NAME below the shared storage")
    stands = f"the image of a platform's nodes (default: {IMAGE}; on Slurm /shared/rollcall.sqsh)"
    made.add_argument("--image", help=stands)
    made.add_argument("--dir", type=Path, default=Path(), help="where to write (default: here)")
    made.add_argument("--yes", "-y", action="store_true", help="ask nothing: take the defaults")
    return made


def main(words: Sequence[str], ask: Callable[[str], str] = input) -> int:
    own = parser()
    rows = [word for word in words if word.endswith(init_answers.ROW_FILES)]
    options = own.parse(words, f": did you mean --data {rows[0]}?" if rows else "")
    if options.platform is not None:
        options.platform = init_answers.platform_of(options.platform)
    asks = sys.stdin.isatty() and not options.yes
    is_kept = (options.dir / RUN_FILE).exists()
    if is_kept and options.platform in (None, NO_PLATFORM):  # before anything is asked
        return _refused([RUN_FILE], options.dir)
    try:
        if is_kept:
            init_kept.settle(options)
        _settle(options, ask if asks else None)
        run = _NewRun.of(options, is_kept=is_kept)
        files = run.files()
    except AnswerError as error:
        own.error(str(error))
    except EOFError:
        own.error("no answer, and nothing was written: --yes takes the defaults")
    except NoSourcesError as error:
        return fail(str(error), ExitCode.UNFIT, as_json=False)
    there = [name for name in files if (options.dir / name).exists()]
    if there:
        return _refused(there, options.dir)
    kept = init_kept.files(options.dir) if is_kept else ()
    print(*(f"kept  {path}\n" for path in kept), sep="", end="")
    try:
        for name, content in files.items():
            path = options.dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            print(f"wrote {path}")
    except OSError as error:
        sentence = f"--dir {options.dir}: {errors.explain(error)}"
        return fail(f"{sentence}. Give another --dir", ExitCode.USAGE, as_json=False)
    for note in run.notes():
        print(f"note:  {note}", file=sys.stderr)
    print("", *run.next_steps().lines(), sep="\n")
    return ExitCode.FINISHED


def _refused(there: Sequence[str], directory: Path) -> int:
    found = f"{', '.join(there)}: there already, in {directory.absolute()}"
    sentence = f"{found}. Nothing was written: move them, or give another --dir"
    if there == [RUN_FILE]:
        sentence += ". --platform NAME keeps them, and adds the platform's files"
    return fail(sentence, ExitCode.USAGE, as_json=False)


def _settle(options: argparse.Namespace, ask: Callable[[str], str] | None) -> None:
    """Give each option a value that is possible: the user's own, an answer or the default.

    Raises AnswerError for an argument, and for a default if nobody is asked.
    """
    for one in QUESTIONS:
        if (given := getattr(options, one.name)) is not None:
            init_answers.check(one.flag, given, options.dir)
    for flag in ("--name", "--shared", "--image"):
        if (given := getattr(options, flag.removeprefix("--"))) is not None:
            init_answers.check(flag, given, options.dir)
    for one in QUESTIONS:
        if getattr(options, one.name) is None:
            default = one.default or (
                GPUS if options.platform != NO_PLATFORM else str(discover.count())
            )
            if one.flag == "--reward":
                default = init_choices.usual_reward(options)
            text = f"{one.help} [{default}]: "
            check = partial(init_answers.check, one.flag, directory=options.dir)
            answer = _answer(text, default, check, ask) if ask else default
            check(answer)
            is_platform = one.flag == "--platform"
            setattr(options, one.name, init_answers.platform_of(answer) if is_platform else answer)
    init_answers.check_together(options)
    data = init_answers.data(options.data, options.dir)
    needed = options.reward == OWN
    for name, choose in (
        ("input_key", data.input_key),
        ("label_key", lambda given: data.label_key(given, options.input_key, needed=needed)),
    ):
        try:
            found = choose(getattr(options, name))
        except AnswerError as error:
            if ask is None or getattr(options, name) is not None:
                raise
            found = _answer(f"{str(error).partition(': ')[2]}: ", "", choose, ask)
        setattr(options, name, found)


def _answer(
    text: str, default: str, check: Callable[[str], object], ask: Callable[[str], str]
) -> str:
    """Return the first answer that is possible: the question is asked again after any other."""
    while True:
        answer = ask(text).strip() or default
        try:
            check(answer)
        except AnswerError as error:
            print(error, file=sys.stderr)
        else:
            return answer


@dataclass(frozen=True, slots=True)
class _NewRun:
    """What is written: each option is settled."""

    options: argparse.Namespace
    data: Data
    model: Place | None
    """None: it is on the hub."""
    reward: Place | None
    """The user's file; None: the reward has none, or it is written."""
    is_kept: bool
    """Only the platform's files are written."""
    choices: Choices | None
    """Of data whose options no prompt shows."""

    @classmethod
    def of(cls, options: argparse.Namespace, *, is_kept: bool) -> _NewRun:
        data = init_answers.data(options.data, options.dir)
        choices = None if is_kept else init_choices.settle(options, data)
        return cls(
            options,
            choices.data if choices else data,
            init_answers.model(options.model, options.dir),
            init_answers.reward_file(options.reward, options.dir),
            is_kept,
            choices,
        )

    @property
    def converted(self) -> str:
        """Return the name of the file of rows that is written; "" for none."""
        return self.choices.name if self.choices else ""

    @property
    def nodes(self) -> int:
        return int(self.options.nodes)

    @property
    def room(self) -> int | None:
        """The most tokens that the model reads; None if its files are not at hand."""
        return init_answers.room(self.options.model, self.model)

    @property
    def length(self) -> int:
        """Tokens of a prompt, and of a completion, which the model can read together."""
        return min(LENGTH, (self.room or 2 * LENGTH) // 2)

    @property
    def shared(self) -> str:
        """The directory of the run's files on the nodes."""
        options = self.options
        named = options.shared or f"{PLATFORMS[options.platform].storage}/{options.name or NAME}"
        return os.path.normpath(named)

    def files(self) -> dict[str, str]:
        """Map the names of the files that are written to their contents.

        Raises NoSourcesError and AnswerError.
        """
        options = self.options
        cluster = Cluster(
            nodes=self.nodes,
            gpus=int(options.gpus),
            job=tuple(self._job()),
            shared=self.shared,
            given_image=options.image or "",
            mount=mount_of(options.platform, self.shared),
        )
        of_the_run = {} if self.is_kept else self._of_the_run()
        return of_the_run | written(options.platform, cluster)

    def _of_the_run(self) -> dict[str, str]:
        """Return flags and reward. Raises AnswerError."""
        options = self.options
        ranks = max(1, self.nodes * int(options.gpus))
        batch = SAMPLES * ranks * max(1, 32 // ranks)
        label = options.label_key
        files = {
            RUN_FILE: RUN.format(
                model=json.dumps(self._spelled(self.model) if self.model else options.model),
                data=json.dumps(self._spelled(self.data.place)),
                input_key=json.dumps(options.input_key),
                label="".join(self._label_lines()),
                chat=json.dumps(self._chat.is_applied),
                why=self._chat.why,
                reward=json.dumps(self._reward(self._spelled(self.reward) if self.reward else "")),
                samples=SAMPLES,
                length=self.length,
                batch=batch,
                prompts=2 * batch // SAMPLES,
            )
        }
        if options.reward == OWN:
            column = label if label in self.data.columns else label.partition(".")[0]
            if not column.isidentifier() or keyword.iskeyword(column):
                raise AnswerError(
                    f"--label-key {label}: reward.py takes it as a parameter, and it is no name in "
                    "Python. Rename the column, or give another --reward"
                )
            parts = label[len(column) :].split(".")[1:]
            files |= {"reward.py": reward_of(column, parts), "test_reward.py": test_of(parts)}
        if self.choices and self.choices.text:
            files[self.converted] = self.choices.text
        return files

    def _spelled(self, place: Place) -> str:
        """Return how a file is named; one that is still to be made here, by its whole path."""
        if self.converted and place is self.data.place:
            return self.converted
        is_of_hub = place is self.data.place and not self.data.is_file
        is_other = self.options.dir.resolve() != Path.cwd()
        if place.path or is_of_hub or not is_other or self.options.platform != NO_PLATFORM:
            return place.spelled
        return os.path.normpath(Path.cwd() / place.name)

    @property
    def _chat(self) -> Chat:
        options, row = self.options, next(iter(self.data.rows), {})
        directory = self.model.path if self.model else None
        return Chat(options.model, directory, init_answers.value_at(row, options.input_key))

    def _label_lines(self) -> Iterator[str]:
        if label := self.options.label_key:
            yield f"label_key: {json.dumps(label)}\n"
        if template := self.data.template:
            yield f"input_template: {json.dumps(template)}\n"

    def _reward(self, file: str) -> str:
        """Return the reward with its file at another path."""
        given: str = self.options.reward
        if self.reward is not None:
            return file + given.removeprefix(self.reward.name)
        return f"{file or 'reward.py'}:reward" if given == OWN else given

    def _job(self) -> Iterator[str]:
        """Yield the job's words: run.yaml and the files that it names lie in `shared`."""
        shared = Path(self.shared)
        yield f"--config={shared}/run.yaml"
        if self.model is not None:
            yield f"--pretrain={shared / self.model.beside}"
        if self.data.is_file:
            yield f"--prompt_data={shared / (self.converted or self.data.place.beside)}"
        if self.reward is not None or self.options.reward == OWN:
            file = self.reward.beside if self.reward else "reward.py"
            yield f"--remote_rm_url={self._reward(str(shared / file))}"

    def notes(self) -> Iterator[str]:
        """Yield what was not seen, and what the answers of the data ask of the reward."""
        options, data = self.options, self.data
        image = options.image or ""
        if options.platform == SLURM and "/" in image[1:] and not IN_PYXIS.match(image):
            yield (
                f"--image {image}: pyxis, the default of rollcall.sbatch, takes a file, or "
                "HOST#PATH:TAG. With RUNTIME=podman or docker this name is right"
            )
        if data.unseen and not data.known:
            yield (
                f"--data {options.data}: {data.unseen}. Its columns were not seen; run.yaml names "
                f"{options.input_key} and {options.label_key}"
            )
        if self.choices:
            yield self.choices.note
        if not self.is_kept:
            unseen = init_answers.unseen(data, options.input_key, self.length)
            yield from (f"--data {options.data}: {one}" for one in unseen if one)
        yield from () if self.is_kept else self._chat.notes()
        for flag, place in (("--model", self.model), ("--reward", self.reward)):
            if place is not None and place.path is None:
                yield f"{flag} {place.name}: it is not on this machine, and was not looked at"
        if not self.is_kept and self.length < LENGTH:
            yield (
                f"--model {options.model}: it reads at most {self.room} tokens. In run.yaml, a "
                f"prompt and a completion have at most {self.length} tokens each"
            )
        answers = [str(init_answers.value_at(row, options.label_key)) for row in data.rows]
        if options.reward != OWN or not answers:
            return
        if all("####" in answer for answer in answers):
            yield (
                "the answers have their working, as GSM8K's. reward.py compares what follows "
                "####; --reward gsm8k reads numbers in more spellings"
            )
        elif min(map(len, answers)) > LONG_ANSWER:
            yield (
                f"the answers in {options.label_key} are long texts. reward.py gives 1 only for a "
                "completion that ends with the whole text: change `score`, or give --reward math"
            )

    def next_steps(self) -> NextSteps:
        options = self.options
        own = ["reward.py"] if options.reward == OWN else []
        data = None if self.converted else self.data.place
        return NextSteps(
            platform=options.platform,
            nodes=self.nodes,
            gpus=int(options.gpus),
            name=options.name or (NAME if options.platform != NO_PLATFORM else ""),
            directory=options.dir,
            shared=self.shared,
            has_image=options.image is not None,
            written=[RUN_FILE, *own, *filter(None, [self.converted])],
            others=[one for one in (data, self.model, self.reward) if one],
        )
