"""All that the processes of a run import, in one import: for a process that forks them.

All but Ray and what imports it: as its library is loaded, it reads the variables of its process,
among them the job that a worker belongs to. What Ray itself imports is here.
"""

from __future__ import annotations

from importlib import import_module

FAMILIES = ("llama", "qwen2", "qwen3")
"""Those that are trained most; a model of another is imported as it is loaded."""
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
    *(
        "trainer.config.installed",
        "trainer.rollout.prompts",
        "trainer.run",
        "contract.journal",
        "trainer.models.hub",
    ),
    *(
        "trainer.config.layout",
        "trainer.loop",
        "trainer.cluster.memory_estimate",
        "trainer.rollout.rewards",
        "trainer.workers.groups",
    ),
)

for name in (*OF_RAY, *OF_ACTORS, *OF_MODELS, *OF_THE_DRIVER):
    import_module(name)
