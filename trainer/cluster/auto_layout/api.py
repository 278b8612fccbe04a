"""Chooses the flags of the layout that the user did not give, so that every GPU has work.

The head adds the flags to the job after each roll call; `rollcall plan` shows them. The choice is a
function of the flags, the nodes and the sizes of the models. Roles share GPUs if they fit, since on
GPUs of their own they would wait for one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contract.resources import NodeResources, gib
from trainer.cluster import memory_estimate
from trainer.cluster.auto_layout import kernels
from trainer.cluster.auto_layout.arrangements import LAYOUT_FLAGS, SIZED
from trainer.cluster.auto_layout.memory_fit import ENGINE_WEIGHTS, FILLED
from trainer.cluster.auto_layout.savings import PASSES, SAVERS, TOKENS
from trainer.cluster.auto_layout.search import Candidate, LayoutSearch
from trainer.cluster.model_size import known_size
from trainer.config.config import declared_flags
from trainer.config.layout import Role, of_a_rank, shared_sample_faults

if TYPE_CHECKING:
    from trainer.cluster.memory_estimate import SizeOf
    from trainer.config.config import Config

FREE = ("--zero_stage", "1")
"""Saves memory, and moves no more bytes than stage 0."""
LENGTHS = ("prompt_max_len", "generate_max_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChoice:
    """Flags to add to those that the user gave."""

    words: tuple[str, ...] = ()
    """As on a command line."""
    reasons: tuple[str, ...] = ()
    """A sentence for each decision."""
    faults: tuple[str, ...] = ()
    """Why no layout fits, and what to lower."""


def complete(
    config: Config, given: Set[str], offers: Sequence[NodeResources], size_of: SizeOf = known_size
) -> LayoutChoice:
    """Return the flags that complete those in `given`; none on nodes without GPUs.

    Also none if the given flags have no room: then `resource_plan.shortfalls` says why, unless
    --ring_attn_size divides no layout.
    """
    nodes = [offer for offer in offers if offer.gpus]
    search = LayoutSearch.of(config, given, nodes, size_of) if nodes else None
    best = search.best() if search else None
    if search is None or best is None:
        return LayoutChoice(faults=tuple(map(str, shared_sample_faults(config))))
    if not given & LAYOUT_FLAGS and (best.use.gpu.filled > 1 or best.use.host.filled > 1):
        return LayoutChoice(faults=(_fault(search, best),))
    flags = _additions(best, given)
    pairs = ((f"--{name}", str(value).lower()) for name, value in flags.items())
    words = tuple(word for pair in pairs for word in pair)
    return LayoutChoice(words=words, reasons=tuple(_reasons(search, best, flags)))


def warnings(words: Sequence[str], given: Set[str]) -> tuple[str, ...]:
    """Return a warning if `words` save memory in a layout that the user decided by flags."""
    pairs = zip(words[::2], words[1::2], strict=True)
    slower = (pair for pair in pairs if pair != FREE and pair[0].removeprefix("--") in SAVERS)
    added = [" ".join(pair) for pair in slower]
    if not added or not given & SIZED:
        return ()
    return (
        f"the layout of your flags gets {', '.join(added)} to save GPU memory, which may slow the "
        "run; a flag that you give keeps its value",
    )


def _additions(best: Candidate, given: Set[str]) -> dict[str, Any]:
    """Return the flags that were not given and differ from their defaults."""
    declared = declared_flags()
    names = [*best.flags, "vllm_enable_sleep", *(() if "bf16" in given else ("param_dtype",))]
    names += kernels.KERNELS
    values = {name: declared[name].value_in(best.config) for name in names if name not in given}
    return {name: value for name, value in values.items() if value != declared[name].default}


def _reasons(search: LayoutSearch, best: Candidate, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yields a sentence for each decision that the user left open."""
    yield from _of_sharing(search, best)
    if best.arrangement.slots < search.wish.gpus and not search.wish.given & SIZED:
        yield "some GPUs have no work, because no layout of more GPUs fits"
    yield from _of_sizes(search, best)
    yield from _of_memory(search, best, flags)
    if size := flags.get("vllm_tensor_parallel_size"):
        count = search.wish.value("vllm_num_engines")
        why = f"so that --vllm_num_engines {count} uses more GPUs" if count else "for its weights"
        yield f"an engine has {size} GPUs, {why}"
    if "vllm_enable_sleep" in flags:
        yield "engines sleep while the models train, because they share GPUs"
    if "param_dtype" in flags:
        yield (
            "GPUs compute in bf16, and the optimizer keeps the weights in fp32; --param_dtype fp32 "
            "computes in fp32"
        )
    if computed := kernels.reason(best.config, flags.keys()):
        yield computed


def _of_sharing(search: LayoutSearch, best: Candidate) -> Iterator[str]:
    given, config = search.wish.given, search.wish.config
    if "colocate_all_models" in given:
        return
    if best.arrangement.shared:
        yield "all models and engines share the GPUs: they fit, and no GPU waits for another role"
    elif config.async_train:
        yield "engines have GPUs of their own, because training is asynchronous"
    elif not given & LAYOUT_FLAGS:
        yield (
            "engines have GPUs of their own, and wait while the models train, as the models do "
            "while engines write: if all roles shared GPUs, some GPUs would never have work, or "
            "too little memory"
        )


def _of_sizes(search: LayoutSearch, best: Candidate) -> Iterator[str]:
    sizes = search.check.sizes
    if unknown := [model for model, size in sizes.items() if size is None]:
        saved = "" if search.wish.given & SIZED else ", so the layout saves memory"
        yield f"the size of {', '.join(unknown)} is unknown{saved}"
    if named := [model for model, size in sizes.items() if size and size.by_name]:
        yield f"the size of {', '.join(named)} is taken from its name"
    if not all(node.gpu_memory for node in search.wish.offers):
        yield f"the GPUs' memory is unknown, and taken as {gib(best.use.gpu.memory)}"


def _of_memory(search: LayoutSearch, best: Candidate, flags: Mapping[str, Any]) -> Iterator[str]:
    use = best.use.gpu
    if not use.need:
        return
    yield f"by the estimate a GPU needs {gib(use.need)} of its {gib(use.memory)}"
    if use.filled > FILLED:
        yield f"that may not fit: {_lower(best)}, or leave flags of the layout out"
    savers = [name for name in flags if name in SAVERS]
    plain = search.without(best, savers).gpu
    if plain.need > use.need:
        names = ", ".join(f"--{name}" for name in savers)
        yield f"without {names} a GPU would need {gib(plain.need)}"


def _fault(search: LayoutSearch, best: Candidate) -> str:
    """Return why no layout fits, and what would help."""
    use = best.use.gpu
    more = ["LoRA adapters by --lora_rank", "a smaller model"]
    short = search.check.lacking_on_host(best.config, best.found, more)
    if use.filled > 1 or short is None:
        tried = [
            (_lower(best), dict.fromkeys((*_passes(best), *LENGTHS), 1)),
            ("train LoRA adapters by --lora_rank", {"lora_rank": 16}),
        ]
        ways = [way for way, values in tried if way and _helps(search, best, values)]
        ways += [*_shared_samples(search, best), "take a smaller model", _more_gpus(search, best)]
        short = f"a GPU needs {gib(use.need)} and has {gib(use.memory)}: {_or(ways)}"
    return (
        f"no layout fits: by the estimate {short}. A layout that you give by flags, such as "
        "--actor_num_gpus_per_node, starts whatever this estimate says"
    )


def _helps(search: LayoutSearch, best: Candidate, flags: Mapping[str, Any]) -> bool:
    """Return whether the fullest GPU would need less with these values of flags."""
    use = search.check.of(best.config.with_flags(flags), best.found).gpu
    return use.need < best.use.gpu.need


def _shared_samples(search: LayoutSearch, best: Candidate) -> Iterator[str]:
    """Yields that GPUs can share samples, with the fewest that fit; nothing if none do."""
    config = best.config
    for ranks in range(config.ring_attn_size + 1, config.policy_ranks + 1):
        shared = config.with_flags({"ring_attn_size": ranks})
        heads = search.check.sizes[config.pretrain]
        divided = heads is None or heads.heads % ranks == 0
        longest = of_a_rank(shared, Role.POLICY, config.longest_sample)
        shared = shared.with_flags({TOKENS: longest})
        fits = search.check.of(shared, best.found).gpu.filled <= FILLED
        if divided and fits and not any(shared_sample_faults(shared)):
            yield f"let GPUs share each sample by --ring_attn_size {ranks}"
            return


def _more_gpus(search: LayoutSearch, best: Candidate) -> str:
    """Return how other GPUs would help: more of them, if their models are divided over them."""
    if best.use.gpu.role == Role.REWARD:
        return "take GPUs with more memory, since each process of the reward has whole models"
    if best.use.gpu.role == Role.ENGINE or _engines_are_too_small(search, best):
        size = search.wish.tensor_parallel[-1]
        return f"take GPUs with more memory, since an engine has {size} GPUs of a node at most"
    return "add GPUs"


def _engines_are_too_small(search: LayoutSearch, best: Candidate) -> bool:
    """Return whether no engine holds the weights, even with as many GPUs of its own as it takes."""
    config, found = best.config, best.found
    pool = found.layout.pool_of(Role.ENGINE)
    made = memory_estimate.of_pool(config, found.layout, pool, search.check.sizes.get)
    if made is None or not made.engine_share:
        return False
    ranks = config.vllm.tensor_parallel_size / search.wish.tensor_parallel[-1]
    share = config.vllm.gpu_memory_utilization or memory_estimate.ENGINE_ALONE
    return made.engine_weights * ranks / (share * ENGINE_WEIGHTS) > best.use.gpu.memory


def _lower(best: Candidate) -> str:
    declared = declared_flags()
    values = {name: declared[name].value_in(best.config) for name in (*_passes(best), *LENGTHS)}
    return "lower " + _or([f"--{name} ({value})" for name, value in values.items() if value > 1])


def _passes(best: Candidate) -> Sequence[str]:
    return (TOKENS,) if best.config.train.use_dynamic_batch else PASSES


def _or(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
