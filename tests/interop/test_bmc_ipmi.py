"""The IPMI client with Debian's ipmitool against ipmi_sim, whose chassis is a script.

IpmiClient -- ipmitool -- relay, which counts logins -- ipmi_sim -- chassis script -- files `power`, `boot`
"""

from __future__ import annotations

import select
import shutil
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.waiting import until, wait_until
from tink.bmc.ipmi import IpmiClient
from tink.bmc.model import BmcConnection, BmcCredentials, BmcError, Cause, PowerState, Reset, ResetType, SetBoot

pytestmark = pytest.mark.long

CHASSIS = """#!/bin/sh
# Called as: PROGRAM ... get NAME..., set NAME VALUE ..., or check. Each value is a file beside the script.
cd "${0%/*}"
operation=$1
shift
case $operation in
  get) for name in "$@"; do echo "$name:$(cat "$name" 2>/dev/null || echo 0)"; done ;;
  set)
    while [ $# -gt 1 ]; do
      echo "$1 $2" >>changes
      echo "$2" >"$1.new" && mv "$1.new" "$1"
      shift 2
    done ;;
esac
"""
SIMULATOR = """
name "bmc1"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "{chassis}"
  user 1 true "" "test" user 10 none md2 md5 straight
  user 2 true "admin" "secret" admin 10 none md2 md5 straight
  user 3 true "operator" "secret" operator 10 none md2 md5 straight
"""
COMMANDS = """
mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_enable 0x20
"""
_OPEN_SESSION, _RAKP_1 = 0x10, 0x12
"""Payload types of RMCP+ (IPMI 2.0 table 13-16)."""


class Relay:
    """Passes datagrams between one client at a time and the simulator. It counts RMCP+ payloads by their type."""

    def __init__(self, target: int) -> None:
        self.payloads: Counter[int] = Counter()
        self._target = ("127.0.0.1", target)
        self._front, self._back = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
        self._front.bind(("127.0.0.1", 0))
        self.port: int = self._front.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        client = ("", 0)
        while True:
            for ready in select.select([self._front, self._back], [], [])[0]:
                data, sender = ready.recvfrom(4096)
                if not data:
                    return
                if ready is self._back:
                    self._front.sendto(data, client)
                    continue
                client = sender
                # RMCP's header (class 7 is IPMI), then the authentication type (6 is RMCP+) and the payload's, 6 bits.
                if data[3:5] == b"\x07\x06":
                    self.payloads[data[5] & 0x3F] += 1
                self._back.sendto(data, self._target)

    def close(self) -> None:
        self._back.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._front.close()
        self._back.close()

    @property
    def logins(self) -> int:
        """Return the number of RAKP 1 messages: each is one attempt to log in."""
        return self.payloads[_RAKP_1]


class Bmc:
    """ipmi_sim on loopback behind the relay. Its chassis is off at first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        script = directory / "chassis"
        script.write_text(CHASSIS)
        script.chmod(0o755)
        (directory / "lan.conf").write_text(SIMULATOR.format(port=self.port, chassis=script))
        (directory / "commands").write_text(COMMANDS)
        program = shutil.which("ipmi_sim")
        assert program is not None, "Debian's package openipmi is missing: deploy/setup.sh packages test-all"
        files = ("-c", directory / "lan.conf", "-f", directory / "commands", "-s", directory / "state")
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen([program, *files, "-n"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._listens, lambda: (directory / "log").read_text())
        self.relay = Relay(self.port)

    def _listens(self) -> bool:
        assert self.process.poll() is None, (self.directory / "log").read_text()
        return f"0100007F:{self.port:04X} " in Path("/proc/net/udp").read_text()

    def client(self, user: str = "admin", password: str = "secret", cipher_suite: str = "3") -> IpmiClient:
        connection = BmcConnection("127.0.0.1", ipmi_port=self.relay.port, cipher_suite=cipher_suite)
        return IpmiClient(connection, BmcCredentials(user, password))

    def value(self, name: str) -> str:
        path = self.directory / name
        return path.read_text().strip() if path.exists() else ""

    def changes(self) -> list[str]:
        return self.value("changes").splitlines()


@pytest.fixture
def bmc(tmp_path: Path) -> Iterator[Bmc]:
    made = Bmc(tmp_path)
    yield made
    made.process.terminate()
    made.process.wait()
    made.relay.close()


async def error_of(client: IpmiClient) -> BmcError:
    with pytest.raises(BmcError) as raised:
        await client.observe()
    return raised.value


async def reaches(client: IpmiClient, state: PowerState) -> None:
    async def holds() -> bool:
        return (await client.observe()).power is state

    await until(holds, f"the power state is not {state}")


@pytest.mark.parametrize("user", ["admin", "operator"])
async def test_power_goes_on_and_off_and_each_call_is_one_login(bmc: Bmc, user: str) -> None:
    async with bmc.client(user) as client:
        seen = await client.observe()
        assert (seen.power, seen.identity.firmware) == (PowerState.OFF, "9.08")
        await client.send(Reset(ResetType.ON))
        assert (bmc.relay.logins, bmc.value("power")) == (2, "1")
        await reaches(client, PowerState.ON)
        await client.send(Reset(ResetType.FORCE_RESTART))
        assert bmc.changes() == ["power 1", "reset 1"]
        await client.send(Reset(ResetType.GRACEFUL_SHUTDOWN))
        assert bmc.changes()[2:] == ["shutdown 1"]
        await client.send(Reset(ResetType.FORCE_OFF))
        await reaches(client, PowerState.OFF)


async def test_power_cycle_is_off_and_then_on(bmc: Bmc) -> None:
    async with bmc.client() as client:
        await client.send(Reset(ResetType.ON))
        await client.send(Reset(ResetType.POWER_CYCLE))
        wait_until(lambda: bmc.changes() == ["power 1", "power 0", "power 1"], lambda: str(bmc.changes()))
        assert (await client.observe()).power is PowerState.ON


@pytest.mark.parametrize(
    ("target", "name"), [("Pxe", "pxe"), ("Hdd", "default"), ("Cd", "cdrom"), ("BiosSetup", "bios"), ("None", "none")]
)
async def test_boot_device_reaches_the_chassis(bmc: Bmc, target: str, name: str) -> None:
    async with bmc.client() as client:
        await client.send(SetBoot(target, "Once", "UEFI"))
        assert bmc.value("boot") == name
        assert bmc.relay.logins == 1


async def test_boot_flags_that_the_bmc_drops_are_read_back_as_disabled(bmc: Bmc) -> None:
    """ipmi_sim accepts each flag, keeps the device alone, and reports the flags as invalid."""
    async with bmc.client() as client:
        await client.send(SetBoot("Pxe", "Once", "UEFI"))
        boot = (await client.observe(boot=True)).boot
    assert boot is not None
    assert (boot.target, boot.enabled, boot.mode) == ("Pxe", "Disabled", None)


async def test_boot_device_that_the_bmc_does_not_know_is_refused(bmc: Bmc) -> None:
    with pytest.raises(BmcError) as raised:
        await bmc.client().send(SetBoot("Safe", "Once", "UEFI"))
    assert raised.value.cause is Cause.REFUSED


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        ("admin", "wrong", "password"),
        ("stranger", "secret", "user"),
        ("admin", "", "password"),
    ],
)
async def test_refused_credentials_cost_one_login(bmc: Bmc, user: str, password: str, words: str) -> None:
    async with bmc.client(user, password) as client:
        for _ in range(3):
            error = await error_of(client)
            assert error.cause is Cause.CREDENTIALS_REFUSED
            assert f"the {words} in the Secret" in str(error)
    assert bmc.relay.logins == 1


async def test_cipher_suite_that_the_bmc_does_not_have_costs_no_login(bmc: Bmc) -> None:
    error = await error_of(bmc.client(cipher_suite="17"))
    assert error.cause is Cause.UNSUPPORTED
    assert "cipher suite 17" in str(error)
    assert (bmc.relay.payloads[_OPEN_SESSION], bmc.relay.logins) == (1, 0)


async def test_bmc_that_is_away_is_unreachable(bmc: Bmc) -> None:
    bmc.process.terminate()
    bmc.process.wait()
    error = await error_of(bmc.client())
    assert error.cause is Cause.UNREACHABLE
    assert f"UDP port {bmc.relay.port}" in str(error)
