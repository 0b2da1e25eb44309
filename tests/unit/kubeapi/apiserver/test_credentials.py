"""Token, authority and kubeconfig: invalid ones are refused with advice, and never replaced silently."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.unit.kubeapi.apiserver.conftest import Start
from tink.kubeapi import ApiServer, ApiServerError
from tink.kubeapi.apiserver import credentials

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_token_is_created_once_for_its_owner_or_supplied_by_the_operator(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = credentials.load_token(path)
    assert len(token) == 43
    assert credentials.load_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("x" * 32 + "\n")
    assert credentials.load_token(path) == "x" * 32
    path.write_text(f"# since monday\n{'n' * 40}\n{'o' * 40}\n")
    assert credentials.load_token(path) == "n" * 40, "the first one is that of the kubeconfig"


def test_truncated_token_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = credentials.load_token(path)
    for cut in range(43):
        path.write_text(token[:cut])
        with pytest.raises(ApiServerError, match=rf"{path}: .*(cut off|holds no token); restore it, or remove"):
            credentials.load_token(path)
        assert path.read_text() == token[:cut]
    path.write_text(token)  # without its line's end it is whole
    assert credentials.load_token(path) == token


@pytest.mark.parametrize(
    "content", [b"\xff\xfe" * 30, b"\0" * 44, b"one two" * 10 + b"\n", b"a" * 40 + b"\n\xff" + b"b" * 40 + b"\n"]
)
def test_damaged_token_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ApiServerError, match="is no token: one line") as caught:
        credentials.load_token(tmp_path / "token")
    assert "aaaa" not in str(caught.value)


async def test_server_reports_a_damaged_or_unreadable_token(start: Start, tmp_path: Path) -> None:
    server, _ = await start()
    await server.stop()
    token = tmp_path / "state" / "token"
    token.write_bytes(b"\xff\xfe\xfd" * 20)
    with pytest.raises(ApiServerError, match=r"state/token: is no token"):
        await start()
    token.unlink()
    token.mkdir()
    with pytest.raises(ApiServerError, match=r"data directory .*\] Is a directory"):
        await start()


@pytest.mark.parametrize("name", ["ca.key", "ca.crt"])
def test_incomplete_authority_is_refused_and_not_replaced(tmp_path: Path, name: str) -> None:
    pki = tmp_path / "pki"
    credentials.load_authority(pki, NOW)
    credentials.load_authority(tmp_path / "other", NOW)
    path, others = pki / name, (tmp_path / "other" / name).read_bytes()
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"\xff" * 200):
        path.write_bytes(damaged)
        with pytest.raises(ApiServerError, match="the certificate authority cannot be read"):
            credentials.load_authority(pki, NOW)
    path.write_bytes(others)
    with pytest.raises(ApiServerError, match=r"ca\.key: is not the key of ca\.crt"):
        credentials.load_authority(pki, NOW)
    path.unlink()
    with pytest.raises(ApiServerError, match=rf"pki/{name} is missing beside .*restore it from a backup"):
        credentials.load_authority(pki, NOW)
    assert len(list(pki.iterdir())) == 1


def test_authority_is_created_completely_in_an_empty_or_missing_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "none"):
        made = credentials.load_authority(tmp_path / name, NOW)
        assert credentials.load_authority(tmp_path / name, NOW).pem() == made.pem()
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "none"]


async def test_kubeconfig_for_this_server_is_kept_and_a_broken_one_replaced(start, caplog) -> None:
    server, _ = await start()
    path, port = server.kubeconfig, int(server.url.rpartition(":")[2])
    good = path.read_bytes()
    content = yaml.safe_load(good)
    content["contexts"][0]["context"]["namespace"] = "rack-7"
    path.write_text(yaml.safe_dump(content))
    before = path.stat().st_mtime_ns
    await server.stop()
    server, _ = await start(port=port)
    assert path.stat().st_mtime_ns == before
    for broken in (b"", b"half: [", b"\xff\xfe\0", b"[1, 2]", b"clusters: 7", b"users: [{name: tinkedge}]"):
        await server.stop()
        caplog.clear()
        path.write_bytes(broken)
        server, _ = await start(port=port)
        assert path.read_bytes() == good
        (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert str(path) in warning
        assert "is replaced" in warning


# --- for other hosts


def _shown(host: str, port: int, authority: Path, name: str) -> str:
    context = ssl.create_default_context(cafile=str(authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # Python's own way from 3.13 on
    try:
        with socket.create_connection((host, port), 20) as raw, context.wrap_socket(raw, server_hostname=name):
            return "good"
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message)


async def test_certificate_is_for_the_configured_addresses_and_names_and_the_authority_stays(tmp_path: Path) -> None:
    authority = tmp_path / "data" / "pki" / "ca.crt"
    found: list[bytes] = []
    for addresses, names in (((), ()), (("127.0.0.2",), ("api.example.org", "192.0.2.7")), (("127.0.0.3",), ())):
        server = ApiServer(tmp_path / "data", port=0, addresses=addresses, names=names)
        await server.start()
        try:
            port = int(server.url.rpartition(":")[2])
            found.append(authority.read_bytes())
            for name in ("127.0.0.1", "localhost", *addresses, *names):
                where = name if name in addresses else "127.0.0.1"
                assert await asyncio.to_thread(_shown, where, port, authority, name) == "good"
            for name in {"127.0.0.2", "127.0.0.3", "api.example.org", "other.example.org"} - {*addresses, *names}:
                assert "mismatch" in await asyncio.to_thread(_shown, "127.0.0.1", port, authority, name)
            if not addresses:
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.to_thread(_shown, "127.0.0.2", port, authority, "127.0.0.2")
        finally:
            await server.stop()
    assert len({*found}) == 1, "kubeconfigs that are out stay good"


async def test_missing_address_does_not_stop_the_start(tmp_path, caplog) -> None:
    credentials.load_authority(tmp_path / "other", NOW)
    server = ApiServer(tmp_path / "data", port=0, addresses=["192.0.2.7"])
    await server.start()
    try:
        port = int(server.url.rpartition(":")[2])
        outcome = await asyncio.to_thread(_shown, "127.0.0.1", port, tmp_path / "other" / "ca.crt", "127.0.0.1")
        assert outcome != "good", "the authority of another installation"
    finally:
        await server.stop()
    assert "--api-address 192.0.2.7: this host does not have the address" in caplog.text


async def test_used_port_at_an_address_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ApiServerError, match=rf"cannot listen on 127\.0\.0\.2:{port}: another program has the port"
        ):
            await ApiServer(tmp_path / "data", port=port, addresses=["127.0.0.2"]).start()
