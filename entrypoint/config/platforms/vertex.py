"""Vertex AI: a replica of a custom training job with several worker pools.

Source: docs.cloud.google.com, "Distributed training", format of CLUSTER_SPEC and its example.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from contract.options import ParseError
from entrypoint.config.platforms.facts import (
    NOT_THE_JSON,
    Facts,
    Platform,
    Source,
    without_port,
)

CLUSTER_SPEC = "CLUSTER_SPEC"


def _of_replicas(fact: Callable[[list[str], str], Any]) -> Callable[[str], Any]:
    """Reads a fact from the JSON of all replicas, in the order of the pools, and this replica."""

    def parse(raw: str) -> Any:
        try:
            spec = json.loads(raw)
            pools, task = spec["cluster"], spec["task"]
            replicas = [replica for pool in sorted(pools) for replica in pools[pool]]
            index = int(task["index"])
            if len(set(replicas)) < len(replicas) or index < 0:
                raise ValueError
            return fact(replicas, pools[task["type"]][index])
        except NOT_THE_JSON:
            remedy = "give the value that Vertex AI sets"
            raise ParseError("does not name the replicas and this one", remedy) from None

    return parse


VERTEX = Platform(
    name="vertex",
    marks=(CLUSTER_SPEC,),
    sources=(
        Source("rank", CLUSTER_SPEC, _of_replicas(lambda all_of_them, own: all_of_them.index(own))),
        Source("nodes", CLUSTER_SPEC, _of_replicas(lambda all_of_them, _: len(all_of_them))),
        Source(
            "head_address",
            CLUSTER_SPEC,
            _of_replicas(lambda all_of_them, _: without_port(all_of_them[0])),
        ),
    ),
    remedies={"nodes": "set EXPECTED_WORKERS on the head to the replicas that run this image"},
)


def replica(environ: Mapping[str, str]) -> Facts | None:
    """The first replica of the first pool is the head. Other programs use CLUSTER_SPEC too."""
    return VERTEX.read(environ) if "workerpool" in environ.get(CLUSTER_SPEC, "") else None
