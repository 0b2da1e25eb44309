"""`tinkedge iso`: the file that it writes, and the URL that it prints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edge.callers import MediumTokens, token_keys
from edge.cli import main
from ipxe.medium import make_medium
from tests.unit.ipxe_medium import parts

MAC, OTHER = "52:54:00:00:00:01", "52:54:00:00:00:02"
DHCP = {"ip": "10.0.0.5", "netmask": "255.255.255.0"}


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TINKEDGE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _api(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        async def get(self, _resource: Any, name: str, namespace: str) -> Any:
            spec = {"networkInterfaces": {MAC: {"dhcp": DHCP}, OTHER: {}}}
            return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}

        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    async def connect(_kubeconfig: Path) -> Client:
        return Client()

    monkeypatch.setattr("tink.kube.client.KubeClient.connect", connect)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["iso", "--public-ip", "10.0.0.1", *map(str, arguments)])


def test_file_is_the_medium_of_the_hardware(tmp_path: Path) -> None:
    ipxe_dir, out = parts.fill(tmp_path / "ipxe"), tmp_path / "m1.iso"
    done = run("--hardware", "m1", "-n", "rack", "--static", "-o", out, "--ipxe-dir", ipxe_dir, "--http-port", 80)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{out}: 0.1 MB, for BIOS, UEFI x86-64, UEFI arm64, boots {MAC}")
    content = out.read_bytes()
    assert len(content) == make_medium(ipxe_dir).size
    assert content.count(b"set ${medium-port}/ip 10.0.0.5\n") == 2
    assert content.count(f"chain --replace http://10.0.0.1:80/ipxe/script/{MAC}/auto.ipxe?medium=static".encode()) == 2
    assert content.count(b"(rack/m1)") == 2


def test_other_interface_is_named_by_its_mac_and_must_be_one_of_the_hardware(tmp_path: Path) -> None:
    out = tmp_path / "x.iso"
    given = ("--hardware", "m1", "-o", out, "--ipxe-dir", parts.fill(tmp_path / "ipxe"))
    assert run(*given, "--mac", OTHER.upper().replace(":", "-")).exit_code == 0
    assert f"/ipxe/script/{OTHER}/".encode() in out.read_bytes()
    without = run(*given, "--mac", OTHER, "--static")
    assert (without.exit_code, "needs ip and netmask" in without.output) == (1, True)
    strange = run(*given, "--mac", "52:54:00:00:00:09")
    assert (strange.exit_code, "has no 52:54:00:00:00:09" in strange.output) == (1, True)


def test_url_is_signed_by_the_edges_key_for_this_machine(tmp_path: Path) -> None:
    keys = token_keys(tmp_path, None, create=True)
    for arguments, end in (((), "boot.iso"), (("--static", "--usb"), "static.img")):
        done = run("--hardware", "m1", "--url", "--data-dir", tmp_path, *arguments)
        assert done.exit_code == 0, done.output
        _, _, host, iso, token, name = done.output.strip().split("/")
        assert (host, iso, name) == ("10.0.0.1:7080", "iso", end)
        assert MediumTokens(keys).mac(token) == MAC
    ending = run("--mac", OTHER, "--url", "--lifetime", 60, "--data-dir", tmp_path).output.split("/")[4]
    assert MediumTokens(keys, clock=lambda: 0).mac(ending) == OTHER
    assert ".0." not in ending


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--hardware NAME, or --mac MAC"),
        (("--mac", "x"), "x is no MAC address"),
        (("--mac", MAC, "--usb"), "--usb is for --url"),
        (("--mac", MAC, "--static"), "--static needs --hardware"),
    ],
)
def test_what_can_not_be_is_refused(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert says in done.output


def test_what_is_missing_on_this_host_is_said(tmp_path: Path) -> None:
    none = run("--mac", MAC, "--ipxe-dir", tmp_path, "-o", tmp_path / "x.iso")
    assert (none.exit_code, "install the package ipxe" in none.output) == (1, True)
    keys = run("--mac", MAC, "--url", "--data-dir", tmp_path)
    assert (keys.exit_code, "--metadata-token-key" in keys.output) == (1, True)
    nowhere = run("--mac", MAC, "--ipxe-dir", parts.fill(tmp_path / "ipxe"), "-o", tmp_path / "no" / "x.iso")
    assert (nowhere.exit_code, "x.iso: No such file or directory" in nowhere.output) == (1, True)
