"""The error of an actor of a real Ray, as the driver gets it."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray
from ray.exceptions import RayTaskError

from tests.support.ray_nodes import cluster_of
from trainer.cluster.calls import RayPending

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def write(path: str) -> None:
    Path(path).write_text("a checkpoint")


def leave() -> None:
    raise ConnectionResetError("by the peer")


def test_the_error_of_a_file_names_it_and_comes_without_rays_traceback() -> None:
    with cluster_of({"num_cpus": 1}):
        reference = ray.remote(write).remote("/nowhere/policy.safetensors")
        with pytest.raises(OSError, match="No such file") as caught:
            RayPending(reference, "policy", 0).result()
        assert not isinstance(caught.value, RayTaskError)
        assert caught.value.filename == "/nowhere/policy.safetensors"
        with pytest.raises(RayTaskError):
            RayPending(ray.remote(leave).remote(), "policy", 0).result()
