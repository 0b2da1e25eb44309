"""Healthy boots of real firmware cause no warning: their captures are replayed with their own timing.

DHCP packets go to a real responder, and TFTP names to the real table of files. Downloads are recorded like the servers
do it. The replay ends with the last packet of the capture.
"""

from __future__ import annotations

import base64
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edge.callers import Callers
from edge.dhcp import DhcpSettings, Received, Responder
from edge.dhcp.wire import codec, options
from edge.dhcp_common import DhcpSite
from edge.journey.boots import is_boot_packet, last_boot
from edge.journey.events import BEGUN, Outcome, Step, Value
from edge.journey.expectations import KnownNetworks, Registered
from edge.journey.history import Happened
from edge.machines import DhcpMode, Inventory, NetbootPolicy
from edge.tftp import BootFiles
from edge.tftp.source import TftpRefusal, TftpRequest
from ipxe.binaries import BootBinaries, is_optional
from tests.unit.dhcp.harness import hardware
from tests.unit.journey.expectations.play import FACTS, MAC, Play
from tink.api.v1alpha2 import BootClient

Line = tuple[float, list[str]]


def boots() -> dict[str, list[Line]]:
    """The lines of each capture, with seconds."""
    found: dict[str, list[Line]] = defaultdict(list)
    for line in Path(__file__).with_name("boots.txt").read_text().splitlines():
        name, milliseconds, *words = line.split(" ")
        found[name].append((int(milliseconds) / 1000, words))
    return found


BOOTS = boots()
_NOT_KEPT = 0.005
"""A transfer that ends sooner than that is one of which the capture has the first packet only."""


class Firmware:
    """Plays one capture to what the edge is made of."""

    def __init__(self, lines: list[Line], directory: Path) -> None:
        self.play = Play()
        self._lines = lines
        ip, server, self.mac = _addresses(lines)
        registered = Registered("default/m1", ip, "255.255.255.0", server)
        self.play.facts = replace(FACTS, registered=registered, network=KnownNetworks())
        inventory, policy = Inventory(), NetbootPolicy(DhcpMode.RESERVATION)
        inventory.apply(hardware("m1", self.mac, ip))
        for name in ("undionly.kpxe", "snponly.efi", "ipxe.efi", "ipxe-arm64.efi", "snponly-2025.efi", "grubx64.efi"):
            (directory / name).write_bytes(b"MZ" * 100)
        binaries = BootBinaries(directory)
        settings = DhcpSettings(server, server, f"http://{server}:7080", ())
        self._responder = Responder(
            DhcpSite(inventory, policy, binaries, self._record, lambda: self.play.now), settings
        )
        self._files = BootFiles(binaries, inventory, Callers(inventory), policy)
        self._ip, self._server = ip, server

    def _record(self, _mac: str, step: Step, outcome: Outcome, message: str, **detail: Value) -> None:
        self.play.journey.record(MAC, step, outcome, message, **detail)

    def run(self) -> list[str]:
        """Replay the capture and return the warnings."""
        for at, words in self._lines:
            self.play.wait(max(0.0, self.play.began + at - self.play.now))
            getattr(self, words[0])(*words[1:])
        return self.play.warnings

    def dhcp(self, port: str, packed: str) -> None:
        payload = zlib.decompress(base64.b64decode(packed))
        self._responder.respond(payload, Received("0.0.0.0", 68, int(port)))

    def tftp(self, how: str, name: str) -> None:
        step = {"kernel": Step.KERNEL, "initrd": Step.INITRD}.get(name.rpartition("/")[2], Step.TFTP)
        if how == "missing":
            found = self._files(TftpRequest(name, self._ip))
            assert isinstance(found, TftpRefusal)
            self._record("", step, Outcome.INFO if found.expected else Outcome.FAILED, f"TFTP {found.message}")
        elif how == "begun":
            if not self._is_missing(name):
                self._record("", step, Outcome.INFO, f"TFTP {name} requested", name=name, phase=BEGUN, file_bytes=1000)
        elif how == "ended":
            self._record("", step, Outcome.OK, f"TFTP sent {name}", name=name, size_bytes=1000)
        else:
            self._record("", step, Outcome.INFO, f"TFTP told the size of {name}", name=name)

    def _is_missing(self, name: str) -> bool:
        return any(words[:2] == ["tftp", "missing"] and words[2] == name for _, words in self._lines)

    def http(self, method: str, path: str, status: str) -> None:
        name = path.rpartition("/")[2]
        if method == "GET" and name.endswith(".efi"):
            outcome = Outcome.INFO if is_optional(name) else Outcome.OK
            self._record("", Step.BINARY, outcome, f"boot program {name}", size_bytes=1000)
        elif name == "boot.ipxe" and status == "200":
            self._record("", Step.SCRIPT, Outcome.OK, "script sent", boots="own")


def _addresses(lines: list[Line]) -> tuple[str, str, str]:
    """Return the address, the server and the MAC of the capture, so that our responder gives the same answers."""
    ip, server, mac = "10.0.0.5", "10.0.0.1", MAC
    for message in _messages(lines):
        mac = message.chaddr.hex(":")
        if requested := message.options.get(options.REQUESTED_ADDRESS):
            ip = options.dotted(requested)
        if asked := message.options.get(options.SERVER_IDENTIFIER):
            server = options.dotted(asked)
    return ip, server, mac


def _messages(lines: list[Line]) -> Iterator[codec.Message]:
    for _, words in lines:
        if words[0] == "dhcp":
            yield codec.parse(zlib.decompress(base64.b64decode(words[2])))


def _with_ends(lines: list[Line]) -> list[Line]:
    """A transfer of which the capture has no more than the beginning was over when the next thing was asked for."""
    made: list[Line] = []
    for number, (at, words) in enumerate(lines):
        begun = next((b for b, w in reversed(made) if w[:2] == ["tftp", "begun"] and w[2:] == words[2:]), at)
        if words[:2] == ["tftp", "ended"] and at - begun < _NOT_KEPT:
            at = next((later for later, _ in lines[number + 1 :] if later > at), at)
        made.append((at, words))
    return sorted(made, key=lambda line: line[0])


def test_there_are_twenty_different_ones():
    assert len(BOOTS) >= 20


@pytest.mark.parametrize("name", sorted(BOOTS))
def test_firmware_that_boots_well_is_warned_about_nothing(name, tmp_path):
    firmware = Firmware(_with_ends(BOOTS[name]), tmp_path)
    assert firmware.run() == [], [finding.message for _, finding in firmware.play.reported]
    logged = firmware.play.journey.events(MAC)
    assert len(logged) >= 2
    assert [event.message for event in logged if event.outcome in (Outcome.FAILED, Outcome.REFUSED)] == []


@pytest.mark.parametrize("name", sorted(name for name, lines in BOOTS.items() if [*_messages(lines)]))
def test_all_dhcp_packets_of_a_recorded_boot_are_one_boot(name, tmp_path):
    firmware = Firmware(_with_ends(BOOTS[name]), tmp_path)
    firmware.run()
    entries = firmware.play.journey.after(MAC, 0.0, 500)
    first = next(time for time, entry in entries if is_boot_packet(entry))
    boot = last_boot(Happened(time, MAC, entry) for time, entry in entries)
    assert boot == (first, BootClient.NETBOOT, MAC, True)
