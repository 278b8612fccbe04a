"""What ends the head: the attacks after all others."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from tests.cluster.attack.attacks import Attack, Boundary, by
from tests.cluster.attack.targets import Scene


@by(Boundary.NETWORK)
def whole(scene: Scene) -> Iterator[str]:
    """What the other attacks have left: tracebacks, nodes that were lost."""
    said = scene.head.said()
    if "Traceback" in said:
        yield f"a traceback on the console: {said[said.index('Traceback') :][:500]}"
    yield from (f"lost: {event['sentence']}" for event in scene.cluster.events("node-lost"))


@by(Boundary.OTHER_USER)
def hang_up(scene: Scene) -> Iterator[str]:
    """The terminal of the head is closed."""
    scene.head.process.send_signal(signal.SIGHUP)
    try:
        codes = scene.cluster.exit_codes(within=60)
    except AssertionError:  # a worker waits for a head that has told it nothing
        nodes = scene.cluster.nodes
        codes = {number: node.exit_code or 0 for number, node in nodes.items()}
    if set(codes.values()) != {143}:
        yield f"SIGHUP to the head ends the nodes with {codes}"
    yield from (f"left after SIGHUP: {line[:100]}" for line in scene.cluster.left())


LAST: tuple[Attack[Scene], ...] = (whole, hang_up)
