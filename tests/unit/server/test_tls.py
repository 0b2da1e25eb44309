"""The server's certificate: clear words at the start, and files that change under a running server."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Any
from weakref import WeakSet

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from tests.support.objects import MAC
from tests.unit.server.conftest import Certify, Rig
from tests.waiting import PATIENCE_SECONDS
from tink.files import rereading
from tink.server.auth import AgentAuth
from tink.server.tls import Certificates, TlsError, TlsFiles, authority_of

LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


class Files:
    """The server's files, as an operator has them."""

    def __init__(self, directory: Path, certify: Certify, authority: Any) -> None:
        self._certify = certify
        self.ca = authority[0].public_bytes(serialization.Encoding.PEM)
        self.cert, self.key, self.clients = (directory / name for name in ("tls.crt", "tls.key", "clients.pem"))
        self.clients.write_bytes(self.ca)
        self.files = TlsFiles(self.cert, self.key)
        self.mutual = TlsFiles(self.cert, self.key, self.clients)
        self.write()

    def write(self, **names: Any) -> x509.Certificate:
        """A new certificate for the server."""
        made = self._certify(**{"alternative": [LOOPBACK], **names})
        self.cert.write_bytes(made.pem + self.ca)
        self.key.write_bytes(made.key)
        return x509.load_pem_x509_certificate(made.pem)

    def channel(self, port: int, client: Any = None) -> grpc.aio.Channel:
        """An agent's, with a certificate or without."""
        own = (client.key, client.pem) if client is not None else (None, None)
        return grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(self.ca, *own))


@pytest.fixture(autouse=True)
def nothing_of_other_tests_is_reread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their remains exist until garbage is collected."""
    monkeypatch.setattr(rereading, "_all", WeakSet())


@pytest.fixture
def files(tmp_path: Path, certify: Certify, authority: Any) -> Files:
    return Files(tmp_path, certify, authority)


async def ending(channel: grpc.aio.Channel, agent_id: str = MAC) -> tuple[grpc.StatusCode, str]:
    """How a stream ends; OK with no words if it was constraints."""
    async with channel:
        stub: Any = pb_grpc.WorkflowServiceStub(channel)
        call = stub.GetWorkflows(pb.GetWorkflowsRequest(agent_id=agent_id), timeout=PATIENCE_SECONDS)
        accepted = asyncio.ensure_future(call.initial_metadata())
        code = asyncio.ensure_future(call.code())
        await asyncio.wait([accepted, code], return_when=asyncio.FIRST_COMPLETED)
        if code.done():
            return code.result(), await call.details()
        call.cancel()
        return grpc.StatusCode.OK, ""


# --- the files at the start ---


def private(encryption: Any) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


NO_PEM = [b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
CERT, KEY, CLIENTS = (
    r"--grpc-tls-cert \S+tls.crt: ",
    r"--grpc-tls-key \S+tls.key: ",
    r"--grpc-client-ca \S+clients.pem: ",
)
# The file, what it holds (None: it is not there), and what is said.
FAULTS: dict[str, tuple[str, bytes | Path | None, str]] = {
    "no key": ("tls.key", None, f"^{KEY}No such file or directory$"),
    "no clients": ("clients.pem", None, f"^{CLIENTS}No such file or directory$"),
    "another key": (
        *("tls.key", private(serialization.NoEncryption())),
        rf"{KEY}is not the key of the first certificate in \S+tls.crt",
    ),
    "encrypted": (
        *("tls.key", private(serialization.BestAvailableEncryption(b"password"))),
        "is encrypted; give one without a password",
    ),
    "endless": ("tls.crt", Path("/dev/zero"), "is larger than 1048576 bytes"),
    **{
        f"no PEM {number} in {name}": (name, content, why)
        for number, content in enumerate(NO_PEM)
        for name, why in (
            ("clients.pem", f"{CLIENTS}holds no certificates in PEM"),
            ("tls.key", f"{KEY}holds no private key in PEM"),
            ("tls.crt", f"{CERT}holds no certificates in PEM"),
        )
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_file_that_is_not_good_is_named_with_its_flag(files: Files, fault: str) -> None:
    name, content, why = FAULTS[fault]
    path = files.cert.with_name(name)
    path.unlink()
    if isinstance(content, Path):
        path.symlink_to(content)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(TlsError, match=why):
        Certificates(files.mutual)


def test_a_certificate_that_has_ended_is_refused(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.write(days=-1)
    with pytest.raises(TlsError, match=r"--grpc-tls-cert \S+tls.crt: ended on \d{4}-\d\d-\d\d"):
        Certificates(files.files)
    files.write()
    Certificates(files.files, now=lambda: time.time() - 60 * 86_400)
    assert "begins on" in caplog.text, "a clock that is behind is no reason to serve nobody"


def test_expiring_certificates_are_logged_two_weeks_before_and_renewed_ones_are_not(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(days=30)
    now = time.time()
    certificates = Certificates(files.mutual, now=lambda: now)
    certificates.say_what_ends()
    assert "ends on" not in caplog.text, "30 days before the end"
    now += 17 * 86_400
    certificates.say_what_ends()
    assert "--grpc-tls-cert" in caplog.text
    assert "tls.crt: ends on 20" in caplog.text
    assert "clients.pem" not in caplog.text, "the authority has 43 days"
    caplog.clear()
    now += 14 * 86_400
    certificates.say_what_ends()
    assert [(record.levelname, "ended on" in record.message) for record in caplog.records] == [("ERROR", True)]
    files.write(days=100)
    caplog.clear()
    certificates.say_what_ends()
    assert caplog.text == "", "although no agent has connected since, and asked for it"


def test_a_chain_ends_with_its_first_part_and_a_bundle_of_authorities_with_its_last(
    files: Files, certify: Certify
) -> None:
    files.write(days=100)
    files.clients.write_bytes(certify(days=100).pem + files.ca + certify(days=-1).pem)
    ends = Certificates(files.mutual).endings()
    days = {flag: round((end.timestamp() - time.time()) / 86_400) for flag, end in ends.items()}
    assert days == {"--grpc-tls-cert": 60, "--grpc-client-ca": 100}, "the authority in the chain has 60"


def test_addresses_that_the_certificate_lacks_are_logged(files: Files) -> None:
    assert Certificates(files.files).lacking(["127.0.0.1", "10.0.0.1"]) == ["10.0.0.1"]
    files.write(alternative=[], common="127.0.0.1")
    assert Certificates(files.files).lacking(["127.0.0.1"]) == ["127.0.0.1"], "clients do not look at the CN"


def test_agents_receive_the_authority_and_not_the_certificate_of_the_server(files: Files, tmp_path: Path) -> None:
    assert authority_of(files.files, None) == files.ca
    (tmp_path / "ca.pem").write_bytes(files.ca + files.ca)
    assert authority_of(files.files, tmp_path / "ca.pem") == files.ca + files.ca
    assert authority_of(None, None) == b""
    (tmp_path / "ca.pem").write_bytes(b"x")
    with pytest.raises(TlsError, match="--grpc-tls-ca"):
        authority_of(files.files, tmp_path / "ca.pem")


# --- with a server ---


async def test_an_agent_with_tls_is_served_and_one_without_is_not(rig: Rig, files: Files) -> None:
    good = files.cert.read_bytes()
    files.cert.write_bytes(b"")
    with pytest.raises(TlsError, match="--grpc-tls-cert"):
        await rig.start(tls=files.files)
    await rig.server.stop()  # though it has not begun
    files.cert.write_bytes(good)
    await rig.serve(tls=files.files)
    assert await ending(files.channel(rig.server.port)) == (grpc.StatusCode.OK, "")
    assert (await ending(grpc.aio.insecure_channel(f"127.0.0.1:{rig.server.port}")))[0] is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("signal", [False, True], ids=["seen", "asked"])
async def test_certificate_in_a_volume_is_replaced_and_no_handshake_fails(
    signal: bool,
    rig: Rig,
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The kubelet moves the link `..data` from one version of a Secret to the next; SIGHUP has it seen at once."""
    monkeypatch.setattr("tink.files.rereading._RECHECK_SECONDS", 3600.0 if signal else 0.0)
    volume = tmp_path / "volume"
    volume.mkdir()
    versions = []
    for number in range(4):
        made = files.write()
        version = volume / f"..{number}"
        version.mkdir()
        for path in (files.cert, files.key):
            (version / path.name).write_bytes(path.read_bytes())
        versions.append((version.name, made))

    def bring(version: str) -> None:
        (volume / "..data_tmp").symlink_to(version)
        (volume / "..data_tmp").replace(volume / "..data")

    bring(versions[0][0])
    for path in (files.cert, files.key):
        (volume / path.name).symlink_to(f"..data/{path.name}")
    await rig.start(tls=TlsFiles(volume / files.cert.name, volume / files.key.name))
    roots = ssl.create_default_context(cadata=files.ca.decode())
    roots.set_alpn_protocols(["h2"])

    def shown() -> x509.Certificate:
        with (
            socket.create_connection(("127.0.0.1", rig.server.port), PATIENCE_SECONDS) as connection,
            roots.wrap_socket(connection, server_hostname="127.0.0.1") as secure,
        ):
            return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")

    for version, certificate in versions:
        bring(version)
        if signal:
            assert rereading.reread_all()[1] == 0
        found = [await asyncio.to_thread(shown) for _ in range(25)]
        assert found[-1] == certificate
    assert "goes on with the certificate that it has" not in caplog.text


async def test_a_renewed_certificate_is_shown_without_a_restart(
    rig: Rig, files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tink.files.rereading._RECHECK_SECONDS", 0.0)
    await rig.serve(tls=files.files)
    agent = files.channel(rig.server.port)
    stub: Any = pb_grpc.WorkflowServiceStub(agent)
    call = stub.GetWorkflows(pb.GetWorkflowsRequest(agent_id=MAC))
    await call.initial_metadata()

    async def shown() -> x509.Certificate:
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", rig.server.port))
        return x509.load_pem_x509_certificate(pem.encode())

    renewed = files.write()
    assert await shown() == renewed
    files.key.write_bytes(b"half of a k")
    os.utime(files.cert)
    assert await shown() == renewed, "half-written files change nothing"
    assert await shown() == renewed
    assert caplog.text.count("goes on with the certificate that it has: --grpc-tls-key") == 1
    again = files.write()
    assert await shown() == again
    rig.workflow()
    assert (await call.read()).WhichOneof("cmd") == "start_workflow", "open streams are not touched"
    await agent.close()


async def test_mutual_tls_lets_a_machine_speak_for_itself_alone(rig: Rig, files: Files, certify: Certify) -> None:
    await rig.serve(tls=files.mutual, agent_auth=AgentAuth.MTLS)
    rig.machine("other", "52:54:00:00:00:09", ip="192.0.2.9")

    def named(name: str) -> grpc.aio.Channel:
        return files.channel(rig.server.port, certify(alternative=[x509.DNSName(name)]))

    assert await ending(named("52-54-00-00-00-01")) == (grpc.StatusCode.OK, "")
    code, words = await ending(named("52-54-00-00-00-09"))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert words == f"127.0.0.1 may not act for '{MAC}': its certificate names '52:54:00:00:00:09'"
    assert "may not act for Hardware d/h" in rig.seen[-1].message
    assert (rig.seen[-1].hardware, str(rig.seen[-1].kind)) == ("d/h", "refused")
    for trick in ("52-54-00-00-00-01\0", "52-54-00-00-00-01\0.example", "*", "h.", "*.d", "h\0"):
        code, words = await ending(named(trick))
        assert code is grpc.StatusCode.PERMISSION_DENIED, trick
        assert f"its certificate names {trick!r}" in words
    assert rig.kinds().count("refused") == 1, "the machine hears of it once a minute"
    handshake = await ending(files.channel(rig.server.port))
    assert handshake[0] is grpc.StatusCode.UNAVAILABLE, "no handshake without a certificate"


@pytest.mark.parametrize("trouble", ["it has ended", "it has not begun", "another authority signed it"])
async def test_invalid_certificate_does_not_pass_the_handshake(
    rig: Rig, files: Files, certify: Certify, foreign_authority: Any, trouble: str
) -> None:
    names = [x509.DNSName(MAC.replace(":", "-"))]
    await rig.serve(tls=files.mutual, agent_auth=AgentAuth.MTLS)
    times = {"it has ended": {"days": -0.001}, "it has not begun": {"days": 9, "begins": 0.01}}.get(trouble, {})
    signer = foreign_authority if trouble == "another authority signed it" else None
    shown = certify(alternative=names, signer=signer, **times)
    code, words = await ending(files.channel(rig.server.port, shown))
    assert (code, "failed to connect" in words) == (grpc.StatusCode.UNAVAILABLE, True), "no call was made"
    assert rig.seen == [], "nobody was named"
    assert await ending(files.channel(rig.server.port, certify(alternative=names))) == (grpc.StatusCode.OK, "")
