"""The tables in docs/ that are made from the code: variables, exit codes, losses, metrics, …

Links to functions of `examples/ppo_by_hand.py`, too: each has the function's line.

The spines of docs/code-walks.md, and what it says of each file. `python -m tests.support.doc_pages`
renews them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from contract.exit_codes import MEANINGS
from contract.options import markdown_table
from contract.resources import GPU_MODELS
from entrypoint.cluster.prometheus import METRICS
from entrypoint.config.settings import declared
from entrypoint.run.failure_classes import FAILURES
from tests.support.repository import ROOT
from tests.support.variable_groups import GROUPS, nodes_of
from tests.support.walks import page as walks
from trainer.algorithms import policy_loss_formulas
from trainer.config.config import Config
from trainer.config.parity import default, effect, markdown, with_tables
from trainer.config.policy_losses import POLICY_LOSSES
from trainer.config.schema import Declared, flags_of
from trainer.supervised.options import StageFlags
from trainer.supervised.stages import STAGES

SUPERVISED = ROOT / "docs" / "supervised.md"
ALGORITHMS, BY_HAND = ROOT / "docs" / "algorithms.md", ROOT / "examples" / "ppo_by_hand.py"
PREFLIGHT, REFERENCE = ROOT / "docs" / "preflight.md", ROOT / "docs" / "reference.md"
RECOVERY, MONITORING = ROOT / "docs" / "recovery.md", ROOT / "docs" / "monitoring.md"
MODELS = (
    *("model", "BF16, TFLOP/s", "memory, GB/s", "all-reduce in a node, GB/s", "PCIe generation"),
    "links",
)
METRICS_COLUMNS = ("metric{labels}", "value")
LOSSES = (
    *("`--policy_loss_type`", "one ρ for each", "`--loss_aggregation`"),
    *("`--is_correction_level` gives", "flags that it reads"),
)
FORMULAS = ("`--policy_loss_type`", "loss of a token", "source")
EXIT_CODES = ("exit code", "meaning")
FAILURE_COLUMNS = ("class", "evidence", "what Rollcall does")
VARIABLES = ("variable", "on", "default", "meaning")
AFTER_VARIABLES = "### Variables that Rollcall sets\n"


def models() -> str:
    """The table of GPU models that the checks know."""
    rows = (
        (
            *(of.name, f"{of.tflops:g}", f"{of.memory_gbs:g}"),
            *(str(number or "–") for number in (of.all_reduce_gbs, of.pcie_generation, of.links)),
        )
        for of in GPU_MODELS
    )
    return markdown_table(MODELS, rows)


def variables() -> str:
    """The tables of variables by group, from the declarations of the settings."""
    return "\n".join(f"### {group}\n\n{_variables_of(names)}" for group, names in GROUPS.items())


def _variables_of(fields: Sequence[str]) -> str:
    abouts = {field: declared()[field].about for field in fields}
    rows = (
        (
            " or ".join(f"`{name}`" for name in of.names),
            *(nodes_of(field), of.shown_default, of.help + _least(field)),
        )
        for field, of in abouts.items()
    )
    return markdown_table(VARIABLES, rows)


def _least(field: str) -> str:
    """The sentence on the shortest duration that a variable takes, if it has one of its own."""
    least = declared()[field].about.at_least
    return f" At least {least:g}s." if declared()[field].kind is float and least else ""


def metrics() -> str:
    """The table of the head's metrics."""
    rows = ((f"`rollcall_{name}{_labels(of.labels)}`", of.meaning) for name, of in METRICS.items())
    return markdown_table(METRICS_COLUMNS, rows)


def _labels(names: tuple[str, ...]) -> str:
    return f"{{{','.join(names)}}}" if names else ""


def losses() -> str:
    """The table of policy losses."""
    rows = (
        (
            *(f"`{name}`", loss.level, ", ".join(loss.aggregations), loss.correction),
            ", ".join(f"`--{flag}`" for flag in sorted(loss.settings)),
        )
        for name, loss in POLICY_LOSSES.items()
    )
    return markdown_table(LOSSES, rows)


def formulas() -> str:
    """The table of the policy losses' formulas."""
    rows = (
        (f"`{name}`", _formula(policy_loss_formulas.FORMULAS[name].__doc__), loss.paper)
        for name, loss in POLICY_LOSSES.items()
    )
    return markdown_table(FORMULAS, rows)


def _formula(doc: str | None) -> str:
    """Return the formula of a docstring's first line: what follows "Return"."""
    assert doc is not None
    return doc.partition("\n")[0].removeprefix("Return ").removesuffix(".")


def with_losses(page: str) -> str:
    """`page` with the present tables of policy losses."""
    return _with_table(_with_table(page, FORMULAS, formulas()), LOSSES, losses())


def exit_codes() -> str:
    """The table of exit codes."""
    return markdown_table(EXIT_CODES, ((f"{code:d}", of.text) for code, of in MEANINGS.items()))


def failures() -> str:
    """The table of failure classes."""
    rows = ((f"`{name}`", row.evidence, row.answer) for name, row in FAILURES.items())
    return markdown_table(FAILURE_COLUMNS, rows)


def with_models(page: str) -> str:
    """`page`, which ends with the table of models, with the present table."""
    return page.partition(markdown_table(MODELS, ()))[0] + models()


def with_variables(page: str) -> str:
    """`page` with the present tables of variables and exit codes."""
    page = _with_table(page, EXIT_CODES, exit_codes())
    before, _, rest = page.partition(f"### {next(iter(GROUPS))}\n")
    return f"{before}{variables()}\n{AFTER_VARIABLES}{rest.partition(AFTER_VARIABLES)[2]}"


def with_failures(page: str) -> str:
    """`page` with the present table of failure classes."""
    return _with_table(page, FAILURE_COLUMNS, failures())


def with_metrics(page: str) -> str:
    """`page` with the present table of metrics."""
    return _with_table(page, METRICS_COLUMNS, metrics())


def with_lines(page: str) -> str:
    """`page`, whose links to functions of `ppo_by_hand.py` have the functions' lines."""
    starts = re.compile(r"def (\w+)\(")
    lines = enumerate(BY_HAND.read_text().splitlines(), 1)
    places = {found[1]: number for number, line in lines if (found := starts.match(line))}
    return re.sub(
        rf"(\[`(\w+)`\]\([./\w]*{BY_HAND.name}#L)\d+",
        lambda link: f"{link[1]}{places[link[2]]}",
        page,
    )


def _with_table(page: str, columns: Sequence[str], table: str) -> str:
    before, _, rest = page.partition(markdown_table(columns, ()))
    _, _, after = rest.partition("\n\n")  # a table ends at the first empty line
    return f"{before}{table}\n{after}"


def of_stages() -> dict[str, list[Declared]]:
    """The flags of all stages by concern, and those that a stage has besides or otherwise.

    What `shared_with_ppo` has is left out.
    """
    common, shared = flags_of(StageFlags), shared_with_ppo()
    groups: dict[str, list[Declared]] = {}
    for name, flag in common.items():
        if name not in shared:
            groups.setdefault(f"all stages: {flag.about.group}", []).append(flag)
    for stage, flags in STAGES.items():
        groups[f"only `{stage}`"] = [
            flag
            for name, flag in flags_of(flags).items()
            if name not in common or _row_of(flag) != _row_of(common[name])
        ]
    return groups


def shared_with_ppo() -> dict[str, str]:
    """The flags of all stages with PPO's default and effect → the dotted spelling, if not PPO's."""
    ppo = flags_of(Config)
    shared = {}
    for name, flag in flags_of(StageFlags).items():
        if name in ppo and _meaning(flag) == _meaning(ppo[name]):
            dotted = flag.about.dotted_spellings
            other = dotted != ppo[name].about.dotted_spellings
            spelled = ", ".join(f"`{one}`" for one in dotted) or "none"
            shared[name] = spelled if other else ""
    return shared


def _row_of(flag: Declared) -> object:
    return flag.about.dotted_spellings, _meaning(flag)


def _meaning(flag: Declared) -> object:
    return default(flag.default), effect(flag.about)


def with_stages(page: str) -> str:
    """`page` with the present tables of the stages' flags."""
    shared = shared_with_ppo()
    equal = ", ".join(f"`{name}`" for name, spelled in shared.items() if not spelled)
    other = ((f"`{name}`", spelled) for name, spelled in shared.items() if spelled)
    same = (
        f"These flags are the same as [PPO's](flags.md): {equal}.\n\n"
        "These have PPO's default and effect, and another dotted spelling:\n\n"
        f"{markdown_table(('flag', 'dotted spelling'), other)}\n"
    )
    return with_tables(page, same + markdown(of_stages()))


if __name__ == "__main__":
    ALGORITHMS.write_text(with_lines(ALGORITHMS.read_text()))
    SUPERVISED.write_text(with_stages(SUPERVISED.read_text()))
    PREFLIGHT.write_text(with_models(PREFLIGHT.read_text()))
    REFERENCE.write_text(with_variables(REFERENCE.read_text()))
    ALGORITHMS.write_text(with_losses(ALGORITHMS.read_text()))
    MONITORING.write_text(with_metrics(MONITORING.read_text()))
    RECOVERY.write_text(with_failures(RECOVERY.read_text()))
    walks.PAGE.write_text(walks.with_clauses(walks.with_spines(walks.PAGE.read_text())))
