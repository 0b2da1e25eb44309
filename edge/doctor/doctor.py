"""What would keep this host from serving machines, or from running the lab, and how to mend it.

`tinkedge doctor` prints all findings; the lab asks for its own before it begins. Nothing here changes anything, and
nothing but `probe` sends anything.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import re
import shutil
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edge.doctor.checks import (
    Finding,
    Packet,
    Severity,
    check_clock,
    check_ethernets,
    check_firewall,
    check_ipv6,
    check_link_metadata,
    check_links,
    check_space,
    note,
    probe_link_metadata,
    warning,
)
from edge.neighbour.host import HostError, Network, default_interface, interface_address
from edge.neighbour.well_known import METADATA_PORT
from ipxe.medium import ALL_BOOTS, MediumError, make_medium
from tink.files.data_directory import (
    PACKAGED,
    DataDirectoryError,
    disk_refuses,
    give,
    out_of_reach,
    problems,
    service_user,
    user_name,
)
from tink.files.key_file import KeyFile, KeyFileError

_KEY_FILES = {
    "metadata-token.key": "metadata token key",
    "agent-token.key": "agent token key",
    "admin-token": "admin token",
    "checkpoint.key": "checkpoint key",
}
_CAPABILITIES = {"CAP_NET_BIND_SERVICE": 10, "CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21}

# Program -> the Debian package that has it. deploy/setup.sh installs the same packages.
LAB_PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-system-aarch64": "qemu-system-arm",
    "ip": "iproute2",
    "docker-registry": "docker-registry",
    "skopeo": "skopeo",
    "umoci": "umoci",
    "mmdebstrap": "mmdebstrap",
    "mksquashfs": "squashfs-tools",
    "cpio": "cpio",
    "depmod": "kmod",
    "busybox": "busybox-static",
    "zstd": "zstd",
    "syslinux": "syslinux",
    "mcopy": "mtools",
    "mkfs.vfat": "dosfstools",
    "sgdisk": "gdisk",
    "mke2fs": "e2fsprogs",
}
LAB_FILES = {
    "ovmf": ("/usr/share/OVMF/OVMF_CODE_4M.fd",),
    "qemu-efi-aarch64": ("/usr/share/AAVMF/AAVMF_CODE.fd",),
    "ipxe": ("/usr/lib/ipxe/snponly.efi",),
    "ipxe-qemu": ("/usr/lib/ipxe/qemu/pxe-virtio.rom", "/usr/share/qemu/pxe-virtio.rom"),  # Debian 12's, Debian 13's
    "systemd-boot-efi": ("/usr/lib/systemd/boot/efi/systemd-bootx64.efi",),
    "syslinux-common": ("/usr/lib/syslinux/mbr/gptmbr.bin",),
    "debian-archive-keyring": ("/usr/share/keyrings/debian-archive-keyring.gpg",),
}
"""A file of each package, wherever it lies: one is enough."""
ARM64_PACKAGES = {"qemu-system-arm", "qemu-efi-aarch64"}
"""Those of them that only a machine with arm64 needs."""
_LAB_DISK_MB = 4000
_PROGRAM = ("tinkedge", "edge.cli", "edge.run.server_process")
_ASKED = ("tftp", "http", "server")
"""Services that answer whoever asks; DHCP is silent to strangers."""
_BOOT_PROGRAMS = ("undionly.kpxe", "snponly.efi")


@dataclass(frozen=True, slots=True)
class Port:
    """A port that a service listens on: at `address`, or, without one, where machines are.

    `name` is what --disable calls the service; `without` is how to start without this port, if not by --disable.
    """

    service: str
    kind: socket.SocketKind
    number: int
    name: str
    address: str = ""
    without: str = ""


PORTS = (
    Port("DHCP", socket.SOCK_DGRAM, 67, "dhcp"),
    Port("PXE boot server", socket.SOCK_DGRAM, 4011, "dhcp"),
    Port("TFTP", socket.SOCK_DGRAM, 69, "tftp"),
    Port("HTTP", socket.SOCK_STREAM, 7080, "http"),
    Port("gRPC", socket.SOCK_STREAM, 42113, "server"),
    Port("embedded API", socket.SOCK_STREAM, 6443, "apiserver", "127.0.0.1"),
    Port("admin HTTP", socket.SOCK_STREAM, 7081, "admin", "127.0.0.1"),
)


def ports(numbers: Mapping[str, int], admin_address: str, disabled: Collection[str]) -> list[Port]:
    """Those of the services that run here, with the numbers that are set for them by `Port.name`."""
    return [
        replace(
            port,
            number=numbers.get(port.name, port.number),
            address=admin_address if port.name == "admin" else port.address,
        )
        for port in PORTS
        if port.name not in disabled
    ]


def kubectl() -> str | None:
    """The path of kubectl: the one on PATH, else the one that `make` unpacked beside this Python; None if none is."""
    return shutil.which("kubectl") or shutil.which("kubectl", path=Path(sys.executable).parent)


def serving(
    interfaces: Sequence[str],
    ipxe_dir: Path,
    wanted: Sequence[Port] | None = None,
    *,
    ipv6: bool = False,
    routers: Collection[str] = (),
    link_metadata: bool = False,
) -> Iterator[Finding]:
    """What `tinkedge up` needs. Interfaces as `--interface` takes them (`NAME[=IP]`); none: the default route's.

    `wanted` are the ports to listen on; None: the usual ones. `ipv6`: machines are to be served over IPv6, too;
    `routers` are the interfaces where this host is their router. `link_metadata`: metadata is to be served at the
    link-local address that machines know.
    """
    yield _capabilities("serving", ("CAP_NET_BIND_SERVICE", "CAP_NET_RAW"))
    if link_metadata:
        yield _capabilities("--link-metadata", ("CAP_NET_ADMIN",))
    wanted = PORTS if wanted is None else wanted
    networks: list[Network] = []
    packets: list[Packet] = []
    for interface in interfaces or [""]:
        is_told = False
        try:
            named = replace(_named(interface), ipv6=ipv6)
            yield from check_links(named)
            is_told = True
            if ipv6:
                routes, dhcp = named.interface in routers, any(port.name == "dhcp" for port in wanted)
                yield from check_ipv6(named.interface, routes=routes, dhcp=dhcp)
            if link_metadata:
                packets.append(Packet("tcp", METADATA_PORT, named.interface, version=6))
                yield from check_link_metadata(named.interface)
            networks.append(_network(interface))
        except HostError as error:
            if not is_told:
                remedy = "give the machines' interface with --interface"
                yield Finding("interface", ok=False, seen=str(error), remedy=remedy)
        except OSError as error:
            yield note("interface", f"the kernel does not tell of {interface}: {error.strerror}")
    try:
        yield from check_ethernets([network.interface for network in networks])
    except OSError as error:
        yield note("ARP", f"the kernel does not tell of its neighbours: {error.strerror}")
    for port in wanted:
        if port.address or not networks:
            yield _port(port, None)
        else:
            yield from (_port(port, network) for network in networks)
    facing = [port for port in wanted if not port.address]
    packets += [Packet(_protocol(port), port.number, each.interface) for each in networks for port in facing]
    yield from check_firewall(packets)
    yield check_clock()
    yield _ipxe(ipxe_dir)
    yield _media(ipxe_dir)


def data_directory(directory: Path) -> Iterator[Finding]:
    """Whether others on this host can look into it, and whether its disk can be written."""
    name = f"data directory {directory}"
    try:
        owner = directory.stat().st_uid
        # Root may ask for tinkedge, which runs as another user.
        found = problems(directory, None if os.geteuid() else owner)
    except FileNotFoundError:
        yield Finding(name, ok=True, seen="not there; the first start makes it")
        yield from check_space(next(parent for parent in directory.absolute().parents if parent.exists()))
        return
    except OSError as error:
        remedy = "run this as the user that runs tinkedge, or give its --data-dir"
        yield Finding(name, ok=False, seen=error.strerror or str(error), remedy=remedy)
        return
    for problem in found:
        yield Finding(name, ok=False, seen=problem.seen, remedy=problem.remedy)
    if not found:
        yield _whose(name, directory, owner)
        yield from _out_of_reach(name, directory)
        yield from _garbled_keys(directory)
    refuses = disk_refuses(directory)
    free = shutil.disk_usage(directory).free // 10**6
    remedy = "until that is mended, what is stored is served, and nothing can be changed"
    yield Finding("data directory's disk", not refuses, refuses or f"{free} MB free", remedy)
    if not refuses:
        yield from check_space(directory)


def _whose(name: str, directory: Path, owner: int) -> Finding:
    """Say whom it belongs to. Warn if that is root where the service of the package has a user of its own."""
    service = service_user()
    if service is not None and not owner and directory.absolute() == PACKAGED:
        remedy = f"for the service, as root: '{give(directory, service.user)}'"
        return warning(name, f"belongs to root, and the service runs as {service}", remedy)
    return Finding(name, ok=True, seen=f"for {user_name(owner)} alone")


def _out_of_reach(name: str, directory: Path) -> Iterator[Finding]:
    """Yield what the owner can't read in the folders that operators fill."""
    try:
        for problem in out_of_reach(directory):
            yield Finding(name, ok=False, seen=problem.seen, remedy=problem.remedy)
    except (OSError, DataDirectoryError) as error:
        yield note(name, f"not examined as the service's user: {error}")


def _garbled_keys(directory: Path) -> Iterator[Finding]:
    """Yield the key files that can't be used. A service that runs does without them, as its log says."""
    for file, what in _KEY_FILES.items():
        path = directory / file
        if not os.path.lexists(path):
            continue  # the next start makes it
        try:
            KeyFile(path, what)
        except KeyFileError as error:
            remedy = "put it back from a backup, or remove it: the next start makes another one"
            yield Finding(f"{what} {path}", ok=False, seen=str(error).partition(": ")[2], remedy=remedy)


def probe(
    interfaces: Sequence[str], ipxe_dir: Path, wanted: Sequence[Port] | None = None, *, link_metadata: bool = False
) -> Iterator[Finding]:
    """What can only be seen by asking: who else answers DHCP, whether our TFTP serves, and whether the ports of what
    runs here answer machines, each as a machine sees it. `wanted` are the ports; None: the usual ones. With
    `link_metadata`, also who has the address of that.

    Takes some seconds. Sends DHCPDISCOVERs of a machine that there is not, reads a boot program by TFTP, and asks our
    own ports as if from outside.
    """
    for interface in interfaces or [""]:
        try:
            if link_metadata:
                yield from probe_link_metadata(_named(interface).interface)
            network = _network(interface)
        except HostError:
            continue  # `serving` has told
        except OSError as error:
            yield note("interface", f"the kernel does not tell of {interface}: {error.strerror}")
            continue
        yield from _other_servers(network)
        yield _tftp(network, ipxe_dir)
        yield from _from_outside(network, PORTS if wanted is None else wanted)


def lab(cache: Path, *, uefi: bool = True, arm64: bool = False) -> Iterator[Finding]:
    """What `tinkedge lab` needs besides; `uefi`: for its machines with UEFI, too, `arm64`: for those with that."""
    yield _capabilities("namespaces", ("CAP_SYS_ADMIN", "CAP_NET_ADMIN"))
    missing = {package for program, package in LAB_PROGRAMS.items() if shutil.which(program) is None}
    missing |= {package for package, paths in LAB_FILES.items() if not any(_readable(Path(path)) for path in paths)}
    missing -= set() if uefi else {"ovmf"}
    missing -= set() if arm64 else ARM64_PACKAGES
    packages = " ".join(sorted(missing))
    yield Finding(
        "lab packages",
        not missing,
        f"missing: {packages}" if missing else "all installed",
        f"as root: apt-get install --no-install-recommends {packages}",
    )
    yield Finding(
        "kubectl",
        kubectl() is not None,
        kubectl() or "not on PATH",
        "`make run` unpacks one into .venv/bin; or put any kubectl on PATH",
    )
    yield Finding(
        "tap devices",
        Path("/dev/net/tun").exists(),
        "/dev/net/tun is there" if Path("/dev/net/tun").exists() else "/dev/net/tun is missing",
        "modprobe tun",
    )
    yield _disk(cache)


def _capabilities(name: str, wanted: tuple[str, ...]) -> Finding:
    effective = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
    missing = [capability for capability in wanted if not effective >> _CAPABILITIES[capability] & 1]
    seen = f"missing: {', '.join(missing)}" if missing else f"{', '.join(wanted)} held"
    return Finding(f"privilege for {name}", not missing, seen, "run it as root, or give it these capabilities")


def _named(interface: str) -> Network:
    """As `--interface` names it. Raises HostError."""
    name, _, address = interface.partition("=")
    return Network(name or default_interface(), address)


def _network(interface: str) -> Network:
    """With its address. Raises HostError."""
    named = _named(interface)
    return replace(named, address=named.address or interface_address(named.interface))


def _protocol(port: Port) -> str:
    return "udp" if port.kind is socket.SOCK_DGRAM else "tcp"


def _port(port: Port, network: Network | None) -> Finding:
    """Whether the service could listen there: tried as the service does it, on its interface or address alone."""
    where = f" on {network.interface}" if network is not None else ""
    name = f"port {port.number}/{_protocol(port)} ({port.service}){where}"
    family = socket.AF_INET6 if ":" in port.address else socket.AF_INET
    with socket.socket(family, port.kind) as probe:
        if port.kind is socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = port.address
        try:
            if network is not None and port.kind is socket.SOCK_DGRAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, network.interface.encode() + b"\0")
            elif network is not None:
                address = network.address
            probe.bind((address, port.number))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                remedy = (
                    "see which addresses there are: ip -brief address"
                    if error.errno == errno.EADDRNOTAVAIL
                    else "run it as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW"
                )
                return Finding(name, ok=False, seen=os.strerror(error.errno or 0), remedy=remedy)
            holders = list(_holders(port))
            if holders and all(holder.ours for holder in holders):
                return Finding(name, ok=True, seen=f"tinkedge serves here, process {holders[0].pid}")
            named = ", ".join(f"{holder.name} (process {holder.pid})" for holder in holders)
            look = named or f"another program, named by: ss -lnp 'sport = :{port.number}'"
            remedy = f"stop what has it: {look}; or start without it: {port.without or f'--disable {port.name}'}"
            return Finding(name, ok=False, seen=os.strerror(error.errno), remedy=remedy)
    return Finding(name, ok=True, seen="free")


@dataclass(frozen=True, slots=True)
class _Holder:
    """A process with a port open."""

    pid: int
    name: str
    ours: bool


def _holders(port: Port) -> Iterator[_Holder]:
    """Who has the port open, on whatever address; of processes that this user may look into (proc(5))."""
    # gRPC listens on IPv4 addresses with IPv6 sockets, too.
    tables = [Path("/proc/net") / f"{_protocol(port)}{version}" for version in ("", "6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    state = "07" if _protocol(port) == "udp" else "0A"  # what an unconnected UDP socket is in, and LISTEN
    inodes = {line[9] for line in lines if line[1].endswith(f":{port.number:04X}") and line[3] == state}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if inodes.isdisjoint(_sockets(process)):
                continue
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            name = (process / "comm").read_text().strip()
        except OSError:
            continue  # ended meanwhile, or another user's
        yield _Holder(int(process.name), name, any(Path(word).name in _PROGRAM for word in words[:4]))


def _sockets(process: Path) -> Iterator[str]:
    """The inodes of a process's sockets. Raises OSError."""
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile, as that of this very directory is
            found = re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink()))
            if found is not None:
                yield found[1]


def _other_servers(network: Network) -> Iterator[Finding]:
    # Here and not above: what needs the extra `diagnose` is loaded by those who ask for it.
    from edge.doctor import servers
    from edge.doctor.extra import DiagnoseError

    name = f"other DHCP servers on {network.interface}"
    try:
        offers = servers.find(network.interface, servers.LISTEN_SECONDS, random.SystemRandom())
    except DiagnoseError as error:
        yield Finding(name, ok=False, seen="not looked for", remedy=str(error))
        return
    others = [offer for offer in offers if offer.server != network.address]
    for offer in others:
        gives = f"an address ({offer.address})" if offer.address else "no address"
        yield Finding(
            name,
            ok=False,
            seen=f"{offer.server} ({offer.mac}) offers {gives} and {offer.boots or 'nothing'} to boot",
            remedy="machines take the first answer: stop it, or leave addresses to it with --dhcp-mode proxy",
        )
    if not others:
        yield Finding(name, ok=True, seen=f"none answered within {servers.LISTEN_SECONDS:g} s")


def _tftp(network: Network, ipxe_dir: Path) -> Finding:
    """Fetch a boot program from our own TFTP server, where one runs."""
    from edge.doctor import fetch
    from edge.doctor.extra import DiagnoseError, MissingExtraError

    name = f"TFTP from {network.address}"
    port = next(port for port in PORTS if port.name == "tftp")
    if not any(_holders(port)):
        return Finding(name, ok=True, seen="not tried: it does not run here now")
    file = next((ipxe_dir / name for name in _BOOT_PROGRAMS if _readable(ipxe_dir / name)), None)
    if file is None:
        return Finding(name, ok=True, seen="not tried: there is no boot program to ask for")
    try:
        got = fetch.fetch(network.address, file.name, port.number)
    except MissingExtraError as error:
        return note(name, "not tried", str(error))
    except DiagnoseError as error:
        return Finding(name, ok=False, seen=str(error), remedy="see its log, and whether a firewall is in between")
    content = file.read_bytes()
    if got.sha256 != hashlib.sha256(content).hexdigest():
        seen = f"{file.name} is not the file in {ipxe_dir}: {got.size} bytes instead of {len(content)}"
        return Finding(
            name, ok=False, seen=seen, remedy="restart tinkedge if the file is new; else see who has the port"
        )
    return _for_machines(name, f"{file.name}, {got.size} bytes in {got.seconds:.2f} s", network.interface, port.number)


def _from_outside(network: Network, wanted: Sequence[Port]) -> Iterator[Finding]:
    """Whether the ports of services that run here answer what arrives on the interface, past no rule of this host."""
    from edge.doctor import inbound
    from edge.doctor.extra import DiagnoseError

    asked = [port for port in wanted if not port.address and port.name in _ASKED and any(_holders(port))]
    if not asked:
        return
    name = f"what arrives on {network.interface}"
    try:
        with inbound.outside(network.interface, network.address) as machine:
            if not machine.knows_us():
                yield note(name, f"not tried: {network.interface} answers no ARP for {network.address}")
                return
            for port in asked:
                tftp = port.name == "tftp"
                answered = machine.tftp(port.number, _BOOT_PROGRAMS[0]) if tftp else machine.tcp(port.number)
                yield _answered(port, network, answered=answered)
    except (DiagnoseError, OSError) as error:
        yield note(name, f"not tried: {error}")


def _answered(port: Port, network: Network, *, answered: bool) -> Finding:
    where = f"{port.number}/{_protocol(port)} ({port.service}) from outside on {network.interface}"
    if answered:
        return Finding(where, ok=True, seen="answers what arrives there")
    seen = f"{port.service} runs here, and does not answer what arrives on {network.interface}"
    remedy = (
        "this host's packet filter drops it ('nft list ruleset'), or rp_filter (sysctl net.ipv4.conf.all.rp_filter)"
    )
    return Finding(where, ok=False, seen=seen, remedy=remedy)


def _for_machines(name: str, fetched: str, interface: str, port: int) -> Finding:
    """What was fetched never left this host: whether machines get it, too, the rules of its packet filter say."""
    filtered = list(check_firewall((Packet("udp", port, interface),)))
    worst = next((one for one in filtered if not one.ok or one.how_bad is Severity.WARNING), None)
    if worst is not None:
        seen = f"{fetched}, here on this host; but machines on {interface} ask in vain: {worst.seen}"
        return Finding(name, ok=False, seen=seen, remedy=worst.remedy, severity=worst.severity)
    unread = next((one for one in filtered if one.how_bad is Severity.NOTE), None)
    if unread is not None:
        seen = f"{fetched}, here on this host; whether its packet filter lets machines ask is not known: {unread.seen}"
        return Finding(name, ok=True, seen=seen, remedy=unread.remedy, severity=Severity.NOTE)
    return Finding(name, ok=True, seen=f"{fetched}, as it should be, here on this host")


def _ipxe(directory: Path) -> Finding:
    found = [name for name in _BOOT_PROGRAMS if _readable(directory / name)]
    return Finding(
        "iPXE binaries",
        len(found) == len(_BOOT_PROGRAMS),
        f"{directory}: {', '.join(found) or 'neither undionly.kpxe nor snponly.efi'}",
        "apt-get install ipxe, or give another directory with --ipxe-dir",
    )


def _media(directory: Path) -> Finding:
    """What boot media of this host start; nobody need want any."""
    name = "boot media"
    try:
        medium = make_medium(directory)
    except MediumError as error:
        return note(name, f"none can be made: {error}")
    if medium.by_dhcp_only or len(medium.boots) < len(ALL_BOOTS):
        return note(
            name, medium.described, "an iPXE of 2022 or later in --ipxe-dir, such as Debian 13's package, has all"
        )
    return Finding(name, True, medium.described)


def _readable(path: Path) -> bool:
    # Unlike Path.exists(), no error where a directory on the way is closed to this user.
    return os.access(path, os.R_OK)


def _disk(cache: Path) -> Finding:
    directory = cache
    while directory != directory.parent and not _readable(directory):
        directory = directory.parent
    free = shutil.disk_usage(directory).free // 10**6
    return Finding(
        "disk space",
        free >= _LAB_DISK_MB,
        f"{free} MB free for {cache}",
        f"the lab builds and keeps up to {_LAB_DISK_MB} MB: free some, or give another --cache-dir",
    )
