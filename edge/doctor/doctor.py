"""The checks of `tinkedge doctor` and their order.

`check_serving` and `check_lab` change nothing and send nothing. `probe` sends packets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edge.doctor.dhcp_servers import check_other_servers
from edge.doctor.findings import Finding, note, problem
from edge.doctor.firewall import FirstPacket, check_firewall
from edge.doctor.host import check_boot_media, check_boot_programs, check_capabilities, check_clock
from edge.doctor.inbound import check_from_outside
from edge.doctor.interfaces import check_ethernets, check_interface, check_ipv6
from edge.doctor.link_metadata import check_link_metadata, probe_link_metadata
from edge.doctor.ports import PORTS, Port, check_port
from edge.doctor.tftp import check_tftp
from edge.neighbour.host import HostError, Network, default_interface, interface_address
from edge.neighbour.links import METADATA_PORT


@dataclass(frozen=True, slots=True)
class ExaminedServices:
    """The settings of the services that are examined."""

    interfaces: Sequence[tuple[str, str]]
    """Names and addresses (or empty) of the interfaces that face machines; none: that of the default route."""
    ipxe_dir: Path
    ports: Sequence[Port] = PORTS
    ipv6: bool = False
    routers: Collection[str] = ()  # the interfaces on which this host is the IPv6 router
    link_metadata: bool = False

    def networks(self) -> Iterator[Network]:
        """Yield the interfaces that face machines. Raises HostError if there is no default route."""
        for name, address in self.interfaces or [("", "")]:
            yield Network(name or default_interface(), address, ipv6=self.ipv6)


def check_serving(serving: ExaminedServices) -> Iterator[Finding]:
    """Examine the host and its network for `tinkedge up`."""
    yield check_capabilities("serving", ("CAP_NET_BIND_SERVICE", "CAP_NET_RAW"))
    if serving.link_metadata:
        yield check_capabilities("--link-metadata", ("CAP_NET_ADMIN",))
    named: list[Network] = []
    try:
        named += serving.networks()
    except HostError as error:
        yield problem("interface", str(error), "give the machines' interface with --interface")
    for network in named:
        yield from _check_network(serving, network)
    networks = [addressed for network in named if (addressed := _with_address(network)) is not None]
    try:
        yield from check_ethernets([network.interface for network in networks])
    except OSError as error:
        yield note("ARP", f"the kernel does not list its neighbours: {error.strerror}")
    for port in serving.ports:
        if port.address or not networks:
            yield check_port(port, None)
        else:
            yield from (check_port(port, network) for network in networks)
    packets = [FirstPacket("tcp", METADATA_PORT, each.interface, version=6) for each in named if serving.link_metadata]
    facing = [port for port in serving.ports if not port.address]
    packets += [FirstPacket(port.protocol, port.number, each.interface) for each in networks for port in facing]
    yield from check_firewall(packets)
    yield check_clock()
    yield check_boot_programs(serving.ipxe_dir)
    yield check_boot_media(serving.ipxe_dir)


def _check_network(serving: ExaminedServices, network: Network) -> Iterator[Finding]:
    try:
        yield from check_interface(network)
        if serving.ipv6:
            is_router = network.interface in serving.routers
            serves_dhcp = any(port.name == "dhcp" for port in serving.ports)
            yield from check_ipv6(network.interface, is_router=is_router, serves_dhcp=serves_dhcp)
        if serving.link_metadata:
            yield from check_link_metadata(network.interface)
    except OSError as error:
        yield note("interface", f"the kernel does not describe {network.interface}: {error.strerror}")


def _with_address(network: Network) -> Network | None:
    """Return the network with its IPv4 address; None if it has none."""
    try:
        return replace(network, address=network.address or interface_address(network.interface))
    except (HostError, OSError):
        return None


def probe(serving: ExaminedServices) -> Iterator[Finding]:
    """Ask the network for some seconds, as a machine would: by DHCP, by TFTP, and by requests that arrive on the
    interface.
    """
    try:
        for network in serving.networks():
            try:
                if serving.link_metadata:
                    yield from probe_link_metadata(network.interface)
            except OSError as error:
                yield note("interface", f"the kernel does not describe {network.interface}: {error.strerror}")
                continue
            if (addressed := _with_address(network)) is not None:
                yield from check_other_servers(addressed)
                yield check_tftp(addressed, serving.ipxe_dir, serving.ports)
                yield from check_from_outside(addressed, serving.ports)
    except HostError:
        return  # `check_serving` has reported it.
