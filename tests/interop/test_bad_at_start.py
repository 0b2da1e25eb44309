"""A file that has gone bad by itself does not end the start of `tinkedge up`.

The rest serves machines, and the part that needs the file begins when it is good.
"""

from __future__ import annotations

import ipaddress
import json
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from tests.interop.authority import Authority
from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Kubectl, Process
from tests.interop.test_capabilities import HARDWARE, IN_MACHINE, Rack, assert_serves
from tests.waiting import wait_until


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


def up(rack: Rack, data: Path, *words: str | Path) -> Process:
    network = ["--interface", "cap0", "--public-ip", ADDRESS]
    return rack.started(rack.start(IN_EDGE, *TINKEDGE, "up", *network, "--data-dir", data, *words))


def readiness(rack: Rack) -> str:
    return rack.run(IN_EDGE, "curl", "-sS", f"http://{ADDRESS}:7080/readyz").out


def agents_port_is_open(rack: Rack) -> bool:
    ask = f"openssl s_client -connect {ADDRESS}:42113 -alpn h2 </dev/null | grep -aq 'BEGIN CERTIFICATE'"
    return rack.run(IN_EDGE, "sh", "-c", ask).popen.returncode == 0


def test_machines_are_served_while_the_certificate_for_agents_is_bad_and_agents_when_it_is_replaced(
    rack: Rack, tmp_path: Path
) -> None:
    name, authority = x509.IPAddress(ipaddress.ip_address(ADDRESS)), Authority(tmp_path)
    chain, key = authority.sign("tls", name, timedelta(days=-3))
    process = up(rack, tmp_path / "data", "--grpc-tls-cert", chain, "--grpc-tls-key", key)
    wait_until(lambda: f"agents are not served: --grpc-tls-cert {chain}: ended on " in readiness(rack))
    assert_serves(rack, tmp_path / "data")
    assert not agents_port_is_open(rack)
    doctor = rack.run(IN_EDGE, *TINKEDGE, "doctor", "--interface", "cap0", "--no-lab", "--data-dir", tmp_path / "data")
    assert "not ready: agents are not served: --grpc-tls-cert" in doctor.out
    authority.sign("tls", name)
    wait_until(lambda: readiness(rack).startswith("ok"), lambda: process.err)
    assert agents_port_is_open(rack)
    assert "Traceback" not in process.err
    assert process.terminate() == 0


def test_machines_are_served_while_keys_users_manifests_and_authorities_are_bad(rack: Rack, tmp_path: Path) -> None:
    data, manifests, ca = tmp_path / "data", tmp_path / "manifests", tmp_path / "ca.pem"
    words = ["--agent-auth", "token", "--manifests", manifests, "--registry-ca", f"registry.example:5000={ca}"]
    words += ["--grpc-tls-ca", tmp_path / "authority.crt"]
    assert up(rack, data).terminate() == 0
    for file in ("metadata-token.key", "agent-token.key", "users.json", "admin-token"):
        (data / file).write_text("cut off")
        (data / file).chmod(0o600)
    process = up(rack, data, *words)
    assert_serves(rack, data)
    for expected in (
        f"metadata token key {data}/metadata-token.key: a key has less than 32 characters",
        f"agent token key {data}/agent-token.key: a key has less than 32 characters",
        f"admin token {data}/admin-token: a key has less than 32 characters",
        f"{data}/users.json: the file is cut off",
        f"there is no directory {manifests}",
        f"there is no file {ca}",
    ):
        assert expected in process.err
    Authority(tmp_path).file.rename(ca)
    wait_until(lambda: "the authorities of the gRPC server and of registries are read again" in process.err)
    manifests.mkdir()
    osie = {"kernelUrl": f"http://{ADDRESS}/kernel", "initrdUrl": f"http://{ADDRESS}/initrd"}
    made = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": "OSIE", "metadata": {"name": "later"}, "spec": osie}
    (manifests / "later.json").write_text(json.dumps(made))
    wait_until(lambda: f"{manifests}: nothing is refused any more" in process.err, lambda: process.err)
    assert "Traceback" not in process.err
    assert process.terminate() == 0


def test_machines_get_boot_programs_when_the_directory_has_them(rack: Rack, tmp_path: Path) -> None:
    programs, data = tmp_path / "ipxe", tmp_path / "data"
    process = up(rack, data, "--ipxe-dir", programs)
    Kubectl(rack, data / "kubeconfig").apply(HARDWARE)
    wait_until(lambda: f"iPXE binaries: {programs}: No such file or directory" in readiness(rack), lambda: process.err)
    wait_until(lambda: rack.lease().popen.returncode == 0, lambda: process.err)
    rack.address(IN_MACHINE, "172.31.77.50/24")
    ask = ["curl", "-sSf", "-o", "/dev/null", f"tftp://{ADDRESS}/undionly.kpxe"]
    assert rack.run(IN_MACHINE, *ask).popen.returncode != 0
    shutil.copytree("/usr/lib/ipxe", programs)
    wait_until(lambda: readiness(rack).startswith("ok"), lambda: process.err)
    wait_until(lambda: rack.run(IN_MACHINE, *ask).popen.returncode == 0, lambda: process.err)
    assert process.terminate() == 0
