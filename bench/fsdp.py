"""FSDP2 against ZeRO 1, 2 and 3: updates of three passes on two gloo ranks, on CPUs.

A Qwen2 with random weights, bf16 weights with fp32 masters as each backend offers. Each side has
new processes. `fsdp` gathers weights once an update and keeps them; `fsdp_reshard` frees each layer
after it is used. A row has, for a rank:

- `elements`: of an update through each kind of collective, for each parameter
- `cpu_ms`, `ms`: of an update, the median
- `memory_mb`: the most that the process held above what it held before it built the model
- `checkpoint_stall_s`, `checkpoint_s`: until training can go on, and until the checkpoint is on the
  disk: by `async_save` of torch.distributed.checkpoint, or by the trainer's snapshot and shard
- `compiled`: the same with `torch.compile` of each layer, and the seconds of the first update; or
  the error. `--no-compile` leaves it out.

`uses` counts lines of the trainer that name DeepSpeed or its sharded parameters: what another
backend would have to answer. Value: CPU ms of `fsdp` to those of ZeRO 1. That a CPU computes and
sends is no measure of a GPU: only elements, memory and what compiles carry over.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from bench.result import report
from bench.sides import models
from bench.sides.gloo import on_ranks
from env.http.arguments import positive
from trainer.types import Rank

PASSES, BATCH, TOKENS = 3, 1, 64
SIDES = ("zero1", "zero2", "zero3", "fsdp", "fsdp_reshard")
USES = re.compile(r"deepspeed|\bds_\w+|is_sharded|zero3\.|safe_(get|set)_")


class Side(Protocol):
    """A rank's model with its optimizer."""

    model: Any

    def run(self, **inputs: Any) -> Any: ...

    def backward(self, loss: Any, *, last: bool) -> None: ...

    def step(self) -> object: ...

    def save(self, directory: Path) -> tuple[float, float]:
        """Write this rank's shard. Return seconds until training goes on, and until the end."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--layers", type=positive, default=8)
    parser.add_argument("--hidden", type=positive, default=256)
    parser.add_argument("--updates", type=positive, default=5)
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rc-fsdp-") as directory:
        model = write(Path(directory) / "model", given.layers, given.hidden)
        rows = {}
        for side in given.sides:
            rows[side] = measured(model, side, given.updates, compiles=not given.no_compile)
            print(f"{side}: {rows[side]}", flush=True)
    ratio = cpu_ratio(rows)
    ok = report(
        "fsdp",
        ratio,
        unit="ratio",
        target=1.0,
        better="lower",
        detail={
            "layers": given.layers,
            "hidden": given.hidden,
            "load": round(os.getloadavg()[0], 1),
            "cores": os.cpu_count(),
            "uses": uses(),
            "rows": rows,
        },
        lacking="" if {"fsdp", "zero1"} <= rows.keys() else "the sides zero1 and fsdp",
    )
    return 0 if ok else 1


def cpu_ratio(rows: dict[str, Any]) -> float:
    if not {"fsdp", "zero1"} <= rows.keys():
        return 0.0
    return float(rows["fsdp"]["cpu_ms"] / rows["zero1"]["cpu_ms"])


def write(directory: Path, layers: int, hidden: int) -> Path:
    return models.write(
        directory,
        vocab_size=1_024,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )


def uses() -> dict[str, int]:
    """Return the lines of each module of the trainer that know of DeepSpeed, and their number."""
    root = Path(__file__).parent.parent
    found = {
        str(path.relative_to(root)): len(USES.findall(path.read_text()))
        for path in sorted((root / "trainer").rglob("*.py"))
    }
    named = {path: count for path, count in found.items() if count}
    return {"modules": len(named), "uses": sum(named.values())}


def measured(model: Path, side: str, updates: int, *, compiles: bool) -> dict[str, Any]:
    """Return the figures of the rank that has the larger ones."""
    row = on_ranks(2, of_rank, model, side, updates, False)[0]
    if compiles:
        try:
            compiled = on_ranks(2, of_rank, model, side, updates, True)[0]
        except Exception as error:  # whatever torch raises is the result
            row["compiled"] = {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
        else:
            row["compiled"] = {name: compiled[name] for name in ("cpu_ms", "ms", "first_s", "loss")}
    return row


def of_rank(rank: Rank, model: Path, name: str, updates: int, compiles: bool) -> dict[str, Any]:
    if compiles:  # nothing is compiled before
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(model.parent / f"compiled-{name}")
    before = held()
    side = built(rank, model, name, compiles=compiles)
    parameters = sum(getattr(one, "ds_numel", one.numel()) for one in side.model.parameters())
    began = time.perf_counter()
    update(side, rank, 0)
    first = time.perf_counter() - began
    wall, cpu, losses = [], [], []
    for number in range(1, updates + 1):
        began, spent = time.perf_counter(), time.process_time()
        losses.append(update(side, rank, number))
        wall.append(1e3 * (time.perf_counter() - began))
        cpu.append(1e3 * (time.process_time() - spent))
    row: dict[str, Any] = {
        "parameters": parameters,
        "ms": round(statistics.median(wall), 1),
        "cpu_ms": round(statistics.median(cpu), 1),
        "first_s": round(first, 2),
        "loss": round(losses[-1], 4),
        "memory_mb": round((peak() - before) / 1e6, 1),
    }
    if not compiles:
        from torch import distributed

        row["elements"] = elements(lambda: update(side, rank, 0), parameters)
        with tempfile.TemporaryDirectory(prefix="rc-shard-") as directory:
            where = shared(Path(directory), rank)
            for number in range(2):  # the first one makes buffers and threads
                (where / str(number)).mkdir(exist_ok=True)
                stall, whole = side.save(where / str(number))
            distributed.barrier()  # rank 0 deletes the directory
        row |= {"checkpoint_stall_s": round(stall, 3), "checkpoint_s": round(whole, 3)}
    return row


def elements(work: Callable[[], object], parameters: int) -> dict[str, float]:
    """Return the elements that pass through each kind of collective, for each parameter."""
    from tests.support.collectives import Sent

    sent = Sent()
    with sent:
        work()
    return {kind: round(count / parameters, 2) for kind, count in sorted(sent.elements.items())}


def update(side: Side, rank: Rank, number: int) -> float:
    """Make an update of PASSES passes. Return the sum of their losses."""
    import torch

    generator, total = torch.Generator().manual_seed(1000 * number + rank.index), 0.0
    for turn in range(PASSES):
        tokens = torch.randint(0, 1_000, (BATCH, TOKENS), generator=generator)
        loss = side.run(input_ids=tokens, labels=tokens, use_cache=False).loss / PASSES
        side.backward(loss, last=turn == PASSES - 1)
        total += float(loss.detach())
    side.step()
    return total


def built(rank: Rank, model: Path, name: str, *, compiles: bool) -> Side:
    if name.startswith("zero"):
        return Sharded(rank, model, int(name[-1]), compiles=compiles)
    return Fully(rank, model, reshards=name == "fsdp_reshard", compiles=compiles)


class Sharded:
    """The trainer's own strategy."""

    def __init__(self, rank: Rank, model: Path, stage: int, *, compiles: bool) -> None:
        import torch

        from trainer.checkpoint.staging import StagingBuffers
        from trainer.config.options.parallelism import Sharding
        from trainer.models import zero3
        from trainer.models.loading import load_causal_lm
        from trainer.workers.learner import _strategy_of

        sharding = Sharding(zero_stage=stage)
        made = models.learner(
            model, samples=BATCH, longest=TOKENS, mixed_precision=True, sharding=sharding
        )
        with zero3.split(sharding, rank):
            self.model = load_causal_lm(
                str(model), torch.bfloat16 if made.rounds_at_load else torch.float32
            )
        if compiles:
            compile_layers(self.model)
        self._rank, self._staging = rank, StagingBuffers()
        self._strategy = _strategy_of(self.model, self.model, made, rank)
        self.run, self.backward = self._strategy.run, self._strategy.backward

    def step(self) -> float:
        return self._strategy.step(lambda norm: None)

    def save(self, directory: Path) -> tuple[float, float]:
        from trainer.checkpoint import state

        began = time.perf_counter()
        self._staging.take(1, (), self._strategy.state())
        stall = time.perf_counter() - began
        state.save(directory, "policy", self._staging.of(1).state(), self._rank)
        return stall, time.perf_counter() - began


class Fully:
    """FSDP2: each layer, and what is left, are units that are gathered together."""

    def __init__(self, rank: Rank, model: Path, *, reshards: bool, compiles: bool) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        from trainer.models.loading import load_causal_lm

        self.model = load_causal_lm(str(model), torch.float32)
        if compiles:
            compile_layers(self.model)
        units: dict[str, Any] = {
            "mesh": init_device_mesh("cpu", (rank.world,)),
            "reshard_after_forward": reshards,
            "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        }
        for layer in self.model.model.layers:
            fully_shard(layer, **units)
        fully_shard(self.model, **units)
        self.model.train()
        self._reshards = reshards
        self._adam = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    def run(self, **inputs: Any) -> Any:
        return self.model(**inputs)

    def backward(self, loss: Any, *, last: bool) -> None:
        self.model.set_is_last_backward(last)
        self.model.set_requires_gradient_sync(last)
        self.model.set_reshard_after_backward(last or self._reshards)
        loss.backward()

    def step(self) -> float:
        from torch.nn.utils import clip_grad_norm_

        norm: Any = clip_grad_norm_(self.model.parameters(), 1.0)
        self._adam.step()
        self._adam.zero_grad()
        return float(norm.full_tensor())

    def save(self, directory: Path) -> tuple[float, float]:
        from torch.distributed.checkpoint.state_dict import get_state_dict
        from torch.distributed.checkpoint.state_dict_saver import async_save

        began = time.perf_counter()
        weights, moments = get_state_dict(self.model, self._adam)
        written: Any = async_save({"model": weights, "optim": moments}, checkpoint_id=directory)
        stall = time.perf_counter() - began
        written.result()
        return stall, time.perf_counter() - began


def compile_layers(model: Any) -> None:
    for layer in model.model.layers:
        layer.compile()


def shared(directory: Path, rank: Rank) -> Path:
    """Return the directory of rank 0 on each rank."""
    from torch import distributed

    found = [str(directory)]
    distributed.broadcast_object_list(found, src=0)
    return Path(found[0])


def held() -> int:
    """Return the bytes that this process holds now."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    return 0


def peak() -> int:
    """Return the most bytes that this process has held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main())
