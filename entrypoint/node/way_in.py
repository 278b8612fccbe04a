"""How a worker comes to its head: by the one of the head's addresses at which a head answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from entrypoint.cluster.client import CheckedIn, ControlClient
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.trust import WrongTokenError
from entrypoint.net.wait import NotYetError
from entrypoint.node.heritage import Heritage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WayIn:
    host: str
    """The address of the head that has accepted this node."""
    client: ControlClient
    info: NodeInfo
    """What this node says of itself: its own address is that of the route to `host`."""
    incarnation: str
    heritage: Heritage | None
    """What this node has to know to take the head's place."""
    ray_token: str | None = None
    """The token of the head's Ray; None if it is this node's."""
    bare: bool = False
    """This node is a spare, and its Ray is to offer nothing."""
    ray_port: int = 0
    """Where the head's Ray listens; 0 if the head does not say it."""


def through(
    hosts: Sequence[str],
    door: Callable[[str], tuple[ControlClient, NodeInfo]],
    check_in: Callable[[ControlClient, NodeInfo], CheckedIn],
) -> WayIn:
    """Check in at the addresses in turn, until a head accepts this node; return that way.

    If the head says that its Ray is at another of them, and it answers there too, that one is
    taken. Raises NotYetError with what each address answers, RefusedError, and WrongTokenError if
    no address accepts the token.
    """
    left, answers = list(hosts), dict[str, str]()
    way: WayIn | None = None
    wrong: WrongTokenError | None = None
    while left:
        host = left.pop(0)
        client, info = door(host)
        try:
            accepted = check_in(client, info)
        except (NotYetError, WrongTokenError) as error:
            client.close()
            answers[host] = str(error)
            wrong = error if isinstance(error, WrongTokenError) else wrong
            continue
        except BaseException:
            client.close()
            if way is not None:
                way.client.close()
            raise
        if way is not None:
            way.client.close()
        inherits, ray = Heritage.read(accepted.heritage), accepted.ray_token
        about_ray = (ray, accepted.bare, accepted.ray_port)
        way = WayIn(host, client, info, accepted.incarnation, inherits, *about_ray)
        has_moved = inherits is not None and inherits.takeovers > 0
        tried = {host, *answers}
        known = {accepted.address} if has_moved and accepted.address not in tried else {*left}
        left = [other for other in known if other == accepted.address]
        if accepted.address in answers:
            _warn(way, accepted.address, answers[accepted.address])
    if way is not None:
        return way
    if wrong is not None:
        raise wrong
    raise NotYetError("; ".join(answers.values()))


def _warn(way: WayIn, address: str, answer: str) -> None:
    log.warning(
        "the head answers at %s, and its Ray is at %s, where nothing answers this node (%s): set "
        "ROLLCALL_NODE_ADDRESS=%s on the head if Ray does not start here",
        *(way.host, address, answer, way.host),
    )
