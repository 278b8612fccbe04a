"""Finds the checkpoints of any program by ROLLCALL_CHECKPOINTS, and resumes the program from one.

The part of the path that has `{step}` is the checkpoint. What follows must be there, too: so a file
that the program writes last tells a complete checkpoint from one that is half written. Without it,
the formats of the files tell whether one of them is cut off or missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from contract.journal_file.index import landmarks
from contract.run_dir import RunFiles
from entrypoint.config.job_parsers import CHECKPOINT, STEP
from entrypoint.config.settings import Settings
from entrypoint.job import checkpoint_files, command_identity
from entrypoint.job.checkpoint_files import UNREADABLE
from entrypoint.job.failures import resume_check
from entrypoint.job.recipes.base import FilesGoneError
from entrypoint.run import restore

MAGIC = {"*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    step: int
    path: Path


def newest(settings: Settings) -> FoundCheckpoint | None:
    """Return the complete checkpoint with the highest step; None if none is found."""
    return next(_complete(settings), None)


def _complete(settings: Settings) -> Iterator[FoundCheckpoint]:
    """Yield the complete checkpoints, the highest step first."""
    if settings.checkpoints is None:
        return
    pattern = settings.run_dir / settings.checkpoints
    place = next(n for n, part in enumerate(pattern.parts) if STEP in part)
    before, name = Path(*pattern.parts[:place]), _name(pattern.parts[place])
    marker = pattern.parts[place + 1 :]
    yield from (one for one in named(before, name) if _is_complete(one.path, marker))


def named(before: Path, name: re.Pattern[str]) -> list[FoundCheckpoint]:
    """Return what has such a name in the directory, the highest step first; complete or not."""
    return sorted(_entries(before, name), key=lambda one: one.step, reverse=True)


def resumed_words(settings: Settings, resume_from: int | None) -> tuple[str, ...]:
    """Return the job's words, with ROLLCALL_RESUME_ARGS if it resumes from this step.

    Raises FilesGoneError if the words name the checkpoint, and it is there no more.
    """
    if resume_from is None or not settings.resume_args:
        return settings.job
    path = ""
    if any(CHECKPOINT in word for word in settings.resume_args):
        found = next((one for one in _complete(settings) if one.step == resume_from), None)
        if found is None:
            where = f"{settings.checkpoints} (ROLLCALL_CHECKPOINTS)"
            raise FilesGoneError(f"the checkpoint of step {resume_from} is gone: {where}")
        path = str(found.path)
    added = (
        word.replace(STEP, str(resume_from)).replace(CHECKPOINT, path)
        for word in settings.resume_args
    )
    return (*settings.job, *added)


def resume_faults(settings: Settings) -> list[str]:
    """Return a sentence for each option that both the job and ROLLCALL_RESUME_ARGS have."""
    own, added = _options(settings.job), _options(settings.resume_args)
    return [
        f"the job has {own[name]}, and ROLLCALL_RESUME_ARGS adds {added[name]}: leave one of the "
        "two out; the first attempt has none of ROLLCALL_RESUME_ARGS unless it finds a checkpoint"
        for name in own
        if name in added
    ]


def has_begun(settings: Settings) -> bool:
    """Return whether this very command made the run's last steps. Raises OSError."""
    events = landmarks(RunFiles(settings.run_dir).journal).events(["attempt", "resume"])
    return resume_check.has_begun(events, command_identity.fingerprint(settings))


def start_faults(
    settings: Settings, words: str, named: Path | None, found: FoundCheckpoint | None, place: str
) -> list[str]:
    """Return a sentence if the job's words name another start than a checkpoint that is there.

    `words`: those that say how to start; `named`: the checkpoint that they name, if any; `found`:
    the newest one; `place`: the argument that names their directory. Once the command has begun,
    its own checkpoints count.
    """
    if found is None or (named is not None and _real(named) == _real(found.path)):
        return []
    if settings.store and restore.may_fetch(RunFiles(settings.run_dir)):
        return []  # the journal is still to come
    with suppress(OSError):  # the check of the run directory says why
        if not has_begun(settings):
            return [
                f"{words} and {found.path} contradict each other: each attempt resumes from the "
                f"newest complete checkpoint there. Leave {words.partition(' ')[0]} out, move the "
                f"newer checkpoints away, or give another {place}"
            ]
    return []


def _real(path: Path) -> Path:
    return (Path.cwd() / path).resolve()


def _name(part: str) -> re.Pattern[str]:
    before, after = (_escaped(text) for text in part.split(STEP))
    return re.compile(f"{before}(?P<step>[0-9]{{1,15}}){after}")


def _escaped(text: str) -> str:
    return "".join(MAGIC.get(character) or re.escape(character) for character in text)


def _globbed(path: Path) -> str:
    """Return the path as a glob: `[` stands for itself."""
    return str(path).replace("[", "[[]")


def _entries(before: Path, name: re.Pattern[str]) -> Iterator[FoundCheckpoint]:
    with suppress(OSError):
        below = before.relative_to("/")
        directories = Path("/").glob(_globbed(below)) if below.parts else (before,)
        for directory in directories:
            for entry in directory.iterdir():
                if match := name.fullmatch(entry.name):
                    yield FoundCheckpoint(int(match["step"]), entry)


def _is_complete(path: Path, marker: Sequence[str]) -> bool:
    with suppress(*UNREADABLE):
        if marker:
            return any(path.glob(_globbed(Path(*marker))))
        if not path.is_dir():
            return path.stat().st_size > 0 and checkpoint_files.is_whole(path)
        files = [file for file in path.rglob("*") if file.is_file()]
        whole = bool(files) and all(map(checkpoint_files.is_whole, files))
        return whole and checkpoint_files.has_all_parts(path)
    return False


def _options(words: Sequence[str]) -> dict[str, str]:
    """Map each option, as `--name`, `--name=value` or `name=value`, to how it is written."""
    names = {}
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("--") or (equals and re.fullmatch(r"\+{0,2}[\w.]+", name)):
            names[name.lstrip("-+").replace("-", "_")] = name
    return names
