"""The table of flags is whole: against OpenRLHF's list, the code that reads it, and the docs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.flag_values import plain
from tests.support.repository import ROOT
from trainer.config.config import Config
from trainer.config.parity import effect, renewed
from trainer.config.read_flags import aliases
from trainer.config.schema import flags_of
from trainer.config.values import shown

FEATURES = (ROOT / "docs" / "features.md").read_text()
FLAGS = (ROOT / "docs" / "flags.md").read_text()
THEIRS = dict(
    line.split("\t")
    for line in (ROOT / "tests" / "data" / "openrlhf-0.11.2.tsv").read_text().splitlines()
)
"""Every flag of OpenRLHF 0.11.2's PPO with its default as text; empty: none."""
TABLE = flags_of(Config)


@pytest.mark.parametrize("name", TABLE)
def test_a_flag_has_a_concern_a_help_and_one_effect(name: str) -> None:
    about = TABLE[name].about
    assert about.group
    assert about.help
    assert effect(about)
    assert not (about.no_effect and about.unsupported)


def test_every_flag_of_openrlhf_is_known() -> None:
    assert sorted(set(THEIRS) - set(aliases(Config))) == []


def test_no_dotted_spelling_is_invented() -> None:
    dotted = {one for flag in TABLE.values() for one in flag.about.dotted_spellings}
    assert sorted(dotted - set(THEIRS)) == []


def test_a_flag_of_policy_and_critic_has_the_same_range_for_both() -> None:
    for name, about in ((name, flag.about) for name, flag in TABLE.items()):
        if about.follows:
            leader = TABLE[about.follows].about
            for what in ("choices", "at_least", "above", "at_most", "no_effect", "unsupported"):
                assert getattr(about, what) == getattr(leader, what), name


def test_each_default_that_differs_from_openrlhf_is_in_the_docs() -> None:
    section = FEATURES.split("## Defaults that differ")[1].split("\n## ")[0]
    differing = [
        name
        for name, flag in TABLE.items()
        if not (flag.about.no_effect or flag.about.unsupported)
        and any(plain(shown(flag.default)) != plain(THEIRS[d]) for d in flag.about.dotted_spellings)
    ]
    assert differing
    assert [name for name in differing if f"`{name}`" not in section] == []


def test_the_docs_have_the_table_of_flags() -> None:
    renew = "python -m trainer.config.parity docs/flags.md"
    assert renewed(FLAGS) == FLAGS, renew


@pytest.mark.parametrize(
    ("flag", "beginning"),
    [("optim", "AdamW is"), ("load_in_4bit", "weights are")],
)
def test_a_name_keeps_its_capitals_in_the_table(flag: str, beginning: str) -> None:
    assert effect(TABLE[flag].about).startswith(f"not supported: {beginning}")


def test_every_flag_that_claims_an_effect_is_read() -> None:
    sources = [
        re.sub(r'"[^"\n]*"', "", path.read_text())  # a dotted spelling does not read it
        for path in (ROOT / "trainer").rglob("*.py")
        if path.name not in ("no_effect.py", "validate.py")
    ]
    code = "\n".join(sources)
    claimed = [f for f in TABLE.values() if not (f.about.no_effect or f.about.unsupported)]
    # Settings go to a worker as they are, which reads them under names of its own.
    reader = {1: "(config|self)", 2: r"\w+"}
    unread = {
        flag.name
        for flag in claimed
        if not re.search(rf"{reader[len(flag.path)]}\.{flag.path[-1]}\b", code)
    }
    assert unread == set()


def test_help_has_every_flag_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, trainer.__main__ as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = ('torch', 'ray', 'numpy', 'transformers', 'httpx', 'yaml')\n"
        "print([n for n in heavy if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *shown_help, imported = done.stdout.splitlines()
    assert imported == "[]"
    words = set(re.findall(r"--([\w.]+)", "\n".join(shown_help)))
    assert sorted(set(aliases(Config)) - words) == []
