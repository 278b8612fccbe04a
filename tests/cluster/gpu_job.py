"""A job with one actor for each GPU: it writes which variables each of them and the driver see."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import ray

from contract.run_dir import RunFiles

AMD_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class Seen:
    def variables(self) -> dict[str, str]:
        return {name: os.environ[name] for name in AMD_VARIABLES if name in os.environ}


def main() -> int:
    run = RunFiles(Path(os.environ["ROLLCALL_RUN_DIR"]))
    ray.init(address="auto", log_to_driver=False)
    actor = ray.remote(num_gpus=1, num_cpus=0)(Seen)
    nodes = {
        node["NodeName"]: [
            actor.options(label_selector={"ray.io/node-id": node["NodeID"]}).remote()
            for _ in range(int(node["Resources"].get("GPU", 0)))
        ]
        for node in ray.nodes()
    }
    seen = {
        name: ray.get([there.variables.remote() for there in actors])
        for name, actors in nodes.items()
    }
    (run.root / "seen.json").write_text(json.dumps({"driver": [Seen().variables()], **seen}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
