"""The charts of a run's metrics: one table for the page, the report and the model card.

A name in `RUN/metrics.jsonl`, such as `train/kl`, belongs to the first chart whose pattern matches
all of it. A metric of no chart is stored, and drawn nowhere, such as `eval/pass1`, which is
`eval/accuracy` by another name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial

NAMES: Mapping[str, str] = {
    "acc": "accuracy",
    "actor_lr": "learning rate of the policy",
    "critic_aux_loss": "auxiliary loss of the critic",
    "critic_grad_norm": "gradients of the critic",
    "critic_loss": "value loss",
    "critic_lr": "learning rate of the critic",
    "grad_norm": "gradients",
    "is_filter_ratio": "filtered by the engine's ratio",
    "kl": "KL",
    "kl_coef": "weight of the KL",
    "kl_loss": "KL loss",
    "lr": "learning rate",
    "older_tokens": "tokens of older policies",
    "policy_aux_loss": "auxiliary loss of the experts",
    "ppo_clip_ratio": "clipped by PPO",
    "ppo_kl": "KL from the old policy",
    "reward_call_seconds": "reward call",
    "reward_failed": "without a reward",
    "reward_std": "standard deviation",
    "staleness": "mean age",
    "staleness_max": "highest age",
    "step": "whole step",
    "total_length": "prompt and completion",
    "value_clip_ratio": "clipped values",
    "vllm_kl": "KL from the engine",
}
"""Names of metrics for people; any other metric is its own name, with spaces."""
HELD_OUT = "eval"
"""The kind of the metrics of held-out data."""
MOST_SERIES = 8
"""Of one chart: each has a colour of its own. More make another chart."""
WHOLE_STEP = "timing/step"


class Group(StrEnum):
    """Heads charts that are looked at together."""

    LEARNING = "Learning"
    POLICY = "Policy"
    CRITIC = "Critic"
    OPTIMIZER = "Optimizer"
    SAMPLES = "Samples"
    SPEED = "Speed"
    MEMORY = "Memory"
    OTHER = "Other values"
    GPUS = "GPUs"


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    group: Group
    pattern: str
    """Of the names of its metrics."""
    unit: str = ""
    first: str = ""
    """The metric that comes before the others; the model card has it as a column."""
    needs: str = ""
    """Pattern of a metric that the run must have, too; else a later chart shows these."""
    is_each: bool = False
    """Its metrics may have any unit: those of one folder, else each alone, have a chart."""
    better: Callable[[float, float], float] | None = None
    """How the better of two values is found; None: neither is better."""
    is_compared: bool = False
    """Runs are compared by the last values of its metrics."""
    folder: str = ""
    """How the names of all its metrics begin, which the legend leaves out."""

    @property
    def label(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def shows(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None

    def parts(self, own: Sequence[str]) -> list[tuple[Chart, list[str]]]:
        """Return the chart with its metrics, or a chart for each folder of them.

        Another trainer's name is the title as it is: people search for it.
        """
        if not self.is_each:
            return [(self, [*own])]
        of: dict[str, list[str]] = {}
        for name in own:
            kind, _, rest = name.partition("/")
            folder = f"{kind}/{rest.rpartition('/')[0]}/" if "/" in rest else name
            of.setdefault(folder, []).append(name)
        return [(self._of(folder), names) for folder, names in of.items()]

    def _of(self, folder: str) -> Chart:
        kind, _, title = folder.partition("/")
        title = f"held-out {title}" if kind == HELD_OUT else title
        if not folder.endswith("/"):
            return replace(self, title=title, pattern=re.escape(folder))
        pattern = f"{re.escape(folder)}[^/]+"
        return replace(self, title=f"{title}…", pattern=pattern, folder=folder)

    def short(self, name: str) -> str:
        """Return a metric's name for the chart's legend."""
        if self.folder:
            return name.removeprefix(self.folder)
        is_mixed = self.shows("train/" + name.partition("/")[2])
        return title_of(name) if is_mixed else _words(name)


def title_of(name: str) -> str:
    """Pure: return a metric's name for people, such as `held-out accuracy` of `eval/accuracy`."""
    kind = name.partition("/")[0]
    return f"held-out {_words(name)}" if kind == HELD_OUT else _words(name)


def _words(name: str) -> str:
    rest = name.partition("/")[2].removesuffix("_gb")
    return NAMES.get(rest, rest.replace("_", " "))


NO_SHARE = (
    r"(?!(?:.+_)?(?:loss|reward|rewards|length|truncated|entropy|kl|std|margin|lr|norm|ratio|coef"
    r"|return|tokens|zero)(?:_.+)?$)"
)
"""No name of a held-out accuracy: a benchmark has any other name."""

CHARTS = (
    Chart(
        "Reward",
        Group.LEARNING,
        r"train/(?:reward|reward_(?!std$|failed$).+|greedy_reward|acc|format)",
        first="train/reward",
        needs=r"train/(?:greedy_)?reward|train/reward_(?!margin$).+",
        better=max,
        is_compared=True,
    ),
    Chart("Training accuracy", Group.LEARNING, r"train/acc", better=max, is_compared=True),
    Chart(
        "Held-out accuracy",
        Group.LEARNING,
        rf"eval/(?:(?!pass1$){NO_SHARE}[^/]+|.+/acc(?:/.+)?)",
        first="eval/accuracy",
        better=max,
        is_compared=True,
    ),
    Chart(
        "Held-out reward",
        Group.LEARNING,
        r"eval/(?:reward(?:_(?!std$).+)?|mean_reward|.+/reward(?:/.+)?)",
        first="eval/reward",
        better=max,
        is_compared=True,
    ),
    Chart("Loss", Group.LEARNING, r"(?:train|eval)/loss", better=min, is_compared=True),
    Chart(
        "KL from the reference",
        Group.POLICY,
        r"train/kl",
        "nats",
        first="train/kl",
        is_compared=True,
    ),
    Chart("Entropy", Group.POLICY, r"train/entropy", "nats"),
    Chart("Policy loss", Group.POLICY, r"train/(?:policy_loss|kl_loss|policy_aux_loss)"),
    Chart("Clipped tokens", Group.POLICY, r"train/(?:ppo_clip_ratio|is_filter_ratio)", "share"),
    Chart("Ratio to the old policy", Group.POLICY, r"train/ratio"),
    Chart(
        "KL from the old policy and from the engine",
        Group.POLICY,
        r"train/(?:ppo|vllm)_kl",
        "nats",
    ),
    Chart("Weight of the KL", Group.POLICY, r"train/kl_coef"),
    Chart("Value loss", Group.CRITIC, r"train/critic_(?:aux_)?loss"),
    Chart("Values and returns", Group.CRITIC, r"train/(?:values|return)", needs=r"train/values"),
    Chart("Clipped values", Group.CRITIC, r"train/value_clip_ratio", "share"),
    Chart("Norm of the gradients", Group.OPTIMIZER, r"train/(?:critic_)?grad_norm"),
    Chart("Learning rate", Group.OPTIMIZER, r"train/(?:actor_|critic_)?lr"),
    Chart(
        "Length of a completion",
        Group.SAMPLES,
        r"(?:train|eval)/response_length|train/(?:total|greedy)_length",
        "tokens",
        first="train/response_length",
        is_compared=True,
    ),
    Chart("Truncated completions", Group.SAMPLES, r"(?:train|eval)/truncated", "share"),
    Chart(
        "Deviation of the rewards",
        Group.SAMPLES,
        r"train/(?:reward_std|rewards/.+/std)",
    ),
    Chart("Returns", Group.SAMPLES, r"train/return"),
    Chart("Samples without a reward", Group.SAMPLES, r"train/reward_failed", "share"),
    Chart("Age of the samples", Group.SAMPLES, r"train/staleness(?:_max)?", "steps"),
    Chart("Tokens of older policies", Group.SAMPLES, r"train/older_tokens", "share"),
    Chart("Tokens per second", Group.SPEED, r"perf/tokens_per_second"),
    Chart("Time of a step", Group.SPEED, WHOLE_STEP, "seconds"),
    Chart("Time of a step by phase", Group.SPEED, r"timing/.+", "seconds"),
    Chart("Time of a reward call", Group.SPEED, r"perf/reward_call_seconds", "seconds"),
    Chart("Peak memory of the policy", Group.MEMORY, r"memory/policy_.+_gb", "GB"),
    Chart("Peak memory of the critic", Group.MEMORY, r"memory/critic_.+_gb", "GB"),
    Chart("Peak memory", Group.MEMORY, r"memory/.+_gb", "GB"),
    Chart("Other values", Group.OTHER, r"train/.+", is_each=True),
    Chart("Other held-out values", Group.OTHER, r"eval/(?!pass1$).+", is_each=True),
)
"""In the order in which they are drawn within their group."""
GPU_CHARTS = (
    Chart("Use of the GPUs", Group.GPUS, r"busy/.+", "%"),
    Chart("Memory of a GPU", Group.GPUS, r"memory/.+", "GB"),
)

MAIN = ("eval/reward", "eval/accuracy", "train/reward", "eval/loss", "train/loss")
"""The main metric of a run is the first of them that it has."""


@cache
def chart_of(name: str) -> Chart | None:
    """Return the chart of a run's metric; None if it is not drawn."""
    return next((chart for chart in CHARTS if chart.shows(name)), None)


def _place(chart: Chart, name: str) -> tuple[bool, bool, bool, str]:
    """Pure: return the order of a chart's metrics: so the policy has one colour in all charts."""
    return name != chart.first, name.startswith(f"{HELD_OUT}/"), "critic" in name, name


def charts_of(
    names: Iterable[str], charts: Sequence[Chart] = CHARTS
) -> list[tuple[Chart, list[str]]]:
    """Return the charts that these metrics fill, group by group, each with its metrics."""
    every = set(names)
    left, found = sorted(every), list[tuple[Chart, list[str]]]()
    for chart in charts:
        if chart.needs and not any(re.fullmatch(chart.needs, name) for name in every):
            continue
        own = sorted(filter(chart.shows, left), key=partial(_place, chart))
        left = [name for name in left if name not in own]
        for part, names in chart.parts(own):
            for number, begin in enumerate(range(0, len(names), MOST_SERIES), start=1):
                title = f"{part.title} ({number})" if number > 1 else part.title
                found.append((replace(part, title=title), names[begin : begin + MOST_SERIES]))
    order = list(Group)
    return sorted(found, key=lambda one: order.index(one[0].group))
