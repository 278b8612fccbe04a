"""Reports a worker that fails its preflight checks to the head."""

from __future__ import annotations

import logging
from dataclasses import replace

from entrypoint.cluster.client import ControlClient, RefusedError
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.trust import Trust, UntrustedError, WrongTokenError, trust_of
from entrypoint.config.parsers import Tls
from entrypoint.config.role import head_address
from entrypoint.config.settings import Settings
from entrypoint.machine import address as address_of
from entrypoint.net import dns, sockets, wait
from entrypoint.run import token as run_token

log = logging.getLogger(__name__)

LONGEST_SENTENCE = 2000
"""Characters of each failed check that are sent to the head."""


def report(settings: Settings, sentences: tuple[str, ...]) -> None:
    """Tell the head, if it answers, why this node does not join: the roll then says so."""
    token, head = run_token.for_client(settings), head_address(settings)
    if token is None or head is None:
        return
    try:
        host = sockets.answering(dns.addresses(head.value), settings.control_port)
        client = ControlClient(host, settings.control_port, token, trust=trust_of(settings))
        address = address_of.worker_address(settings, host)
        client.check_in(
            NodeInfo(
                node=settings.node_name,
                address=address,
                versions={},
                unfit=[" ".join(sentence.split())[:LONGEST_SENTENCE] for sentence in sentences],
            )
        )
    except RefusedError as answer:  # that is how a head says that it has been told
        log.info("told the head: %s", answer)
    except (wait.NotYetError, WrongTokenError) as error:
        log.info("the head is not told: %s", error)


def report_tls(error: UntrustedError, client: ControlClient, info: NodeInfo) -> None:
    """Tell a head that proves its knowledge of the token why this node does not trust it.

    Raises RefusedError, which has the head's sentence, if the head has been told.
    """
    host, port, token = client.at
    other = ControlClient(host, port, token, trust=Trust(Tls.AUTO))
    try:
        other.check_in(replace(info, unfit=[str(error)[:LONGEST_SENTENCE]]))
    except (wait.NotYetError, WrongTokenError) as why:
        log.info("the head is not told: %s", why)
    finally:
        other.close()
