"""Pure: OpenRLHF's flags, as releases before 0.11 spell them (flat) and as 0.11 does (dotted).

The trainer and its stages have the spellings, because their own flags are spelt so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from contract.options import MISTYPED, did_you_mean
from entrypoint.job.recipes.builtin.openrlhf_spellings import OLDER, counterparts, dotted_spellings

BF16, FLASH, PROMPT_LENGTH, LENGTH = "bf16", "flash_attn", "prompt_max_len", "generate_max_len"
IMPLIED = {
    BF16: ("ds.param_dtype", "bf16"),
    FLASH: ("ds.attn_implementation", "flash_attention_2"),
}
"""Switches that 0.9 has replaced by a flag with a value."""
DEFAULT_LENGTH = 1024
"""Tokens of a prompt, and of an answer, before 0.9."""
NEEDLESS = frozenset({"actor_init_on_gpu", "disable_trace_cache", "perf", "torch_compile"})
"""Flags whose loss changes no result."""
OF_LAUNCHERS = frozenset({"local_rank", "use_ms", "help"})
"""Flags that each release has for its launchers, for its model hub and for people."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as it is typed, without its hyphens."""

    name: str
    values: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        if any(value.startswith("--") for value in self.values):
            return (f"--{self.name}={' '.join(self.values)}",)
        return (f"--{self.name}", *self.values)


def flags_in(words: Iterable[str]) -> tuple[tuple[Flag, ...], tuple[str, ...]]:
    """Return the flags with their values, and the words before the first flag."""
    flags: list[Flag] = []
    strange: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags.append(Flag(name, (value,) if equals else ()))
        elif flags:
            flags[-1] = Flag(flags[-1].name, (*flags[-1].values, word))
        else:
            strange.append(word)
    return tuple(flags), tuple(strange)


@cache
def dotted_of(*, ppo: bool) -> Mapping[str, tuple[str, ...]]:
    """Return each flat flag with those of 0.11 that it sets, of train_ppo_ray or of the others."""
    renamed = {} if ppo else {"train_split": ("data.dataset_split",)}
    table = dotted_spellings(ppo=ppo) | renamed
    del table[LENGTH]  # `upgraded` sets two flags for it
    return table


def upgraded(flags: Sequence[Flag], *, ppo: bool) -> tuple[Flag, ...]:
    """Return the flags as 0.11 spells them; an unknown one stays as it is."""
    table = dotted_of(ppo=ppo)
    found: list[Flag] = []
    for flag in flags:
        if flag.name in IMPLIED:
            name, value = IMPLIED[flag.name]
            found.append(Flag(name, (value,)))
        elif flag.name not in NEEDLESS and flag.name not in (PROMPT_LENGTH, LENGTH):
            found += [Flag(name, flag.values) for name in table.get(flag.name, (flag.name,))]
    names = {flag.name for flag in found}
    return (*found, *(one for one in _lengths(flags) if one.name not in names))


def flat(flags: Sequence[Flag], *, ppo: bool) -> tuple[Flag, ...]:
    """Return the flags as releases before 0.11 spell them; an unknown one stays as it is."""
    back = {dotted: name for name, dotted in dotted_of(ppo=ppo).items() if len(dotted) == 1}
    return tuple(Flag(back.get((flag.name,), flag.name), flag.values) for flag in flags)


def instead(flag: Flag, flags: Sequence[Flag], options: Collection[str], *, ppo: bool) -> str:
    """Return what to give for a flag that the installed release lacks: a clause.

    `flags`: all of the command; `options`: those that the release has, with their hyphens.
    """
    given = {one.name: " ".join(one.values) for one in flags}
    found, why = counterparts(flag.name, given, options)
    table = dotted_of(ppo=ppo)
    renamed = (*table.get(flag.name, ()), *(old for old, new in table.items() if flag.name in new))
    found = found or [f"--{name}" for name in renamed if f"--{name}" in options]
    if found:
        return f"give {' and '.join(found)}"
    if why:
        return f"leave it out: {why}"
    return did_you_mean(f"--{flag.name}", sorted(options), "leave it out", cutoff=MISTYPED)


def strange(flags: Iterable[Flag]) -> Iterator[str]:
    """Yield a sentence for each flag that no release of train_ppo_ray has which Rollcall knows.

    As argparse does, a flag may be cut short.
    """
    table = dotted_of(ppo=True)
    renamed = {name for dotted in table.values() for name in dotted}
    known = {*table, *renamed, *IMPLIED, *NEEDLESS, *OLDER, PROMPT_LENGTH, LENGTH, *OF_LAUNCHERS}
    for name in dict.fromkeys(flag.name for flag in flags):
        if name and not any(one.startswith(name) for one in known):
            near = did_you_mean(f"--{name}", sorted(f"--{one}" for one in known), cutoff=MISTYPED)
            hint = f": {near}" if near else ""
            yield f"--{name} is not a flag of the OpenRLHF releases that Rollcall knows{hint}"


def _lengths(flags: Sequence[Flag]) -> Iterator[Flag]:
    """Yield what replaces the limits of prompt and answer: that of both, and of the answer."""
    given = {one.name: one.values[0] for one in flags if one.values}
    prompt, answer = given.get(PROMPT_LENGTH), given.get(LENGTH)
    if prompt is None and answer is None:
        return
    lengths = [prompt or str(DEFAULT_LENGTH), answer or str(DEFAULT_LENGTH)]
    if all(length.isdecimal() for length in lengths):
        yield Flag("data.max_len", (str(sum(map(int, lengths))),))
    yield Flag("rollout.max_new_tokens", (lengths[1],))
