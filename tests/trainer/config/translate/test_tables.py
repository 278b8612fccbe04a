"""The tables of translation are whole and true: against verl's and TRL's releases, and ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

import pytest
import yaml

from tests.support.flag_values import plain
from tests.support.repository import ROOT
from trainer.config.config import Config
from trainer.config.read_flags import aliases
from trainer.config.schema import flags_of
from trainer.config.translate import openrlhf
from trainer.config.translate.rows import NOTHING, Row, Table
from trainer.config.translate.trl import TRL
from trainer.config.translate.verl import SEARCH_R1, VERL
from trainer.config.values import shown

VERL_CONFIG = ROOT / ".oracles/verl/trainer/config/_generated_ppo_trainer.yaml"
ALGORITHM = ROOT / ".oracles/verl/trainer/config/algorithm.py"
"""Its AlgoConfig has keys that the file above leaves out."""
OPENRLHF_FLAGS = dict(
    line.split("\t")
    for line in (ROOT / "tests" / "data" / "openrlhf-0.11.2.tsv").read_text().splitlines()
)
TABLES = (VERL, SEARCH_R1, TRL, openrlhf.OLD)


def flat(section: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


@pytest.fixture(scope="module")
def verl_keys() -> dict[str, Any]:
    """Every key of verl 0.9.1's PPO with its default."""
    assert VERL_CONFIG.exists(), "make setup brings verl's wheel"
    return {
        key: value
        for key, value in flat(yaml.safe_load(VERL_CONFIG.read_text()))
        if not key.rpartition(".")[2].startswith("_")
    }


def trl_flags() -> dict[str, Any]:
    """Every flag of TRL's GRPO script with its default."""
    from trl import GRPOConfig, ModelConfig
    from trl.scripts.grpo import GRPOScriptArguments
    from trl.scripts.utils import DatasetMixtureConfig

    found = {}
    for one in (GRPOScriptArguments, GRPOConfig, ModelConfig, DatasetMixtureConfig):
        for field in fields(one):
            default = field.default
            if default is MISSING and field.default_factory is not MISSING:
                default = field.default_factory()
            found[field.name] = default
    return found


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_each_row_has_a_flag_of_ours_or_a_reason(table: Table) -> None:
    known = aliases(Config)
    assert [row.theirs for row in table.rows if row.ours and row.ours not in known] == []
    assert [row.theirs for row in table.rows if not (row.ours or row.note)] == []


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_no_row_sets_a_flag_that_has_no_effect_here(table: Table) -> None:
    flags, known = flags_of(Config), aliases(Config)
    abouts = {row.ours: flags[known[row.ours][0]].about for row in table.rows if row.ours}
    assert [name for name, about in abouts.items() if about.no_effect or about.unsupported] == []


def test_each_key_of_verl_is_in_the_table(verl_keys: dict[str, Any]) -> None:
    assert [key for key in verl_keys if not VERL.of(key)] == []


def test_each_row_of_verl_is_a_key_of_its_release(verl_keys: dict[str, Any]) -> None:
    optional = re.findall(r"^    (\w+): ", ALGORITHM.read_text(), re.MULTILINE)
    known = [*verl_keys, *(f"algorithm.{name}" for name in optional)]
    invented = [
        row.theirs
        for row in VERL.rows
        if not row.old and not any(row.matches(key) for key in known)
    ]
    assert invented == []


def test_the_defaults_of_verl_are_those_of_its_release(verl_keys: dict[str, Any]) -> None:
    assert wrong_defaults(VERL, verl_keys) == []


def test_each_flag_of_trl_is_in_the_table() -> None:
    assert [name for name in trl_flags() if not TRL.of(name)] == []


def test_each_row_of_trl_is_a_flag_of_its_release() -> None:
    flags = trl_flags()
    launchers = {"streaming", "half_precision_backend", "overwrite_output_dir", "group_by_length"}
    invented = [
        row.theirs
        for row in TRL.rows
        if not row.old and not any(row.matches(name) for name in flags)
    ]
    assert set(invented) - launchers == set()


def test_the_defaults_of_trl_are_those_of_its_release() -> None:
    assert wrong_defaults(TRL, trl_flags()) == []


def wrong_defaults(table: Table, theirs: dict[str, Any]) -> list[tuple[str, str | None, Any]]:
    """Rows whose default is another than that of the release; one that follows a flag has none."""
    return [
        (row.theirs, row.default, theirs[row.theirs])
        for row in table.rows
        if row.theirs in theirs and not agree(row, theirs[row.theirs])
    ]


ASKED = {
    *("data.train_files", "data.val_files", "trainer.project_name", "trainer.experiment_name"),
    *("actor_rollout_ref.model.path", "critic.model.path"),
}
"""Of verl, with a default that is not a user's own: an author's path, or an example's name."""


def agree(row: Row, value: Any) -> bool:
    if row.default is None:  # without a flag of ours, any value that is given is told
        follows = isinstance(value, str) and (value.startswith("${") or value == "???")
        return not row.ours or value is None or follows or row.theirs in ASKED
    try:
        return float(row.default) == float(value)
    except (TypeError, ValueError):
        return row.default == str(value) or (row.default in NOTHING and value is None)


def test_each_default_of_openrlhf_that_differs_is_said_or_kept_for_a_reason() -> None:
    differing = {
        name
        for name, flag in flags_of(Config).items()
        if not (flag.about.no_effect or flag.about.unsupported)
        and any(
            plain(shown(flag.default)) != plain(OPENRLHF_FLAGS[one])
            for one in flag.about.dotted_spellings
        )
    }
    said = {default.ours for default in openrlhf.DEFAULTS}
    assert differing - said - set(openrlhf.KEPT) == set()
    assert said & set(openrlhf.KEPT) == set()


def test_the_dotted_defaults_are_those_of_openrlhf_s_release() -> None:
    flags = flags_of(Config)
    for default in openrlhf.DEFAULTS:
        (dotted,) = flags[default.ours].about.dotted_spellings
        assert OPENRLHF_FLAGS[dotted] == default.dotted, dotted
