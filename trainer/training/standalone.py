"""What a head records of a run, recorded by a trainer that no head has started."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePath

from contract.durations import counted
from contract.exit_codes import ExitCode
from contract.files import stored_json
from contract.journal import EventSource, append_event, has_head, timestamp
from contract.journal_file.index import landmarks
from contract.launch.standalone import BY, TRAINER, alive, is_by_trainer
from contract.options import ended
from contract.progress import Progress, RunResult
from contract.redaction import redact, redact_all, secret_texts
from contract.run_dir import name_of, write_atomically
from trainer.cluster.stop import Stopped
from trainer.config.config import Config
from trainer.config.parse import given_texts
from trainer.training import run

RECIPE = "builtin"
"""Name of the recipe by which a head starts this trainer."""


@contextmanager
def recorded(config: Config, words: Sequence[str], again: str = "") -> Iterator[None]:
    """Record begin and end of the attempt that the block makes; with a head, do nothing.

    `words`: the flags; `again`: the command that starts the run again, if it is known. Raises
    OSError.
    """
    if has_head():
        yield
        return
    record = _Record(config, time.monotonic())
    config.files.root.mkdir(parents=True, exist_ok=True)
    with alive(config.files):
        record.begin(words, again)
        try:
            yield
        except BaseException as error:
            with suppress(OSError):
                record.end(*_outcome(error))
            raise
        told = Progress.read(config.files.progress)
        steps = f": {counted(told.step, 'step')}" if told else ""
        record.end("finished", ExitCode.FINISHED, f"The training has finished{steps}.")


def _outcome(error: BaseException) -> tuple[str, ExitCode, str]:
    """Return the outcome of a run that an error ends, its exit code, and why."""
    if isinstance(error, Stopped):
        return "stopped", ExitCode.STOPPED, ended(str(error))
    if not isinstance(error, Exception):
        return "stopped", ExitCode.STOPPED, f"{type(error).__name__} has ended the trainer."
    code = run.exit_code(error)
    why = str(error) if code is not None else f"{type(error).__name__}: {error}"
    return "failed", code or ExitCode.JOB_FAILED, ended(why)


@dataclass(frozen=True, slots=True)
class _Record:
    config: Config
    began: float

    def begin(self, words: Sequence[str], again: str) -> None:
        files = self.config.files
        if not files.run.exists() or self._was_refused():
            self._identify(words)
        hidden = self._secrets
        resume = {"resume": redact(again, hidden)} if again else {}
        self._event("start", "The trainer starts, without a head.", **resume, **{BY: TRAINER})
        number = self._attempts() + 1
        self._event("attempt", f"Attempt {number} starts.", **{BY: TRAINER})

    def _was_refused(self) -> bool:
        """Return whether trainers alone were started here, the newest refused, without a step.

        What such a run was asked for is nothing that this one has begun with.
        """
        files = self.config.files
        code = stored_json.json_object_or_empty(files.result).get("exit_code")
        told = Progress.read(files.progress)
        if code != ExitCode.USAGE or (told and told.step):
            return False
        return all(map(is_by_trainer, landmarks(files.journal).events(["start"])))

    def _identify(self, words: Sequence[str]) -> None:
        """Write run.json with what is known without a head."""
        row = {
            "name": name_of(self.config.files.root.resolve()),
            "recipe": RECIPE,
            "flags": dict(given_texts(words)),
            "model": PurePath(self.config.pretrain).name,
            "created": timestamp(),
        }
        text = json.dumps(redact_all(row, self._secrets), indent=1)
        write_atomically(self.config.files.run, text + "\n")

    def end(self, outcome: str, code: ExitCode, sentence: str) -> None:
        result = RunResult(
            outcome=outcome,
            exit_code=code,
            attempts=self._attempts(),
            progress=Progress.read(self.config.files.progress),
            seconds=time.monotonic() - self.began,
        )
        result.write(self.config.files)
        self._event("outcome", sentence, outcome=outcome, exit_code=int(code))

    def _event(self, kind: str, sentence: str, **details: object) -> None:
        source = EventSource(secrets=self._secrets)
        append_event(self.config.files.journal, kind, sentence, details, source=source)

    def _attempts(self) -> int:
        return sum(1 for _ in landmarks(self.config.files.journal).events(["attempt"]))

    @property
    def _secrets(self) -> frozenset[str]:
        return secret_texts(os.environ) | {self.config.wandb_key or ""} - {""}
