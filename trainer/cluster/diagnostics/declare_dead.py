"""Have Ray mark nodes dead.

    python -m trainer.cluster.diagnostics.declare_dead --address HOST:PORT --why SENTENCE NODE…

Ray finds out by itself that a node is dead, once it has missed some health checks. Who knows it
before says so here to Ray's GCS, with the message by which a raylet takes its leave, and actors,
tasks and objects of those nodes are lost for Ray at once. NODE: Ray's id of it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

SECONDS = 10.0
"""For one message."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="+")
    parser.add_argument("--address", required=True)
    parser.add_argument("--why", required=True)
    options = parser.parse_args()
    for node in options.nodes:
        report(options.address, node, options.why)
    return 0


def report(address: str, node: str, why: str) -> None:
    """Raises grpc.RpcError where Ray's GCS at `address` does not take it."""
    # Ray's Python has no call for it.
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc

    death: Any = common_pb2.NodeDeathInfo(
        reason=common_pb2.NodeDeathInfo.Reason.UNEXPECTED_TERMINATION, reason_message=why
    )
    request = gcs_service_pb2.UnregisterNodeRequest(
        node_id=bytes.fromhex(node), node_death_info=death
    )
    with init_grpc_channel(address) as channel:
        gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel).UnregisterNode(
            request, timeout=SECONDS
        )


if __name__ == "__main__":
    sys.exit(main())
