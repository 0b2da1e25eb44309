"""Which interface and address the stack serves when it is not told."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from edge.composition.host import HostError, default_interface, interface_address

HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
NETWORK = "eth1\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
DEFAULT = "eth7\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
DOWN = "eth9\t00000000\t0101A8C0\t0002\t0\t0\t100\t00000000\t0\t0\t0\n"


def routes(directory: Path, *lines: str) -> Path:
    file = directory / "route"
    file.write_text(HEADER + "".join(lines))
    return file


def test_default_is_the_interface_of_the_default_route(tmp_path: Path) -> None:
    assert default_interface(routes(tmp_path, NETWORK, DOWN, DEFAULT)) == "eth7"


def test_host_without_a_default_route_is_told_to_name_the_interface(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="give --interface"):
        default_interface(routes(tmp_path, NETWORK))


def test_address_is_the_interfaces_first() -> None:
    assert interface_address("lo") == "127.0.0.1"


@pytest.mark.parametrize("name", ["absent0", "a-name-that-is-too-long-for-linux", "lo\0", "ä", "eth\udcff"])
def test_missing_interface_is_named_with_those_that_are_there(name: str) -> None:
    with pytest.raises(HostError, match=r"there is no interface .*there are: .*lo"):
        interface_address(name)


def test_interface_without_address_is_told_apart_from_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_address(*_: object) -> bytes:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(fcntl, "ioctl", no_address)
    with pytest.raises(HostError, match="interface lo has no IPv4 address: Cannot assign"):
        interface_address("lo")
