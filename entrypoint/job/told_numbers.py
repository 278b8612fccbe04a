"""Pure: the numbers that a line of another trainer's log tells, by their names there."""

from __future__ import annotations

import re
from collections.abc import Mapping

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
TYPE = r"(?:(?:np|numpy|torch|jnp)\.)?[a-z]\w*\("
"""Before a number of numpy or torch: np.float64(, tensor(."""
NAME = r"\w[^'\"\n]{0,199}"
VALUE = (
    rf"(?P<quote>['\"]?)(?P<type>{TYPE})?(?P<number>{NUMBER})(?(type)(?:,[^()]*)?\))(?P=quote)"
    r"|'[^'\n]*'|\"[^\"\n]*\"|None|null|True|False|true|false|-?[Nn]a[Nn]|-?inf|-?Infinity"
)
PAIR = re.compile(rf"\s*(?P<q>['\"])(?P<name>{NAME}?)(?P=q)\s*:\s*(?:{VALUE})\s*(?P<end>,|\}}$)")
"""One item of a dict. A text, None and NaN are no numbers, and end no dict."""
DASHED = re.compile(
    rf"(?:^| - )(?P<name>\w[\w/@.()+-]*):(?:{TYPE})?(?P<number>{NUMBER})\)?(?= - |$)"
)
"""One metric of a line of verl's console logger."""


def of_dict(text: str) -> dict[str, float]:
    """Return the numbers of the flat dict or JSON object that ends a line; {} without one.

    A Trainer prints it behind a progress bar that has no end of its own.
    """
    if not text.endswith("}") or (begin := text.rfind("{")) < 0:
        return {}
    place, found = begin + 1, dict[str, float]()
    while pair := PAIR.match(text, place):
        if pair["number"] is not None:
            found[pair["name"]] = float(pair["number"])
        if pair["end"] != ",":
            return found
        place = pair.end()
    return {}


def of_dashed(text: str) -> dict[str, float]:
    """Return the numbers of a line such as `step:7 - actor/lr:1e-06 - critic/rewards/mean:0.5`."""
    begin = text.find("step:")
    if begin < 0 or " - " not in text:
        return {}
    return {one["name"]: float(one["number"]) for one in DASHED.finditer(text[begin:])}


def of_groups(groups: Mapping[str, float]) -> dict[str, float]:
    """Return what a pattern's groups tell of a step, by the names of metrics."""
    return {name: groups[group] for group, name in GROUPS.items() if group in groups}


GROUPS: Mapping[str, str] = {
    "reward": "reward",
    "kl": "kl",
    "loss": "loss",
    "eval": "eval_accuracy",
    "tokens_per_second": "perf/tokens_per_second",
    "step_seconds": "timing/step",
}
"""Group of a step's pattern → the name of its metric."""
