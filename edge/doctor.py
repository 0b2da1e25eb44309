"""What would keep this host from serving machines, or from running the lab, and how to mend it.

`tinkedge doctor` prints all findings; the lab asks for its own before it begins. Nothing here changes anything.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge.host import HostError, default_interface, interface_address

_CAPABILITIES = {"CAP_NET_BIND_SERVICE": 10, "CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21}

# Program -> the Debian package that has it. deploy/setup.sh installs the same packages.
LAB_PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
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
    "/usr/share/OVMF/OVMF_CODE_4M.fd": "ovmf",
    "/usr/lib/ipxe/snponly.efi": "ipxe",
    "/usr/lib/ipxe/qemu/pxe-virtio.rom": "ipxe-qemu",
    "/usr/lib/systemd/boot/efi/systemd-bootx64.efi": "systemd-boot-efi",
    "/usr/lib/syslinux/mbr/gptmbr.bin": "syslinux-common",
}
_LAB_DISK_MB = 4000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: `ok`, what was seen, and, where it is not ok, how to mend it."""

    name: str
    ok: bool
    seen: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Port:
    """A port that a service listens on. `name` is what --disable calls the service."""

    service: str
    kind: socket.SocketKind
    number: int
    name: str
    loopback: bool = False


PORTS = (
    Port("DHCP", socket.SOCK_DGRAM, 67, "dhcp"),
    Port("PXE boot server", socket.SOCK_DGRAM, 4011, "dhcp"),
    Port("TFTP", socket.SOCK_DGRAM, 69, "tftp"),
    Port("HTTP", socket.SOCK_STREAM, 7080, "http"),
    Port("gRPC", socket.SOCK_STREAM, 42113, "server"),
    Port("embedded API", socket.SOCK_STREAM, 6443, "apiserver", loopback=True),
    Port("admin HTTP", socket.SOCK_STREAM, 7081, "admin", loopback=True),
)


@dataclass(frozen=True, slots=True)
class _Network:
    """The machines' interface and this host's address on it."""

    interface: str
    address: str


def kubectl() -> str | None:
    """The path of kubectl: the one on PATH, else the one that `make` unpacked beside this Python; None if none is."""
    return shutil.which("kubectl") or shutil.which("kubectl", path=Path(sys.executable).parent)


def serving(interface: str | None, ipxe_dir: Path) -> Iterator[Finding]:
    """What `tinkedge up` needs. `interface` None: the one with the default route."""
    yield _capabilities("serving", ("CAP_NET_BIND_SERVICE", "CAP_NET_RAW"))
    network: _Network | None = None
    try:
        network = _network(interface)
    except HostError as error:
        yield Finding("interface", ok=False, seen=str(error), remedy="give the machines' interface with --interface")
    else:
        yield Finding("interface", ok=True, seen=f"{network.interface} has {network.address}")
    for port in PORTS:
        yield _port(port, network)
    yield _ipxe(ipxe_dir)


def lab(cache: Path) -> Iterator[Finding]:
    """What `tinkedge lab` needs besides."""
    yield _capabilities("namespaces", ("CAP_SYS_ADMIN", "CAP_NET_ADMIN"))
    missing = {package for program, package in LAB_PROGRAMS.items() if shutil.which(program) is None}
    missing |= {package for path, package in LAB_FILES.items() if not _readable(Path(path))}
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


def _network(interface: str | None) -> _Network:
    name = interface or default_interface()
    return _Network(name, interface_address(name))


def _port(port: Port, network: _Network | None) -> Finding:
    """Whether the service could listen there: tried as the service does it, on its interface or address alone."""
    name = f"port {port.number}/{'udp' if port.kind is socket.SOCK_DGRAM else 'tcp'} ({port.service})"
    with socket.socket(socket.AF_INET, port.kind) as probe:
        if port.kind is socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = "127.0.0.1" if port.loopback else ""
        try:
            if network is not None and not port.loopback:
                if port.kind is socket.SOCK_DGRAM:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, network.interface.encode() + b"\0")
                else:
                    address = network.address
            probe.bind((address, port.number))
        except OSError as error:
            remedy = (
                f"another program has it: ss -lnp 'sport = :{port.number}'; stop it, or --disable {port.name}"
                if error.errno == errno.EADDRINUSE
                else "run it as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW"
            )
            return Finding(name, ok=False, seen=os.strerror(error.errno or 0), remedy=remedy)
    return Finding(name, ok=True, seen="free")


def _ipxe(directory: Path) -> Finding:
    found = [name for name in ("undionly.kpxe", "snponly.efi") if _readable(directory / name)]
    return Finding(
        "iPXE binaries",
        len(found) == 2,
        f"{directory}: {', '.join(found) or 'neither undionly.kpxe nor snponly.efi'}",
        "apt-get install ipxe, or give another directory with --ipxe-dir",
    )


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
