"""docs/discovery.md: its commands with the real kubectl, `tinkedge up`, and simulated unknown machines.

`python -m tests.record discovery` plays the rack of 40 machines, and writes "The rack, recorded" into the page.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from edge.fleet.boot import live
from edge.fleet.discovery import ERRORS, Introduction, as_ordered
from edge.fleet.machine import SimulatedMachine, Surroundings
from edge.fleet.network import RelayPort
from edge.fleet.population import Identity, Profile, draw
from edge.fleet.results import Recorder
from tests.interop.conftest import enter_namespace
from tests.interop.installed.transcript import Transcript
from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Kubectl, Namespaces, Process, ip, manifest
from tests.support.bmc import PASSWORD, USER, FakeBmc, certificate, serve
from tests.unit.discovery.test_documented import PRODUCT, RACK, WATCH, lines_of, section, write_section
from tests.waiting import wait_until
from tink.api.v1alpha2 import Raw
from tink.discovery.expected import read_list

pytestmark = pytest.mark.long
T = TypeVar("T")

RECORDED = "The rack, recorded"
STRANGER = "52:54:00:12:34:56"
BMC = "192.168.2.20"
_MACHINES, _ROUTER = "machines", "172.31.77.2"
_NETWORKS = {"10.7.0.0/24": "10.7.0.1", "172.31.8.0/24": "172.31.8.1"}
"""The networks of the page, and the addresses of their relays."""
_QUICK = Profile.model_validate(
    {"power-on": [0, 3], "post": [0.1, 0.5]}
    | {name: [0.1, 0.5] for name in ("loader", "kernel", "osie", "reboot", "system")}
)
_LLDP_SECONDS = 2.0
_SSH = """\
shift
exec unshare --mount sh -c '
mount -t tmpfs none /sys/class/net
mkdir -p /sys/class/net/eno1/device
echo 1 >/sys/class/net/eno1/type
echo 52:54:00:12:34:60 >/sys/class/net/eno1/address
exec "$@"' sh "$@\""""
"""Runs a command on another host: here, but with a network card of hardware. Those of a namespace are virtual."""
_PREFACE = """\
`python -m tests.record discovery` writes this section. It types these lines on a host with `tinkedge up` on `eth1`, and
boots 40 simulated machines ([fleet.md](fleet.md)) behind the relay 10.7.0.1. They use the protocols of real machines,
and are as their lines on
[deploy/examples/discovery/rack7.csv](../deploy/examples/discovery/rack7.csv) order them, but for four: two have swapped
cables, one lacks a disk, and one has the BMC of another machine. The OSIE `hook` is there already."""


# --- the machines -----------------------------------------------------------------------------------------------------


class Machines:
    """Simulated machines in a network namespace, behind a relay for each network, and a BMC. Has its own thread."""

    def __init__(self, namespace: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._exits = AsyncExitStack()
        self._arounds: dict[str, Surroundings] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}

        def run() -> None:
            enter_namespace(namespace)
            asyncio.set_event_loop(self._loop)
            self._loop.run_forever()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self._do(self._open())

    def power_on(self, name: str, mac: str, attributes: Raw, network: str = "10.7.0.0/24") -> None:
        """Start a machine, or restart it. It reports `attributes` as its inventory."""
        self._do(self._power_on(name, mac, attributes, network))

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Awaitable[T]) -> T:
        async def done() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(30)

    async def _open(self) -> None:
        for network, relay in _NETWORKS.items():
            port = RelayPort(relay, ADDRESS)
            self._exits.callback(port.close)
            recorder = Recorder(0)
            self._arounds[network] = Surroundings(_QUICK, 7, port, recorder, lambda each: each == ADDRESS)
        served = await self._exits.enter_async_context(serve(FakeBmc(), address=BMC))

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", served.port)
            await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))

        await self._exits.enter_async_context(await asyncio.start_server(forward, BMC, 443))

    async def _power_on(self, name: str, mac: str, attributes: Raw, network: str) -> None:
        if name in self._lives:
            await self._end(self._lives.pop(name))
        identity = Identity(name, bytes.fromhex(mac.replace(":", "")), "0.0.0.0")
        number = int(mac.replace(":", "")[-4:], 16)
        introduction = Introduction(attributes, _LLDP_SECONDS)
        machine = SimulatedMachine(self._arounds[network], identity, draw(_QUICK, 7, number), introduction=introduction)
        self._lives[name] = asyncio.create_task(live(machine))

    async def _close(self) -> None:
        for each in self._lives.values():
            await self._end(each)
        await self._exits.aclose()

    @staticmethod
    async def _end(life: asyncio.Task[None]) -> None:
        life.cancel()
        await asyncio.wait([life])

    def problems(self) -> str:
        return "; ".join(f"{each.recorder.failures} {each.recorder.errors}" for each in self._arounds.values())


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


# --- the host ---------------------------------------------------------------------------------------------------------


class Site(Namespaces):
    """A host `edge` with an operator, and machines of the page's networks behind it."""

    name = "edge"
    served: Process
    machines: Machines

    def build(self) -> None:
        self.network("eth1", {_MACHINES: "52:54:00:00:77:02"})
        self.address(_MACHINES, f"{_ROUTER}/24", f"{BMC}/24")
        machines = self.namespaces[_MACHINES]
        for network in (*_NETWORKS, f"{BMC}/32"):
            ip("-n", self.namespaces[IN_EDGE], "route", "add", network, "via", _ROUTER)
        for network in _NETWORKS:
            ip("-n", machines, "route", "add", "local", network, "dev", "lo")
        self.machines = Machines(machines)
        self.data = self.directory / "data"
        self.kubectl = Kubectl(self, self.data / "kubeconfig")
        for file in ("osie/kernel", "osie/initrd", "ipxe/undionly.kpxe", "ipxe/snponly.efi"):
            (self.directory / file).parent.mkdir(exist_ok=True)
            (self.directory / file).write_bytes(bytes(100_000))
        (self.directory / "authority.pem").write_text(certificate(BMC).authority)
        shutil.copy(RACK, self.directory)
        self.bin = self.directory / "bin"
        self.bin.mkdir()
        for name, text in (
            ("tinkedge", f'exec {" ".join(TINKEDGE)} "$@"'),
            ("ssh", _SSH),
            ("sudo", 'exec "$@"'),
        ):
            (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.bin / name).chmod(0o755)

    def serve(self, *lines: str) -> None:
        """Start `tinkedge up` with the rules of these lines of the page."""
        rules = [word for line in lines for word in line.split()[4:]]
        assert all(line.startswith("tinkedge up --interface eth1 --discover ") for line in lines)
        folders = (
            "--data-dir",
            self.data,
            "--osie-dir",
            self.directory / "osie",
            "--ipxe-dir",
            self.directory / "ipxe",
        )
        self.served = self.tinkedge(IN_EDGE, "up", "--interface", "eth1", *rules, *folders)
        self.ready(self.served)
        urls = {f"{file}Url": f"file://{self.directory}/osie/{file}" for file in ("kernel", "initrd")}
        self.kubectl.apply(manifest("OSIE", "hook", urls))

    def remove(self) -> None:
        if hasattr(self, "machines"):
            self.machines.close()
        super().remove()

    def type(self, line: str, *, check: bool = True) -> str:
        """Execute a line of the page and return its output."""
        path = f"PATH={self.bin}:/usr/bin:/bin:/usr/local/bin"
        kubeconfigs = [f"{name}={self.data / 'kubeconfig'}" for name in ("KUBECONFIG", "TINKEDGE_KUBECONFIG")]
        others = [f"TINKEDGE_DATA_DIR={self.data}", f"SSL_CERT_FILE={self.directory}/authority.pem"]
        home = f"HOME={self.directory}"
        typed = f"cd {self.directory}\n{line}"
        process = self.run(IN_EDGE, "env", path, home, *kubeconfigs, *others, "bash", "-c", typed)
        assert not check or process.popen.returncode == 0, (line, process.out, process.err)
        return process.out + process.err

    def survey(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, Any] = json.loads(self.type("tinkedge discover list -o json", check=False))
        return found

    def until(self, holds: Callable[[dict[str, list[dict[str, Any]]]], object]) -> None:
        """Wait until the survey of `tinkedge discover list` is so."""
        wait_until(
            lambda: holds(self.survey()),
            lambda: f"{self.survey()} {self.machines.problems()} {self.served.err}",
            every=0.5,
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site


# --- the page ---------------------------------------------------------------------------------------------------------


def comparable(text: str) -> str:
    """Return a transcript without its times and the widths of its columns."""
    text = re.sub(r"\b(\d+(\.\d+)? ?(ms|s|min|m|h))+\b( ago)?|\bnow\b", "TIME", text)
    return re.sub(r" +", " ", text)


# --- machines without a list, and machines in use ---------------------------------------------------------------------


def test_machine_is_approved_by_each_of_both_commands(site: Site) -> None:
    up, get, survey, annotate, approve = lines_of("One machine")
    site.serve(up)
    macs = (STRANGER, STRANGER.replace("34:56", "34:57"))
    lines, _ = read_list(
        "name,serial,mac\n" + "".join(f"m{at},S{at},{mac}\n" for at, mac in enumerate(macs)), "x", "list"
    )
    for mac, each in zip(macs, lines, strict=True):
        site.machines.power_on(mac, mac, as_ordered(each), "172.31.8.0/24")
    site.until(lambda now: [each["has_inventory"] for each in now["waiting"]] == [True, True])
    assert all(mac.replace(":", "-") in site.type(get) for mac in macs)
    assert approve.replace("web-1", "NEW-NAME") in site.type(survey)
    assert "admitted by rule" in site.type(WATCH.replace("<MAC>", STRANGER) + " --once")
    assert "is approved" in site.type(approve)
    site.type(annotate.replace("34-56", "34-57").replace("web-1", "web-2"))
    site.until(lambda now: not now["waiting"])
    assert {"web-1", "web-2"} <= set(site.kubectl("get", "hardware").split())
    assert json.loads(site.type(PRODUCT.replace("NAME", "web-1")))["serialNumber"] == "S0"


def test_machine_in_use_is_adopted_by_its_bmc_and_by_its_agent(site: Site) -> None:
    by_bmc, by_agent = lines_of("Adoption")
    site.serve(lines_of("One machine")[0])
    words = ("create", "secret", "generic", "db-1-bmc", f"--from-literal=username={USER}")
    site.kubectl(*words, f"--from-literal=password={PASSWORD}")
    assert "Hardware default/db-1" in site.type(by_bmc)
    assert "Hardware default/db-2" in site.type(by_agent)
    for name in ("db-1", "db-2"):
        cards = json.loads(site.kubectl("get", "hardware", name, "-o", "json"))["spec"]["networkInterfaces"]
        assert cards
        assert all(each["disableNetboot"] and not each.get("dhcp", {}).get("ip") for each in cards.values())


# --- the rack of 40 machines ------------------------------------------------------------------------------------------


def test_rack_of_forty_machines_is_as_recorded(site: Site) -> None:
    recorded = rack(site)
    if os.environ.get("TINKEDGE_RECORD"):
        write_section(RECORDED, recorded)
    assert comparable(recorded) == comparable(section(RECORDED))


def rack(site: Site) -> str:
    """Play the rack, and return the section of the page."""
    page = Transcript(RECORDED, _PREFACE)
    lines, problems = read_list(RACK.read_text(), "default", RACK.name)
    ordered = {each.key.name: as_ordered(each) for each in lines}
    found = {name: json.loads(json.dumps(each)) for name, each in ordered.items()}
    for error, number in (("swapped cables", 11), ("disk missing", 23), ("BMC of another machine", 31)):
        ERRORS[error].change(list(found.values()), number - 1)
    other_bmc = found["rack7-31"]["bmc"]["nic"]["ports"][0]["mac"]
    macs = {each.key.name: each.macs[0] for each in lines}
    dry_run, store, up, survey, reasons = lines_of("A rack of 40 machines")
    (events,) = lines_of("Is it the right machine?")
    began = time.monotonic()

    def type_(text: str) -> None:
        page.typed(site, text, site.type(text))  # type: ignore[arg-type] # it has a name

    page.happens("In one terminal:")
    page.typed(site, up)  # type: ignore[arg-type]
    site.serve(up)
    page.happens("In another:")
    type_("head -n 3 rack7.csv")
    type_(dry_run)
    type_(store)
    type_(f"{survey} | head -n 6")

    page.happens("All machines but rack7-40 are powered on. When each has introduced itself:")
    for name in list(macs)[:-1]:
        site.machines.power_on(name, macs[name], found[name])
    site.until(
        lambda now: (
            (len(now["missing"]), len(now["different"])) == (2, 3)
            and [bool(each["reason"] and each["ports"]) for each in now["waiting"]] == [True]
        )
    )
    type_(survey)
    page.happens(
        "38 machines have their names. rack7-31 waits: its mainboard was replaced, and with it the BMC.\nThe list gets "
        "the new MAC address, and the machine is approved at once:"
    )
    type_(f"sed -i s/b0:26:28:aa:00:1f/{other_bmc}/ rack7.csv")
    type_(store)
    site.until(lambda now: (len(now["waiting"]), len(now["missing"])) == (0, 1))
    type_(survey)
    page.happens(
        "The two cables are swapped, and the disk is plugged in. These three machines are switched off and on,\n"
        "and rack7-40 is powered on:"
    )
    for name in ("rack7-11", "rack7-12", "rack7-23", "rack7-40"):
        site.machines.power_on(name, macs[name], ordered[name])
    site.until(lambda now: not any(now[each] for each in ("waiting", "missing", "different")))
    type_(survey)
    changes = events.replace("rack7-01", "rack7-23") + " | grep Disk"
    wait_until(lambda: "DiskAdded" in site.type(changes), every=0.5)
    type_(changes)
    type_(f"{reasons} | grep -c Matches")
    states = ("get", "hardware", "-o", "jsonpath={.items[*].status.state} {.items[*].status.bootProblem}")
    wait_until(lambda: site.kubectl(*states).split() == 40 * ["Waiting"], lambda: site.kubectl(*states), every=0.5)
    type_("kubectl get hardware")
    page.happens(
        f"All of this took {time.monotonic() - began:.0f} s. Real machines need some minutes more, for the self-test\n"
        "of their firmware and to load their OSIE."
    )
    assert all("bmc_secret" in each.text for each in problems)
    return page.page.partition("\n\n")[2].strip()
