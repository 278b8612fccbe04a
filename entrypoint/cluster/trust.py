"""How a client of the control port trusts what answers, and what it says if it does not."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from contract.options import ConfigError, Fault
from entrypoint.config.parsers import Tls
from entrypoint.config.settings import Settings
from entrypoint.net import tls
from entrypoint.net.http import direct, status_of
from entrypoint.net.wait import NotYetError
from entrypoint.run import token as run_token

EXPIRED, NOT_YET_VALID, OTHER_NAME, OTHER_ADDRESS = 10, 9, 62, 64
"""Numbers of OpenSSL's X509_V_ERR_*."""
REMEDIES = {
    EXPIRED: "give the head a new one",
    NOT_YET_VALID: "set the clocks (NTP), or give the head another one",
    OTHER_NAME: "name the head as its certificate does (ROLLCALL_HEAD_ADDRESS or ROLLCALL_URL)",
    OTHER_ADDRESS: "name the head as its certificate does (ROLLCALL_HEAD_ADDRESS or ROLLCALL_URL)",
}
OF_OTHERS = "set ROLLCALL_TLS_CA to what has signed it, or ROLLCALL_TLS=auto if the head has that"


class WrongTokenError(Exception):
    """The head does not know this node's token."""


class UntrustedError(WrongTokenError):
    """The head's certificate is not to be trusted; the sentence has a remedy."""


class OtherTlsError(UntrustedError):
    """One side speaks TLS and the other does not; the sentence has a remedy."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Which certificates a client accepts."""

    mode: Tls = Tls.OFF
    authorities: Path | None = None

    @property
    def scheme(self) -> str:
        return "http" if self.mode is Tls.OFF else "https"

    def options(
        self,
        token: Callable[[], str],
        base: str,
        socket_options: Sequence[tuple[int, int, int]],
        *,
        is_given: bool,
    ) -> dict[str, Any]:
        """Return arguments of httpx.Client. `is_given`: the user has given the URL `base`.

        `token`: returns the present one.

        Raises ConfigError.
        """
        from entrypoint.net.http import tls as usual

        if base.startswith("http:"):
            return {"transport": direct(socket_options), "verify": usual()}
        if self.mode is Tls.AUTO:
            first = usual() if is_given else None  # a proxy has a certificate of its own
            proven = tls.Proven(lambda: _known(token()), socket_options, first)
            return {"transport": proven, "verify": usual()}
        if self.authorities is not None:
            context = _trusting(self.authorities)
            return {"transport": direct(socket_options, context), "verify": context}
        return {"verify": usual()}  # TLS hides the token from a proxy that the network needs


NO_TRUST = Trust()


def _known(key: str) -> tls.Known:
    return tls.Known(key, run_token.mark(key))


def trust_of(settings: Settings) -> Trust:
    """Return what this node's commands and its worker accept."""
    return Trust(settings.tls_mode, settings.tls_ca)


def raise_if_of_tls(error: Exception, base: httpx.URL) -> None:
    """Raises UntrustedError or OtherTlsError if that is why a request has failed."""
    if (fault := tls.fault_of(error)) is not None:
        remedy = REMEDIES.get(fault.verify_code, OF_OTHERS)
        why = fault.verify_message.rstrip(".")
        raise UntrustedError(f"the certificate of the head at {base} is refused: {why}: {remedy}")
    is_cut = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
    if is_cut and base.scheme == "https" and _answers_without_tls(base):
        raise OtherTlsError(
            f"the head at {base.netloc.decode()} answers without TLS, and this side asks by "
            "https: give its address as http://…. If ROLLCALL_TLS is set here, set the same on "
            "the head, or unset it here"
        )


def _answers_without_tls(base: httpx.URL) -> bool:
    try:
        place = base.copy_with(scheme="http", path="/v1/state")
        return status_of(str(place)) == httpx.codes.UNAUTHORIZED
    except NotYetError:
        return False


def _trusting(authorities: Path) -> ssl.SSLContext:
    try:
        return tls.trusting(authorities)
    except OSError as error:  # an SSLError, too
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        remedy = "give a file with certificates in PEM form"
        fault = Fault("ROLLCALL_TLS_CA", str(authorities), f"cannot be read ({why})", remedy)
        raise ConfigError([fault]) from None
