"""The control port with TLS: who is trusted, who is told what, and what nobody gets to see."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from contract.exit_codes import ExitCode
from contract.options import ConfigError
from entrypoint import __main__ as entrypoint
from entrypoint.cluster.client import ControlClient
from entrypoint.cluster.trust import OtherTlsError, Trust, UntrustedError, WrongTokenError
from entrypoint.config.parsers import Tls
from entrypoint.config.read import read_settings
from entrypoint.net.paths import CERTIFICATE
from entrypoint.net.tls import proof
from entrypoint.run import token as run_token
from entrypoint.run.tls import files, given
from entrypoint.run.tls.files import Served
from env.http import connections
from rollcall.client import Client
from tests.support.certificates import Authority
from tests.support.connections import is_closed
from tests.support.control import TOKEN, Head, answers, node_info
from tests.support.waiting import eventually
from tests.support.worker_and_head import serve

AUTO = Trust(Tls.AUTO)
ADDRESS = "127.0.0.1"


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory() as short:
        yield Path(short)


def served(home: Path, **tls: str) -> Served:
    common = {"RAY_WORKER": "0", "ROLLCALL_RAY_TEMP_DIR": str(home / "head")}
    found = files.prepare(read_settings({**common, **tls}), TOKEN, ADDRESS)
    assert found is not None
    return found


@contextmanager
def head_with(run: Path, tls: Served | None, port: int = 0) -> Iterator[Head]:
    head = Head(run, port, tls=tls)
    with head.control:
        eventually(lambda: answers(head.port) if tls is None else is_up(head.port))
        yield head


def is_up(port: int) -> bool:
    try:
        with ssl._create_unverified_context().wrap_socket(
            socket.create_connection((ADDRESS, port))
        ):
            return True
    except OSError:
        return False


@pytest.fixture
def head(tmp_path: Path, home: Path) -> Iterator[Head]:
    """One with ROLLCALL_TLS=auto."""
    with head_with(tmp_path, served(home, ROLLCALL_TLS="auto")) as head:
        yield head


def client(port: int, token: str = TOKEN, trust: Trust = AUTO) -> ControlClient:
    return ControlClient(ADDRESS, port, token, trust=trust)


def test_each_key_of_the_run_finds_its_head_without_a_file(head: Head) -> None:
    assert client(head.port).check_in(node_info("a")).incarnation == "first"
    for key in (TOKEN, run_token.for_page(TOKEN), run_token.read_only(TOKEN)):
        assert client(head.port, key).command("GET", "/v1/state")["phase"] == "starting"


def test_another_token_is_wrong_before_it_is_sent(head: Head) -> None:
    with pytest.raises(WrongTokenError, match="does not prove that it knows this token"):
        client(head.port, "a-token-of-another-run").check_in(node_info("a"))


class Impostor:
    """Answers with TLS by a certificate of its own, and keeps what it was sent."""

    def __init__(self, context: ssl.SSLContext, body: bytes) -> None:
        self._context, self._body = context, body
        self._listener = socket.create_server((ADDRESS, 0))
        self.port = self._listener.getsockname()[1]
        self.heard = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
                with self._context.wrap_socket(plain, server_side=True) as connection:
                    self.heard += connection.recv(65536)
                    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    length = b"Content-Length: %d\r\n\r\n" % len(self._body)
                    connection.sendall(head + length + self._body)
            except ssl.SSLError:
                continue
            except OSError:
                return


@pytest.mark.parametrize(
    "knows", ["the head's proofs", "the read-only key", "a replaced token", "nothing"]
)
def test_who_stands_between_gets_no_token(head: Head, home: Path, knows: str) -> None:
    """Neither with the proofs that the head shows to everyone, nor with a weaker key."""
    pki = Authority(home / "pki")
    cert, key = pki.sign(ADDRESS)
    der = ssl.PEM_cert_to_DER_cert(cert.read_text())
    proofs: Sequence[object] = [1, None, "", "ä"]
    if knows == "the head's proofs":
        url = f"https://{ADDRESS}:{head.port}{CERTIFICATE}"
        proofs = httpx.get(url, verify=False).json()["proofs"]
    elif knows == "the read-only key":
        proofs = [proof(run_token.read_only(TOKEN), der)]
    odd: object = [1]
    if knows == "a replaced token":
        old = {"rollcall-read-" + "0" * 48: "then", "ä": 1}
        odd = {proof(run_token.mark(key), der): at for key, at in old.items()}
        odd |= {proof(run_token.mark(TOKEN), der): "\x1b[2J"}
    body = json.dumps({"proofs": proofs, "replaced": odd}).encode()
    impostor = Impostor(given.serving(cert, key), body)
    try:
        with pytest.raises(WrongTokenError, match="does not prove"):
            client(impostor.port).check_in(node_info("a"))
    finally:
        impostor.close()
    assert impostor.heard.startswith(f"GET {CERTIFICATE} ".encode())
    assert b"uthorization" not in impostor.heard


def test_a_client_follows_its_head_to_a_new_certificate(tmp_path: Path, home: Path) -> None:
    with head_with(tmp_path / "a", served(home, ROLLCALL_TLS="auto")) as first:
        asks = client(first.port)
        asks.command("GET", "/v1/state")
    with head_with(tmp_path / "b", served(home, ROLLCALL_TLS="auto"), first.port):
        eventually(lambda: asks.command("GET", "/v1/state")["phase"] == "starting")


def test_a_new_token_of_the_run_is_proven_too_and_the_old_one_is_told_of_its_end(
    head: Head,
) -> None:
    client(head.port).command("GET", "/v1/state")
    for new in ("another-correct-horse-battery", "a-third-correct-horse"):
        head.keys.rotate(new, "18:00", {})
        assert client(head.port, new).command("GET", "/v1/state")["phase"] == "starting"
        for key in (TOKEN, *run_token.keys(TOKEN)):
            with pytest.raises(WrongTokenError, match=r"replaced at 18:00 by `rollcall rotate-"):
                client(head.port, key).command("GET", "/v1/state")


def test_a_client_with_a_new_token_finds_the_head_that_starts_with_it(
    tmp_path: Path, home: Path
) -> None:
    new = "another-correct-horse-battery"
    with head_with(tmp_path / "a", served(home, ROLLCALL_TLS="auto")) as first:
        asks = client(first.port)
        asks.check_in(node_info("a"))
        first.keys.rotate(new, "18:00", {"a": asks._own_key})
        asks.command("GET", "/v1/state")
    with head_with(tmp_path / "b", served(home, ROLLCALL_TLS="auto"), first.port) as second:
        second.keys.rotate(new, "18:00", {})
        eventually(lambda: asks.command("GET", "/v1/state")["phase"] == "starting")


def test_a_head_with_tls_and_a_client_without_say_so(head: Head) -> None:
    with pytest.raises(OtherTlsError, match="speaks TLS, and this side does not: set"):
        client(head.port, trust=Trust()).check_in(node_info("a"))


@pytest.mark.parametrize("mode", [Tls.AUTO, Tls.GIVEN])
def test_a_client_with_tls_sends_nothing_to_a_head_without(
    tmp_path: Path, home: Path, mode: Tls
) -> None:
    ca = Authority(home / "pki").ca
    with head_with(tmp_path, None) as head:
        with pytest.raises(OtherTlsError, match="answers without TLS"):
            client(head.port, trust=Trust(mode, ca)).check_in(node_info("a"))
        assert head.heard.check_ins == []


def test_given_authorities_are_trusted_by_the_heads_name(tmp_path: Path, home: Path) -> None:
    pki = Authority(home / "pki")
    trust = Trust(Tls.GIVEN, pki.ca)
    with head_with(tmp_path, served(home, **pki.given(ADDRESS, "localhost"))) as head:
        for name in (ADDRESS, "localhost"):
            ControlClient(name, head.port, TOKEN, trust=trust).check_in(node_info("a"))
        with pytest.raises(UntrustedError, match=r"mismatch.*ROLLCALL_HEAD_ADDRESS"):
            ControlClient("127.0.0.9", head.port, TOKEN, trust=trust).check_in(node_info("a"))
        other = Trust(Tls.GIVEN, Authority(home / "other").ca)
        with pytest.raises(UntrustedError, match="set ROLLCALL_TLS_CA to what has signed it"):
            client(head.port, trust=other).check_in(node_info("a"))


def test_an_expired_certificate_of_the_head_is_refused(tmp_path: Path, home: Path) -> None:
    pki = Authority(home / "pki")
    cert, key = pki.sign(ADDRESS, days=-1)
    shown = Served(given.serving(cert, key), ssl.PEM_cert_to_DER_cert(cert.read_text()))
    with (
        head_with(tmp_path, shown) as head,
        pytest.raises(UntrustedError, match="certificate has expired: give the head a new one"),
    ):
        client(head.port, trust=Trust(Tls.GIVEN, pki.ca)).check_in(node_info("a"))


def test_authorities_that_cannot_be_read_are_named(home: Path) -> None:
    empty = home / "ca.pem"
    empty.write_text("nothing")
    for path in (empty, home / "missing.pem"):
        with pytest.raises(ConfigError, match=f"ROLLCALL_TLS_CA='{path}' cannot be read"):
            client(1, trust=Trust(Tls.GIVEN, path))


def test_handshakes_that_do_not_end_are_limited_and_closed(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits count from the accepted connection on, not from the end of the handshake."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    opened = [socket.create_connection((ADDRESS, head.port)) for _ in range(20)]
    unproven = head.control._serving._server._unproven
    eventually(lambda: len(unproven._opened) >= 20)
    for one in opened[10:]:
        one.sendall(b"\x16\x03\x01\x02\x00")
    eventually(lambda: all(map(is_closed, opened)))
    eventually(lambda: not unproven._opened)


@pytest.mark.parametrize(
    ("path", "status"), [("/healthz", 200), ("/v1/state", 426), ("/healthz2", 426), ("", 426)]
)
def test_without_tls_a_probe_of_health_is_answered_and_nothing_else(
    head: Head, path: str, status: int
) -> None:
    """Probes of containers have no certificates."""
    with socket.create_connection((ADDRESS, head.port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        connection.settimeout(5)
        assert connection.recv(4096).startswith(f"HTTP/1.1 {status} ".encode())
        eventually(lambda: is_closed(connection))
    assert is_up(head.port)


def test_the_cookie_of_the_page_travels_by_tls_alone(head: Head) -> None:
    link = f"https://{ADDRESS}:{head.port}/?read={run_token.read_only(TOKEN)}"
    answer = httpx.get(link, verify=False, headers={"Accept": "text/html"})
    assert "Secure" in answer.headers["set-cookie"]


def asking(head: Head, **more: str) -> dict[str, str]:
    return {
        "ROLLCALL_HEAD_ADDRESS": ADDRESS,
        "ROLLCALL_CONTROL_PORT": str(head.port),
        "ROLLCALL_RUN_DIR": str(head.run.root),
        "ROLLCALL_TOKEN": TOKEN,
        **more,
    }


@pytest.mark.parametrize(
    "words", [["status"], ["events"], ["list"], ["logs"], ["open", "--no-browser"], ["stop"]]
)
def test_commands_ask_a_head_with_tls(
    head: Head,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    for name, text in asking(head).items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr("sys.argv", ["rollcall", *words])
    assert entrypoint.main() == ExitCode.USAGE
    assert "speaks TLS, and this side does not" in capsys.readouterr().err
    monkeypatch.setenv("ROLLCALL_TLS", "auto")
    entrypoint.main()
    said = capsys.readouterr()
    assert "TLS" not in said.err + said.out
    assert "no head answers" not in said.err


def test_a_client_in_python_asks_by_url(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLCALL_TLS", "auto")
    state = Client(f"https://{ADDRESS}:{head.port}", run_token.read_only(TOKEN)).status()
    assert state.phase == "starting"


Variables = Callable[[Path], dict[str, str]]


def nothing(_: Path) -> dict[str, str]:
    return {}


def made(_: Path) -> dict[str, str]:
    return {"ROLLCALL_TLS": "auto"}


def own_files(home: Path) -> dict[str, str]:
    return Authority(home / "pki").given(ADDRESS)


@pytest.mark.parametrize(
    ("of_head", "of_worker", "says"),
    [
        (made, nothing, "speaks TLS, and this side does not"),
        (made, own_files, "the certificate of the head at .* is refused"),
        (own_files, made, "has ROLLCALL_TLS=auto, and the head has the ROLLCALL_TLS_CA with SHA"),
    ],
)
def test_a_worker_with_other_tls_than_its_head_is_refused_by_name(
    tmp_path: Path, home: Path, of_head: Variables, of_worker: Variables, says: str
) -> None:
    of_heads = of_head(home)
    with head_with(tmp_path, served(home, **of_heads)) as head:
        common = {"ROLLCALL_RAY_TEMP_DIR": str(home / "head")}
        kind = files.kind(read_settings({**common, **of_heads}))
        head.control._registry.me = replace(head.control._registry.me, tls=kind)
        own = {"RAY_WORKER": "1", "ROLLCALL_NODE_NAME": "odd", "ROLLCALL_RECIPE": "command"}
        short = {"ROLLCALL_RAY_TEMP_DIR": str(home / "own")}
        environ = asking(head, **own, **short, **of_worker(home / "worker"))
        assert serve(read_settings(environ)) == ExitCode.UNFIT
        refused = head.control.state()["refused"]
    assert list(refused) == ["odd"]
    assert re.search(says, refused["odd"]), refused


def test_a_worker_that_has_tls_alone_ends_by_name(
    tmp_path: Path,
    home: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections.ONCE_PER_MINUTE, "_shown", {})
    with head_with(tmp_path, None) as head:
        own = {"RAY_WORKER": "1", "ROLLCALL_NODE_NAME": "odd", "ROLLCALL_RECIPE": "command"}
        short = {"ROLLCALL_RAY_TEMP_DIR": str(home / "own")}
        environ = asking(head, **own, **short, ROLLCALL_TLS="auto")
        assert serve(read_settings(environ)) == ExitCode.UNFIT
    assert "odd does not join: the head at" in caplog.text
    assert "If ROLLCALL_TLS is set here, set the same on the head, or unset it" in caplog.text
    assert f"{ADDRESS} speaks TLS to this server, which has none" in caplog.text
