"""Who may speak for a machine, through the whole stack: `tinkedge up` with tokens and TLS, real agents, kubectl.

Two machines with a Hardware each, of which one is a thief: it knows the other's MAC, and sits on the same network.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Process, until
from tests.interop.test_edge_modes import ADDRESSES, MACS, Edge, dashed, manifest, running

MACS["thief"] = "52:54:00:00:01:66"
ADDRESSES["thief"] = "172.31.77.66"

TOKEN = re.compile(r"v1\.[0-9a-f]{12}\.\d+\.[A-Za-z0-9_-]{43}")


def certificate(directory: Path) -> list[str | Path]:
    """The options of a server with a certificate for its address, of an authority of its own."""
    now, authority_key, key = (
        datetime.now(UTC),
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rack authority")])

    def builder(subject: x509.Name, of: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )

    root = builder(authority, authority_key).add_extension(x509.BasicConstraints(True, None), critical=True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ADDRESS))])
    leaf = builder(x509.Name([]), key).add_extension(names, critical=True)
    chain = [leaf.sign(authority_key, hashes.SHA256()), root.sign(authority_key, hashes.SHA256())]
    encoding = serialization.Encoding.PEM
    (directory / "tls.crt").write_bytes(b"".join(each.public_bytes(encoding) for each in chain))
    (directory / "tls.key").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return ["--grpc-tls-cert", directory / "tls.crt", "--grpc-tls-key", directory / "tls.key"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    directory = tmp_path_factory.mktemp("guarded")
    with running(directory, "--agent-auth", "token", *certificate(directory), "--log-level", "debug") as edge:
        for name in ("near", "thief"):
            edge.register(name, ADDRESSES[name])
            edge.machine(name, address=ADDRESSES[name])
        yield edge
        secrets = [*TOKEN.findall(edge.process.err), (edge.data_dir / "agent-token.key").read_text().strip()]
        assert len(secrets) == 1, "a token is in the log"
        assert secrets[0] not in edge.process.err


def command_line(script: str) -> str:
    """What the kernel gets of a script, as iPXE expands its settings."""
    settings = dict(re.findall(r"^set (tinkerbell-\S+) (\S+)$", script, re.MULTILINE))
    (line,) = re.findall(r"^kernel \S+ (.*?) &&", script, re.MULTILINE)
    return re.sub(r"\$\{(tinkerbell-[^}]+)\}", lambda match: settings[match[1]], line)


def agent(edge: Edge, where: str, line: str) -> Process:
    """The agent on a machine that booted with this command line."""
    name = f"{where}-{len(list(edge.directory.glob('cmdline-*')))}"
    file = edge.directory / f"cmdline-{name}"
    file.write_text(line)
    options = ["--kernel-command-line", file, "--runtime", "process", "--state-dir", edge.directory / f"state-{name}"]
    return edge.start(where, *TINKEDGE, "agent", *options)


def test_machine_boots_with_a_token_and_runs_its_workflow_over_tls(guarded: Edge) -> None:
    line = command_line(guarded.script("near"))
    assert " tinkerbell_tls=true " in line
    assert f" tinkerbell_tls_ca=http://{ADDRESS}:7080/agent/ca.pem#sha256=" in line
    assert TOKEN.search(line)
    running_agent = agent(guarded, "near", line)
    guarded.kubectl.apply(manifest("Template", "one", {"actions": [{"name": "a", "image": "i", "cmd": "/bin/true"}]}))
    workflow = {"hardwareRef": {"name": "near"}, "templateRef": {"name": "one"}}
    guarded.kubectl.apply(manifest("Workflow", "first", workflow))
    until(
        lambda: guarded.kubectl.state("first") == "Succeeded",
        lambda: running_agent.err + guarded.process.err[-3000:],
    )
    assert not TOKEN.search(running_agent.err)
    assert running_agent.terminate() == 0


def test_script_with_a_token_is_not_for_who_merely_names_the_machine(guarded: Edge) -> None:
    status, body = guarded.get("thief", f"/ipxe/script/{MACS['near']}/auto.ipxe")
    assert (status, body) == (403, b"this script is served to its own machine only\n")
    told = f"script asked for from {ADDRESSES['thief']}, but its address is {ADDRESSES['near']}"
    assert told in guarded.journey(MACS["near"], "refused")
    got, said = guarded.tftp("thief", f"{dashed(MACS['near'])}/auto.ipxe")
    assert got == b""
    assert "served to its own machine only" in said
    assert any("own machine only" in line for line in guarded.journey(MACS["near"], "refused")), "by TFTP, too"


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("its own", "its token is that of 52:54:00:00:01:66, another machine"),
        ("none", "it shows no token"),
        ("forged", "its token is not signed with a key of this server"),
    ],
)
def test_thief_is_refused_and_the_machine_it_names_hears_of_it(guarded: Edge, shown: str, why: str) -> None:
    line = command_line(guarded.script("thief")).replace(f"worker_id={MACS['thief']}", f"worker_id={MACS['near']}")
    if shown == "none":
        line = re.sub(r"tinkerbell_token=\S+", "", line)
    if shown == "forged":
        line = TOKEN.sub(
            lambda match: match[0].replace(MACS["thief"].replace(":", ""), MACS["near"].replace(":", "")), line
        )
    thief = agent(guarded, "thief", line)
    until(lambda: why in thief.err, lambda: thief.err)
    thief.terminate()
    assert "refuses this machine" in thief.err
    until(
        lambda: any(
            "can't speak for Hardware default/near" in each for each in guarded.journey(MACS["near"], "refused")
        )
    )


def test_server_without_the_right_key_says_so_at_the_start(guarded: Edge, tmp_path: Path) -> None:
    (tmp_path / "tls.key").write_bytes(b"")
    options = ["--data-dir", tmp_path, "--interface", "rack0", "--grpc-tls-key", tmp_path / "tls.key"]
    options += ["--grpc-tls-cert", guarded.directory / "tls.crt", "--kubeconfig", guarded.data_dir / "kubeconfig"]
    for command in ("up", "edge"):
        if command == "edge":
            options = ["--data-dir", tmp_path, "--interface", "rack0", "--agent-auth", "token"]
        process = guarded.run(IN_EDGE, *TINKEDGE, command, *options)
        assert process.popen.returncode in (1, 2)
        assert "holds no private key in PEM" in process.err or "give both the same file" in process.err
        assert "Traceback" not in process.err
