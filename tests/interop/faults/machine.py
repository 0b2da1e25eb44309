"""A machine's firmware, iPXE, OSIE and agent as a script, which sends real packets; and what a fault of it is."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from edge.dhcp.wire import Message, MessageType, codec, options
from edge.journey.events import Milestone
from edge.page.words import STATES
from tests.interop.conftest import in_namespace
from tests.interop.rack import ADDRESS, Namespaces, Process
from tests.interop.test_agent_auth import command_line
from tests.support.bmc import PASSWORD
from tests.waiting import wait_until

UPSTREAM = Path(__file__).with_name("upstream.py")
SCRIPTED_AGENT = Path(__file__).with_name("scripted_agent.py")
REGISTRY = "127.0.0.1:5000"

AT_ONCE = threading.Semaphore(10)
"""So many switch on in the same second: what is tried is not how much this host can do."""
ROM, IPXE, SYSTEM = "rom", "ipxe", "system"
_ANSWER_SECONDS = 3.0


class Scripted:
    """A machine that boots step by step under a test's control, in the namespace `where`, whose card `eth0` has `mac`.

    `journey_text()` returns the text of its journey so far, `state()` its state on the page.
    """

    journey_text: Callable[[], str] = staticmethod(str)
    state: Callable[[], str] = staticmethod(str)
    authority = Path()

    def __init__(self, rack: Namespaces, where: str, mac: str, ip: str, server: str = ADDRESS) -> None:
        """`server` is the edge's address, on the machine's network."""
        self.server = server
        self._rack = rack
        self._where = where
        self.mac = mac
        self.ip = ip
        self._sent = 0
        self.script_text = ""

    # --- DHCP ---

    def discover(self, stage: str = ROM, *, uuid: str = "", giaddr: str = "", architecture: int = 7) -> bool:
        """Send a DISCOVER; return True if an offer came. `architecture`: a number of RFC 4578 section 2.1 or newer."""
        more = {options.CLIENT_ARCHITECTURE: struct.pack("!H", architecture)} if architecture != 7 else {}
        return self._exchange(MessageType.DISCOVER, stage, more, uuid=uuid, giaddr=giaddr) is not None

    def lease(self, stage: str = ROM) -> None:
        """Request an address, and configure it."""
        assert self.discover(stage), f"no offer for {self.mac}"
        assert self._exchange(MessageType.REQUEST, stage, self._requested_options()) is not None, (
            f"no lease for {self.mac}"
        )
        self._rack.address(self._where, f"{self.ip}/24")

    def take_another(self, server: str) -> None:
        """Take the offer of another DHCP server."""
        asked = self._requested_options() | {options.SERVER_IDENTIFIER: socket.inet_aton(server)}
        self._exchange(MessageType.REQUEST, ROM, asked, waits=False)

    def decline(self) -> None:
        """Remove the address and send a DHCPDECLINE: another host uses it (RFC 2131, section 4.4.4)."""
        self._rack.address(self._where)
        self._exchange(MessageType.DECLINE, ROM, self._requested_options(), waits=False)

    def _requested_options(self) -> dict[int, bytes]:
        return {
            options.REQUESTED_ADDRESS: socket.inet_aton(self.ip),
            options.SERVER_IDENTIFIER: socket.inet_aton(self.server),
        }

    def _exchange(
        self,
        kind: MessageType,
        stage: str,
        more: dict[int, bytes],
        uuid: str = "",
        giaddr: str = "",
        waits: bool = True,
    ) -> bytes | None:
        self._sent += 1
        xid = struct.pack("!I", self._sent << 16 | int(self.ip.rpartition(".")[2]))
        packet = codec.build(self._message(kind, xid, stage, more, uuid, giaddr))
        with self._socket() as sock:
            sock.sendto(packet, (self.server if giaddr else "255.255.255.255", 67))
            end = time.monotonic() + (0.2 if giaddr or not waits else _ANSWER_SECONDS)
            while time.monotonic() < end:
                try:
                    answer = sock.recv(4096)
                except TimeoutError:
                    continue
                if answer[4:8] == xid and answer[0] == codec.BOOTREPLY:
                    return answer
        return None

    def _socket(self) -> socket.socket:
        def opened() -> socket.socket:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # some machines are in one namespace
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
            sock.bind(("0.0.0.0", 68))
            sock.settimeout(0.2)
            return sock

        return in_namespace(self._rack.namespaces[self._where], opened)

    def _message(
        self, kind: MessageType, xid: bytes, stage: str, more: dict[int, bytes], uuid: str, giaddr: str
    ) -> Message:
        found: dict[int, bytes] = {options.MESSAGE_TYPE: bytes((kind,))}
        if stage in (ROM, IPXE):
            found[options.VENDOR_CLASS] = b"PXEClient:Arch:00007:UNDI:003016"
            found[options.CLIENT_ARCHITECTURE] = struct.pack("!H", 7)
            found[options.MAX_MESSAGE_SIZE] = struct.pack("!H", 1472)
        if stage == IPXE:
            found[options.USER_CLASS] = b"iPXE"
        if uuid:
            found[options.CLIENT_UUID] = b"\0" + UUID(uuid).bytes_le
        found |= more
        return Message(
            op=codec.BOOTREQUEST, htype=codec.ETHERNET, hops=1 if giaddr else 0, xid=xid, secs=0,
            flags=codec.BROADCAST_FLAG, ciaddr=codec.NO_ADDRESS, yiaddr=codec.NO_ADDRESS, siaddr=codec.NO_ADDRESS,
            giaddr=socket.inet_aton(giaddr or "0.0.0.0"), chaddr=bytes.fromhex(self.mac.replace(":", "")),
            sname=b"", file=b"", options=found,
        )  # fmt: skip

    def wait_until_edge_knows(self, reached: Milestone) -> None:
        """Wait until the edge has recognised that the machine has reached a milestone: it looks once a second."""
        wait_until(lambda: self.state() == STATES[reached], self.journey_text, every=0.5)

    # --- TFTP, HTTP ---

    def _udp(self) -> socket.socket:
        return in_namespace(self._rack.namespaces[self._where], lambda: socket.socket(type=socket.SOCK_DGRAM))

    def knock_at_tftp(self, times: int, pause: float = 2.0) -> None:
        """Request a file by TFTP repeatedly, and read no answer."""
        with self._udp() as sock:
            for _ in range(times):
                with contextlib.suppress(PermissionError):  # its own firewall: as if it were lost on the way
                    sock.sendto(b"\0\1snponly.efi\0octet\0blksize\x001468\0", (self.server, 69))
                time.sleep(pause)

    def tftp_and_stop(self, name: str, blocks: int = 5, seconds: float = 20.0) -> float:
        """Acknowledge `blocks` blocks of a file, then no more; return the time of the last acknowledgement."""
        with self._udp() as sock:
            sock.settimeout(_ANSWER_SECONDS)
            sock.sendto(b"\0\1%s\0octet\0" % name.encode(), (self.server, 69))
            for _ in range(blocks):
                block, peer = sock.recvfrom(2048)
                sock.sendto(b"\0\4" + block[2:4], peer)
            began = time.time()
            time.sleep(seconds)
        return began

    def tftp(self, name: str, within: int = 20) -> bool:
        """Fetch a file by TFTP; return True if it arrived whole."""
        url = f"tftp://{self.server}/{name}"
        return self._curl("--max-time", str(within), "--tftp-blksize", "1468", url) == 0

    def get(self, path: str, within: int = 20, program: str = "curl") -> int:
        """Fetch a path from the edge; return curl's exit status, 0 for success."""
        return self._curl("--max-time", str(within), "-A", program, f"http://{self.server}:7080{path}")

    def _curl(self, *words: str) -> int:
        process = self._rack.start(self._where, "curl", "-sSf", "-o", "/dev/null", *words)
        return process.status()

    # --- the ways ---

    def to_ipxe(self) -> None:
        """Firmware and iPXE, as far as iPXE's lease."""
        with AT_ONCE:
            self.lease(ROM)
            assert self.tftp("snponly.efi", within=40), "no boot program came"
            self.lease(IPXE)

    def script(self) -> None:
        """Fetch the script into `script_text`."""
        url = f"http://{self.server}:7080/ipxe/script/{self.mac}/auto.ipxe"
        got = self._rack.start(self._where, "curl", "-sSf", "--max-time", "20", url)
        assert got.status() == 0, got.err
        self.script_text = got.out

    def kernel(self, osie: str, within: int = 40) -> int:
        """Fetch the kernel of an OSIE; return curl's exit status, 0 for success."""
        return self.get(f"/osie/{osie}/kernel", within)

    def crawl(self) -> None:
        """Fetch the metadata documents that cloud-init reads."""
        for name in ("meta-data/instance-id", "user-data", "vendor-data"):
            self.get(f"/2009-04-04/{name}", program="Cloud-Init/22.4.2")

    def to_osie(self, osie: str = "good", uuid: str = "", model: str = "Scripted", pause: float = 0.0) -> None:
        """Boot from power-on to an OSIE that is up; the kernel takes `pause` seconds to start."""
        self.to_ipxe()
        self.ipxe_to_osie(osie, uuid, model, pause)

    def ipxe_to_osie(self, osie: str = "good", uuid: str = "", model: str = "Scripted", pause: float = 0.0) -> None:
        """Boot from iPXE's lease to an OSIE that is up."""
        self.ipxe_to_kernel(osie, uuid, model=model)
        time.sleep(pause)
        self.lease(SYSTEM)
        assert self.get("/sign/up") == 0

    def ipxe_to_kernel(
        self,
        osie: str = "good",
        uuid: str = "",
        memory: str = "00000000ffff0700",
        clock: float | None = None,
        model: str = "Scripted",
    ) -> None:
        """Boot from iPXE's lease to the kernel.

        `memory` is SMBIOS's size in iPXE's spelling, and `clock` the machine's time.
        """
        self.script()
        assert self.kernel(osie) == 0
        assert self.get(f"/osie/{osie}/initrd") == 0
        parameters = f"uuid={uuid}&memory={memory}&above=&clock={time.time() if clock is None else clock:.0f}"
        assert self.get(f"/sign/starting?model={model}&{parameters}") == 0

    # --- what comes after the firmware ---

    def agent(
        self,
        *,
        runtime: str = "process",
        change: Callable[[str], str] = str,
        inventory: dict[str, Any] | None = None,
    ) -> Process:
        """Start it, with the command line that the machine's script has for its kernel, but for what `change` does.

        inventory: what it reports instead of that of this host; an empty one: nothing, like an older agent.
        """
        file = self._rack.directory / f"{self._where}.cmdline"
        file.write_text(change(command_line(self.script_text)) if self.script_text else "")
        state = self._rack.directory / self._where
        words = ["--kernel-command-line", str(file), "--runtime", runtime, "--state-dir", str(state)]
        if not self.script_text:  # of whom the edge knows nothing, and who knows where it is all the same
            words += ["--agent-id", self.mac, "--server", f"{self.server}:42113", "--tls", "--tls-roots"]
            words += [str(self.authority)]
        if inventory is None:
            return self._rack.tinkedge(self._where, "agent", *words)
        reported = self._rack.directory / f"{self._where}.json"
        reported.write_text(json.dumps(inventory))
        return self._rack.start(
            self._where, sys.executable, SCRIPTED_AGENT, reported if inventory else "-", "agent", *words
        )

    def has_its_address(self, off: int = 0) -> None:
        """Configure the machine's address without DHCP; `off` is subtracted from its last byte."""
        host, _, last = self.ip.rpartition(".")
        self._rack.address(self._where, f"{host}.{int(last) - off}/24")

    def registry(self) -> None:
        """Start a registry on the machine itself."""
        self._rack.start(self._where, sys.executable, UPSTREAM, *REGISTRY.split(":"))

    def occupy_its_address(self) -> None:
        """Another machine, which answers ARP."""
        where = f"{self._where}x"
        self._rack.add(where)
        self._rack.card(where, "eth0", "02:20:00:00:00:01", "rack0")
        self._rack.address(where, f"{self.ip}/24")

    def works(self, word: str) -> None:
        """Boot to an OSIE with a working agent, and cut the power when its journey contains `word`."""
        self.to_osie()
        agent = self.agent()
        wait_until(lambda: word in self.journey_text(), lambda: agent.err, every=0.3)
        self._rack.kill_all(self._where)


@dataclass(frozen=True)
class Bmc:
    """The BMC of a machine.

    state: its power and faults at the start, as `tests.interop.fake_bmc` reads them; empty: no BMC is there. host: its
    address. password: the one in its Secret; empty: no Secret. fingerprint: the one that its certificate must have;
    empty: that of its certificate.
    """

    state: str = ""
    host: str = "127.0.0.1"
    password: str = PASSWORD
    fingerprint: str = ""


@dataclass(frozen=True)
class Discovered:
    """The rule of --discover that is for a machine, and its line on the list of expected machines.

    osie: the OSIE of the rule. is_full: another Hardware has the only address of its range.
    line: name, MAC address (`{mac}`), address and links; empty: no line. becomes: the name that its Hardware gets.
    """

    osie: str = "good"
    is_full: bool = False
    line: str = ""
    becomes: str = ""


@dataclass(frozen=True)
class Fault:
    """`play` gives back when the fault could be known, in seconds since the epoch; None: when it ended. `since` is the
    line of the journey from which on it can be known, where that is not for the machine to say, and `plus` how many
    seconds later; `moment` says that in words.

    interface, dhcp: further fields of the network interface, and fields of its DHCP that differ from the network's.
    osie: the OSIE that the machine boots; empty: none.
    actions: the actions of the machine's own Template, as YAML. workflow: further fields of its Workflow.
    drop: what a firewall drops, and where. routed: the edge has a route to the machine's network.
    second: the machine is on the second network, behind another card of the edge.
    after: a fault whose machine must have reached the OSIE before. rules: the rules that may name this fault.
    bmc: the BMC of the machine. discovered: how it is discovered; None: no rule of --discover is for it.
    """

    name: str
    play: Callable[[Scripted], float | None]
    rules: str
    sentence: str
    osie: str = "good"
    dhcp: str = ""
    interface: str = ""
    ip: str = ""
    since: str = ""
    plus: float = 0.0
    moment: str = ""
    registered: bool = True
    drop: str = ""
    userdata: str = ""
    routed: bool = False
    second: bool = False
    actions: str = ""
    workflow: str = ""
    after: str = ""
    bmc: Bmc | None = None
    discovered: Discovered | None = None

    @property
    def has_boot(self) -> bool:
        """Return True if its Workflow boots its machine by a BMC."""
        return "bootOptions" in self.workflow

    @property
    def slug(self) -> str:
        """Its name, as that of an object."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
