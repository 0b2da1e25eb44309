"""Agents' authentication through the whole stack: `tinkedge up` with tokens and with mtls, real agents, kubectl.

There are two machines with a Hardware each. One is a thief: it knows the other's MAC, and is on the same network.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from tests.interop.authority import EARLIER, Authority
from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Process, manifest
from tests.interop.test_edge_modes import ADDRESSES, MACS, Edge, dashed, running
from tests.waiting import wait_until

MACS["thief"] = "52:54:00:00:01:66"
ADDRESSES["thief"] = "172.31.77.66"

REGISTRIES = ("reg.example:5000", "harbor.example")
TOKEN = re.compile(r"v1\.[0-9a-f]{12}\.\d+\.[A-Za-z0-9_-]{43}")


def edge_tls_options(authority: Authority) -> list[str | Path]:
    """Return the options of a server with a certificate for its address."""
    chain, key = authority.sign("tls", x509.IPAddress(ipaddress.ip_address(ADDRESS)))
    return ["--grpc-tls-cert", chain, "--grpc-tls-key", key]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    directory = tmp_path_factory.mktemp("guarded")
    authority = Authority(directory)
    registries = [word for host in REGISTRIES for word in ("--registry-ca", f"{host}={authority.file}")]
    with running(
        directory, "--agent-auth", "token", *edge_tls_options(authority), *registries, "--log-level", "debug"
    ) as edge:
        with_machines(edge)
        yield edge
        secrets = [*TOKEN.findall(edge.process.err), (edge.data_dir / "agent-token.key").read_text().strip()]
        assert len(secrets) == 1, "a token is in the log"
        assert secrets[0] not in edge.process.err


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Edge, Authority]]:
    """Start an edge that requires client certificates; yield it with the authority that signs them."""
    directory = tmp_path_factory.mktemp("certified")
    authority = Authority(directory)
    options = ["--agent-auth", "mtls", *edge_tls_options(authority), "--grpc-client-ca", authority.file]
    with running(directory, *options) as edge:
        with_machines(edge)
        yield edge, authority


def with_machines(edge: Edge) -> None:
    for name in ("near", "thief"):
        edge.register(name, ADDRESSES[name])
        edge.machine(name, address=ADDRESSES[name])


def command_line(script: str) -> str:
    """Return the kernel's command line from a script, with its settings expanded as by iPXE."""
    settings = dict(re.findall(r"^set (tinkerbell-\S+) (\S+)$", script, re.MULTILINE))
    (line,) = re.findall(r"^kernel \S+ (.*?) &&", script, re.MULTILINE)
    return re.sub(r"\$\{(tinkerbell-[^}]+)\}", lambda match: settings[match[1]], line)


def agent(edge: Edge, where: str, line: str, *more: str | Path) -> Process:
    """The agent on a machine that booted with this command line; `more` are options from its OSIE."""
    name = f"{where}-{len(list(edge.directory.glob('cmdline-*')))}"
    file = edge.directory / f"cmdline-{name}"
    file.write_text(line)
    options = ["--kernel-command-line", file, "--runtime", "process", "--state-dir", edge.directory / f"state-{name}"]
    return edge.tinkedge(where, "agent", *options, *more)


def test_machine_boots_with_a_token_and_runs_its_workflow_over_tls(guarded: Edge) -> None:
    line = command_line(guarded.script("near"))
    assert " tinkerbell_tls=true " in line
    assert f" tinkerbell_tls_ca=http://{ADDRESS}:7080/agent/ca.pem#sha256=" in line
    assert TOKEN.search(line)
    running_agent = agent(guarded, "near", line)
    run_workflow(guarded, running_agent)
    assert not TOKEN.search(running_agent.err)


def test_agent_gets_the_authorities_of_registries_that_its_command_line_names(guarded: Edge) -> None:
    pinned = re.search(rf" tinkerbell_registry_ca=http://{ADDRESS}:7080(/\S+)#sha256=(\S+)", guarded.script("near"))
    assert pinned
    status, body = guarded.get("near", pinned[1])
    assert (status, hashlib.sha256(body).hexdigest()) == (200, pinned[2])
    certificates = json.loads(body)
    assert set(certificates) == set(REGISTRIES)
    assert all(x509.load_pem_x509_certificates(pem.encode()) for pem in certificates.values())


def run_workflow(edge: Edge, running_agent: Process, name: str = "first") -> None:
    """Create a Workflow for the machine "near", and wait until its agent has run it with success."""
    edge.kubectl.apply(manifest("Template", "one", {"actions": [{"name": "a", "image": "i", "cmd": "/bin/true"}]}))
    edge.kubectl.apply(manifest("Workflow", name, {"hardwareRef": {"name": "near"}, "templateRef": {"name": "one"}}))
    wait_until(lambda: edge.kubectl.state(name) == "Succeeded", lambda: running_agent.err + edge.process.err[-3000:])
    assert running_agent.terminate() == 0


def test_script_with_a_token_is_refused_to_a_client_that_merely_names_the_machine(guarded: Edge) -> None:
    status, body = guarded.get("thief", f"/ipxe/script/{MACS['near']}/auto.ipxe")
    assert (status, body) == (403, b"this script is served to its own machine only\n")
    message = f"script request from {ADDRESSES['thief']}, but the machine's address is {ADDRESSES['near']}"
    assert message in guarded.journey(MACS["near"], "refused")
    content, output = guarded.tftp("thief", f"{dashed(MACS['near'])}/auto.ipxe")
    assert content == b""
    assert "served to its own machine only" in output
    refusals = [line for line in guarded.journey(MACS["near"], "info") if "own machine only" in line]
    assert any(ADDRESSES["thief"] in line for line in refusals), "by TFTP, too"


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("its own", "its token is that of 52:54:00:00:01:66, another machine"),
        ("none", "its request has no token"),
        ("forged", "its token is not signed with a key of this server"),
    ],
)
def test_agent_with_a_stolen_token_is_refused_and_reported_on_the_machine(guarded: Edge, shown: str, why: str) -> None:
    line = command_line(guarded.script("thief")).replace(f"worker_id={MACS['thief']}", f"worker_id={MACS['near']}")
    if shown == "none":
        line = re.sub(r"tinkerbell_token=\S+", "", line)
    if shown == "forged":
        line = TOKEN.sub(
            lambda match: match[0].replace(MACS["thief"].replace(":", ""), MACS["near"].replace(":", "")), line
        )
    thief = agent(guarded, "thief", line)
    wait_until(lambda: why in thief.err, lambda: thief.err)
    thief.terminate()
    assert "refuses this machine" in thief.err
    wait_until(
        lambda: any(
            "may not act for Hardware default/near" in each for each in guarded.journey(MACS["near"], "refused")
        )
    )


NAMES = {
    "its MAC": x509.DNSName(MACS["near"].replace(":", "-")),
    "its Hardware": x509.UniformResourceIdentifier("tinkerbell:default/near"),
}


def shown(authority: Authority, file: str, name: x509.GeneralName, begins: timedelta = EARLIER) -> list[str | Path]:
    """Return the options of an agent with a certificate for this name."""
    chain, key = authority.sign(file, name, begins)
    return ["--tls-cert", chain, "--tls-key", key]


def test_machine_with_a_certificate_in_its_name_runs_its_workflow(certified: tuple[Edge, Authority]) -> None:
    edge, authority = certified
    line = command_line(edge.script("near"))
    assert " tinkerbell_tls=true " in line
    assert not TOKEN.search(line)
    run_workflow(edge, agent(edge, "near", line, *shown(authority, "mac", NAMES["its MAC"])))
    # Under its other name it is the same machine, so the server rejects nothing.
    run_workflow(edge, agent(edge, "near", line, *shown(authority, "name", NAMES["its Hardware"])), "second")
    assert edge.journey(MACS["near"], "refused") == []


def test_certificate_of_another_machine_is_refused_and_reported_on_the_machine(
    certified: tuple[Edge, Authority],
) -> None:
    edge, authority = certified
    line = command_line(edge.script("near"))
    thief = agent(edge, "thief", line, *shown(authority, "thief", x509.DNSName("thief")))
    wait_until(lambda: "its certificate names 'thief'" in thief.err, lambda: thief.err)
    thief.terminate()
    assert "refuses this machine" in thief.err
    message = f"{ADDRESSES['thief']} may not act for Hardware default/near: its certificate names 'thief'"
    wait_until(lambda: any(message in each for each in edge.journey(MACS["near"], "refused")))


@pytest.mark.parametrize("signed", ["by nobody", "by a foreign authority", "for last week", "for tomorrow"])
def test_agent_without_a_certificate_of_this_authority_does_not_get_in_and_keeps_trying(
    certified: tuple[Edge, Authority], signed: str, tmp_path: Path
) -> None:
    edge, authority = certified
    more = {
        "by a foreign authority": lambda: shown(Authority(tmp_path), "own", NAMES["its MAC"]),
        "for last week": lambda: shown(authority, "ended", NAMES["its MAC"], timedelta(days=-7)),
        "for tomorrow": lambda: shown(authority, "early", NAMES["its MAC"], timedelta(days=1)),
    }.get(signed, list)()
    before = edge.journey(MACS["near"], "refused")
    stranger = agent(edge, "thief", command_line(edge.script("near")), *more)
    # The handshake fails before the agent has named its machine.
    wait_until(lambda: "cannot reach the server" in stranger.err, lambda: stranger.err)
    assert ("give --tls-cert and --tls-key" in stranger.err) is (signed == "by nobody")
    assert ("if the server refuses the certificate" in stranger.err) is (signed != "by nobody")
    assert stranger.popen.poll() is None
    assert stranger.terminate() == 0
    assert edge.journey(MACS["near"], "refused") == before


def test_server_without_the_right_key_reports_it_at_start(guarded: Edge, tmp_path: Path) -> None:
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
