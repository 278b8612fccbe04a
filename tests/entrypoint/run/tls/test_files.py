"""The files of a node's TLS: made by the token, or given."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from contract.options import ConfigError
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.net.tls import trusting
from entrypoint.run.tls import files, given, made
from tests.support.certificates import Authority

TOKEN, OTHER = "correct-horse-battery", "another-horse-battery"
HEAD, WORKER = "10.0.0.2", "fd00::3"


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory() as short:
        yield Path(short)


def settings(home: Path, **own: str) -> Settings:
    common = {"RAY_WORKER": "0", "ROLLCALL_RAY_TEMP_DIR": str(home / "node")}
    return read_settings({**common, **own})


def node(home: Path, name: str, address: str, token: str = TOKEN) -> files.Files:
    one = settings(home / name, ROLLCALL_TLS="auto")
    (home / name).mkdir()
    files.prepare(one, token, address)
    return files.files_of(one)


def shake_hands(server: files.Files, client: files.Files, name: str) -> None:
    """As Ray does: each side shows its certificate and checks that of the other."""
    serves = given.serving(server.cert, server.key)
    serves.load_verify_locations(server.ca)
    serves.verify_mode = ssl.CERT_REQUIRED
    asks = trusting(client.ca)
    asks.load_cert_chain(client.cert, client.key)
    given.connect(serves, asks, name)


def test_nodes_with_one_token_trust_each_other_and_no_node_of_another_token(home: Path) -> None:
    head, worker = node(home, "head", HEAD), node(home, "worker", WORKER)
    shake_hands(head, worker, HEAD)
    shake_hands(worker, head, WORKER)
    shake_hands(worker, head, "rollcall")
    assert head.ca.read_bytes() == worker.ca.read_bytes()
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(worker, head, HEAD)
    stranger = node(home, "stranger", HEAD, OTHER)
    for server, client in ((head, stranger), (stranger, head)):
        with pytest.raises(ssl.SSLError):
            shake_hands(server, client, HEAD)


def test_the_key_is_this_users_alone_and_goes_when_tls_is_off(home: Path) -> None:
    own = settings(home, ROLLCALL_TLS="auto")
    files.prepare(own, TOKEN, HEAD)
    key = files.files_of(own).key
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert files.for_ray(own)["RAY_TLS_SERVER_KEY"] == str(key)
    assert files.prepare(settings(home), TOKEN, HEAD) is None
    assert not key.exists()
    assert files.for_ray(settings(home)) == {}


def test_names_that_no_certificate_can_have_are_left_out() -> None:
    cert, _, _ = made.certificate(TOKEN, ["", "a b", "ä", "-", "node.example", "x" * 300])
    assert "BEGIN CERTIFICATE" in cert


def test_given_files_are_copied_and_checked_as_other_nodes_will(home: Path) -> None:
    authority = Authority(home / "pki")
    own = settings(home, **authority.given(HEAD, "head.example"))
    assert files.prepare(own, TOKEN, HEAD) is not None
    copies = files.files_of(own)
    assert stat.S_IMODE(copies.key.stat().st_mode) == 0o600
    shake_hands(copies, copies, "head.example")
    assert files.kind(own).startswith("SHA-256 ")


def expired(pki: Authority) -> tuple[Path, Path]:
    return pki.sign(HEAD, days=-1)


def of_another_host(pki: Authority) -> tuple[Path, Path]:
    return pki.sign("10.0.0.9")


def of_another_authority(pki: Authority) -> tuple[Path, Path]:
    return Authority(pki.root / "other").sign(HEAD)


def with_another_key(pki: Authority) -> tuple[Path, Path]:
    return pki.sign(HEAD)[0], pki.sign(HEAD, file="other")[1]


def with_a_passphrase(pki: Authority) -> tuple[Path, Path]:
    return pki.sign(HEAD, passphrase=b"secret")


def exchanged(pki: Authority) -> tuple[Path, Path]:
    cert, key = pki.sign(HEAD)
    return key, cert


def without_a_key(pki: Authority) -> tuple[Path, Path]:
    return pki.sign(HEAD)[0], pki.root / "missing.key"


def a_directory(pki: Authority) -> tuple[Path, Path]:
    return pki.root, pki.sign(HEAD)[1]


def cut_off(pki: Authority) -> tuple[Path, Path]:
    cert, key = pki.sign(HEAD)
    text = cert.read_text()
    cert.write_text(text[:100] + text[-100:])
    return cert, key


@pytest.mark.parametrize(
    ("files_of", "variable", "problem"),
    [
        (expired, "ROLLCALL_TLS_CERT", "certificate has expired"),
        (of_another_host, "ROLLCALL_TLS_CERT", "not valid for '10.0.0.2'"),
        (of_another_authority, "ROLLCALL_TLS_CERT", "would be refused by the other nodes"),
        (with_another_key, "ROLLCALL_TLS_KEY", "is not the key of"),
        (with_a_passphrase, "ROLLCALL_TLS_KEY", "is encrypted"),
        (exchanged, "ROLLCALL_TLS_CERT", "has no certificate in PEM form"),
        (without_a_key, "ROLLCALL_TLS_KEY", "cannot be read: No such file or directory"),
        (a_directory, "ROLLCALL_TLS_CERT", "cannot be read: Is a directory"),
        (cut_off, "ROLLCALL_TLS_KEY", "cannot be used with"),
    ],
)
def test_a_given_file_that_others_would_refuse_is_named(
    home: Path, files_of: Callable[[Authority], tuple[Path, Path]], variable: str, problem: str
) -> None:
    pki = Authority(home / "pki")
    cert, key = files_of(pki)
    own = {"ROLLCALL_TLS_CERT": str(cert), "ROLLCALL_TLS_KEY": str(key)}
    given_settings = settings(home, ROLLCALL_TLS_CA=str(pki.ca), **own)
    with pytest.raises(ConfigError) as caught:
        files.check(given_settings, HEAD)
    assert str(caught.value).startswith(f"{variable}=")
    assert problem in str(caught.value)


def test_a_node_needs_all_three_files(home: Path) -> None:
    variables = Authority(home / "pki").given(HEAD)
    for left_out in variables:
        rest = {name: path for name, path in variables.items() if name != left_out}
        with pytest.raises(ConfigError, match=f"{left_out} is not set"):
            files.check(settings(home, **rest), HEAD)


def test_settings_that_exclude_each_other_are_refused(home: Path) -> None:
    variables = Authority(home / "pki").given(HEAD)
    with pytest.raises(ConfigError, match="ROLLCALL_TLS='auto' is set beside ROLLCALL_TLS_CERT"):
        settings(home, ROLLCALL_TLS="auto", **variables)
    with pytest.raises(ConfigError, match="begin it with https://"):
        settings(home, ROLLCALL_TLS="auto", ROLLCALL_URL="http://head:8267")
    with pytest.raises(ConfigError, match="give auto or off"):
        settings(home, ROLLCALL_TLS="given")
