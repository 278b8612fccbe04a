"""Flags of older releases as 0.11 spells them: its own parser takes them and their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from entrypoint.job.recipes.openrlhf import flags as openrlhf_flags
from entrypoint.job.recipes.openrlhf.flags import Flag, flags_in
from tests.support.openrlhf_parser import options, parsed, value
from tests.support.repository import DATA
from trainer.config.translate.openrlhf import OLD as OLD_TABLE

OLD = {
    line.split("\t")[0]: line.split("\t")[1].split()
    for line in (DATA / "openrlhf-flat-flags.tsv").read_text().splitlines()[1:]
}
"""Flags of the releases 0.6.4, 0.8.0, 0.9.10 and 0.10.4 → programs that have them."""
PROGRAMS = ("ppo_ray", "sft", "rm", "dpo")
NEEDED = {"ppo_ray": ["--reward.remote_url", "u", "--vllm.num_engines", "8"]}


def upgraded(program: str, *words: str) -> list[str]:
    flags, strange = flags_in(words)
    assert strange == ()
    found = openrlhf_flags.upgraded(flags, ppo=program == "ppo_ray")
    return [word for flag in found for word in flag.words]


def taken(program: str, words: Sequence[str]) -> dict[str, Any]:
    return parsed(f"train_{program}", [*NEEDED.get(program, []), *words])


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_flag_of_older_releases_has_those_of_0_11_or_is_known_to_have_none(
    program: str,
) -> None:
    known = options(f"train_{program}")
    own = [name for name, programs in OLD.items() if program in programs]
    assert len(own) > 60
    for name in own:
        found = openrlhf_flags.upgraded([Flag(name, ("1",))], ppo=program == "ppo_ray")
        unknown = [flag.name for flag in found if flag.name not in known]
        if unknown or name in openrlhf_flags.NEEDLESS:
            assert [flag.name for flag in found] in ([], [name])
            assert name not in known
            assert not unknown or OLD_TABLE.of(name), "translate says what is instead"
        else:
            assert found, name


def test_values_arrive_where_the_older_release_had_them() -> None:
    words = "--adam_betas 0.8 0.9 --l2 0.1 --max_norm 2 --ref_reward_offload --learning_rate 1"
    row = taken("ppo_ray", upgraded("ppo_ray", *words.split()[:-2]))
    for key, expected in {
        "actor.adam.betas": [0.8, 0.9],
        "critic.adam.betas": [0.8, 0.9],
        "critic.adam.weight_decay": 0.1,
        "critic.max_norm": 2,
        "ref.offload": True,
        "reward.offload": True,
    }.items():
        assert value(row, key) == expected
    words = "--pretrain m --learning_rate 9e-6 --adam_eps 1e-7 --ipo"
    row = taken("dpo", upgraded("dpo", *words.split()))
    assert value(row, "model.model_name_or_path") == value(row, "ref.model_name_or_path") == "m"
    assert (value(row, "adam.lr"), value(row, "adam.eps")) == (9e-6, 1e-7)
    assert value(row, "model.ipo_enable")


@pytest.mark.parametrize(
    ("words", "lengths"),
    [
        ("--prompt_max_len 512 --generate_max_len 256", (768, 256)),
        ("--generate_max_len 256", (1280, 256)),
        ("--prompt_max_len 512 --max_len 4096 --max_new_tokens 100", (4096, 100)),
        ("--max_len 4096", (4096, None)),
    ],
)
def test_the_limits_of_prompt_and_answer(words: str, lengths: tuple[int, int | None]) -> None:
    row = taken("ppo_ray", upgraded("ppo_ray", *words.split()))
    assert (value(row, "data.max_len"), value(row, "rollout.max_new_tokens")) == lengths


def test_a_dotted_flag_has_its_old_spelling_back() -> None:
    flags = (Flag("ckpt.path", ("c",)), Flag("ds.enable_sleep"), Flag("new.flag", ("1",)))
    assert openrlhf_flags.flat(flags, ppo=True) == (
        Flag("ckpt_path", ("c",)),
        Flag("deepspeed_enable_sleep"),
        Flag("new.flag", ("1",)),
    )
