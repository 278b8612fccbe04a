"""Imports all modules that the processes of a run need, for a process that forks those processes.

Ray is left out: its library reads the process's environment variables when it loads, among them the
job of a worker. The packages that Ray imports are included.
"""

from __future__ import annotations

from importlib import import_module

FAMILIES = ("llama", "qwen2", "qwen3")
"""The most common model families. Other families are imported when a model loads."""
OF_RAY = (
    *("aiohttp", "google.protobuf.json_format", "jsonschema", "msgpack", "psutil", "requests"),
    *("uvloop", "yaml"),
)
OF_ACTORS = (
    *("trainer.workers.policy", "trainer.workers.critic", "trainer.workers.reference"),
    *("trainer.workers.ddp", "trainer.workers.reward", "trainer.cluster.rendezvous"),
    *(
        "trainer.checkpoint.replica_store",
        "trainer.checkpoint.writer",
        "trainer.rollout.hf_engine.engine",
    ),
)
OF_MODELS = tuple(f"transformers.models.{name}.modeling_{name}" for name in FAMILIES)
OF_THE_DRIVER = (
    *("contract.journal", "trainer.config.job_checks", "trainer.config.layout"),
    *("trainer.cluster.memory_estimate", "trainer.models.hub", "trainer.rollout.prompts"),
)
"""Not `trainer.training.run` and `.loop`: they import Ray. Large packages of theirs are here."""

for name in (*OF_RAY, *OF_ACTORS, *OF_MODELS, *OF_THE_DRIVER):
    import_module(name)
