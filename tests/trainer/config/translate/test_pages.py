"""docs/from-*.md say what the tables and `rollcall translate` say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import DATA, ROOT
from trainer.config.translate import openrlhf
from trainer.config.translate.command import OPENRLHF, TRAINERS, TRL, VERL, of_script
from trainer.config.translate.page import blocks, command_of, renewed, trainer_of
from trainer.config.translate.trl import TRL as TRL_TABLE
from trainer.config.translate.verl import SEARCH_R1
from trainer.config.translate.verl import VERL as VERL_TABLE

TABLES = {OPENRLHF: [openrlhf.OLD], VERL: [VERL_TABLE, SEARCH_R1], TRL: [TRL_TABLE]}
SCRIPTS = {OPENRLHF: "openrlhf-example-ppo", VERL: "verl-example-grpo"}
"""The scripts of the projects that are in two of the pages."""


def page(trainer: str) -> str:
    return (ROOT / "docs" / f"from-{trainer}.md").read_text()


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_page_has_the_present_tables_and_translation(trainer: str) -> None:
    renew = f"python -m trainer.config.translate.page docs/from-{trainer}.md"
    assert renewed(page(trainer), trainer) == page(trainer), renew


@pytest.mark.parametrize("trainer", TRAINERS)
def test_after_is_what_rollcall_translate_prints_for_before(trainer: str, tmp_path: Path) -> None:
    script = tmp_path / "before.sh"
    script.write_text(command_of(page(trainer)))
    rollcall = Path(sys.executable).with_name("rollcall")
    done = subprocess.run([rollcall, "translate", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert blocks(done.stdout, done.stderr) in page(trainer)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_each_row_that_changes_the_run_is_in_the_page(trainer: str) -> None:
    rows = [row for table in TABLES[trainer] for row in table.rows]
    names = [row.theirs for row in rows if row.ours or row.lost]
    assert [name for name in names if f"`{name}`" not in page(trainer)] == []


@pytest.mark.parametrize("trainer", SCRIPTS)
def test_before_is_the_project_s_own_script(trainer: str) -> None:
    theirs = (DATA / "guide_scripts" / f"{SCRIPTS[trainer]}.sh").read_text()
    given = of_script(theirs, {}).given
    assert len(given) > 30
    assert of_script(command_of(page(trainer)), {}).given == given


def test_a_page_without_its_marks_and_another_file_are_refused() -> None:
    with pytest.raises(ValueError, match="the page lacks <!-- translated: from here -->"):
        renewed("```sh before\ntrl grpo --beta 0\n```\n", TRL)
    with pytest.raises(ValueError, match=r"trainer.md: give docs/from-TRAINER.md"):
        trainer_of(Path("docs/trainer.md"))
