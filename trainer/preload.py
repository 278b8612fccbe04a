"""All that the processes of a run import, in one import: for a process that forks them.

All but Ray and what imports it: as its library is loaded, it reads the variables of its process,
among them the job that a worker belongs to. What Ray itself imports is here.
"""

from __future__ import annotations

from importlib import import_module

OF_RAY = (
    *("aiohttp", "google.protobuf.json_format", "jsonschema", "msgpack", "psutil", "requests"),
    *("uvloop", "yaml"),
)
OF_ACTORS = (
    *("trainer.actors.policy", "trainer.actors.critic", "trainer.actors.reference"),
    *("trainer.actors.reward", "trainer.actors.rendezvous", "trainer.engines.hf"),
    *("trainer.checkpoint.holder", "trainer.checkpoint.write"),
)
OF_THE_DRIVER = (
    *("trainer.checks", "trainer.data", "trainer.engine_choice", "trainer.events", "trainer.hub"),
    *("trainer.layout", "trainer.loop", "trainer.memory", "trainer.model_reward", "trainer.team"),
)

for name in (*OF_RAY, *OF_ACTORS, *OF_THE_DRIVER):
    import_module(name)
