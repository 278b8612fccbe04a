"""All that is wrong with a job at once: its flags, and what they name. Torch-free."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Sequence
from itertools import chain

from contract.journal import has_head
from contract.options import Fault
from contract.redaction import redact_here
from env.data.prompts import PromptError
from env.types import Prompt
from trainer.config import code_check, job_checks
from trainer.config.code_findings import Trouble
from trainer.config.config import Config
from trainer.config.parse import Parsed

OF_THE_DATA = frozenset(
    {
        *("prompt_data", "prompt_split", "input_key", "label_key", "input_template"),
        *("eval_dataset", "eval_split", "apply_chat_template", "max_samples"),
    }
)
"""Flags that say how rows are read: with another value each row may be right."""


def content_faults(
    config: Config, unsure: Collection[str] = (), *, rows: int | None = None
) -> list[Fault]:
    """Return each fault in what the flags of a job name: rewards, models, data.

    `unsure`: flags whose value is not the one that the user meant; what depends on them is left
    out. `rows`: how many rows of each data set are read; None: all. Raises OSError if the disk
    fails.
    """
    found = chain(
        job_checks.reward_faults(config),
        map(_of_sentence, job_checks.engine_faults(config)),
        map(_of_sentence, job_checks.model_faults(config) if "pretrain" not in unsure else ()),
        job_checks.data_faults(config, rows) if OF_THE_DATA.isdisjoint(unsure) else (),
    )
    return [one for one in found if not _mentioned(str(one)).intersection(unsure)]


def _of_sentence(sentence: str) -> Fault:
    return Fault("", None, sentence, "")


def start_faults(parsed: Parsed) -> list[Fault]:
    """Return each fault that lets an attempt not begin, before Ray and torch are there.

    The trainer reads all rows itself, so a few of them are read here. Raises OSError.
    """
    found = content_faults(parsed.config, parsed.unsure, rows=job_checks.FIRST_ROWS)
    beginning = () if parsed.faults else job_checks.beginning_faults(parsed.config)
    told: dict[str, Fault] = {}
    for fault in (*parsed.faults, *found, *map(_of_sentence, beginning)):
        told.setdefault(str(fault), fault)
    return list(told.values())


def try_code(
    config: Config,
    words: Sequence[str],
    environment: code_check.TryEnvironment | None = None,
    spelt: Callable[[str], str] = str,
) -> list[Trouble]:
    """Run the user's code on a few rows, unless a head or an earlier step has; return its faults.

    A head cannot try objects of this process. `words`: the flags of `config`. `environment`: tries
    it if objects of this process are given. `spelt`: returns a sentence with the flags as the user
    spells them. Warnings are printed. It takes seconds, and only if there is such code.
    """
    in_python = code_check.is_in_python(config)
    if (has_head() and not in_python) or job_checks.finished_steps(config):
        return []
    if in_python:  # no other process has its objects
        tried = code_check.here(config, _first_rows(config), environment)
    else:
        tried = code_check.in_process(config, words, tell=lambda said: _tell(spelt(said)))
    for warning in tried.warnings:
        _tell(f"warning: {spelt(warning)}")
    return tried.refusals


def _first_rows(config: Config) -> Sequence[Prompt]:
    try:
        return job_checks.first_rows(config)
    except PromptError:  # `data_faults` says it
        return ()


def _tell(sentence: str) -> None:
    print(redact_here(sentence), file=sys.stderr, flush=True)


def _mentioned(sentence: str) -> set[str]:
    return set(re.findall(r"--(\w+)", sentence))
