"""The servers for machines: DHCP, TFTP, syslog and router advertisements on each network, and HTTP at each address.

    inventory, pending workflows -> policy, callers -> for each network: DHCP responder and sockets, TFTP socket
                                                    -> one HTTP application, which listens on each network's address

`edge.run.graph` starts them when the inventory is filled: earlier, they would call each machine unknown.
`edge.run.networks` reports the state of each network, at the start and whenever it changes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Final

from edge.artifacts.cache import ArtifactCache, cache_metrics
from edge.artifacts.shared import SharedFiles
from edge.dhcp import DhcpSettings, Responder
from edge.dhcp6 import Responder6, Settings6, server_duid
from edge.dhcp_common import IPV6, Changed, DhcpSite, Quarantine, Relays
from edge.http.app import MachineApp, machine_runner
from edge.http.context import HttpServices, MetadataSettings
from edge.journey.history import Happened
from edge.listener import listener_metrics, turn_budget
from edge.machines import (
    BootPaths,
    DhcpMode,
    DiscoveryWriter,
    Machine,
    MachineScripts,
    NetbootPolicy,
    OsieFiles,
    ReadSecret,
)
from edge.neighbour.discovery import Advertised
from edge.neighbour.host import NetworkState
from edge.neighbour.route import is_own
from edge.neighbour.router_advertisement import ROUTER_LIFETIME_SECONDS, RouterAdvertiser
from edge.neighbour.table import AddressResolution, LinkLocalResolution
from edge.peers.site import peer_metrics
from edge.run.boot_settings import Authorities, boot_binaries, boot_settings, metadata_settings
from edge.run.boot_watch import BootWatch
from edge.run.context import Context
from edge.run.networks.link_metadata import LinkMetadata
from edge.run.networks.services import NetworkServices, ServiceMakers, Sites, sites_of
from edge.run.other_edges import peers_of
from edge.run.readiness import Readiness
from edge.settings.model import Service, StackSettings, Syslog
from edge.syslog import LogFiles, MachineLogs, SyslogServer, SyslogServerError, syslog_metrics
from edge.tftp import BootFiles, TftpServer
from ipxe.parameters import is_hookos
from ipxe.scripts import EdgeOrigin, Scripts
from tink.kube.resources import OSIE
from tink.metrics.families import Scraped
from tink.net.addresses import join_host_port
from tink.net.outbound import Reach

log = logging.getLogger(__name__)

_BINARIES_SECONDS: Final = 5.0  # interval at which an empty directory of boot programs is read again
_TICK_SECONDS: Final = 1.0


class MachineServers:
    """The edge's servers for machines, made before the inventory is filled. `network_changed` serves a network as it is
    now.
    """

    def __init__(
        self,
        context: Context,
        boots: BootWatch,
        *,
        declined: Changed,
        discovery: DiscoveryWriter | None = None,
        relay_seen: Callable[[Machine, str], None] = lambda _machine, _relay: None,
        readiness: Callable[[], Readiness],
        read_secret: ReadSecret,
        keep: Callable[[Happened], None] = lambda _: None,
    ) -> None:
        """Make the servers. Raises BinariesError, DhcpSettingsError, KeyFileError.

        `declined` is called when an address enters or leaves quarantine, `relay_seen(machine, relay)` once for each
        relay subnet that is not one of our interfaces. `discovery` admits unknown machines; None: none is admitted.
        `keep` receives the events of other edges and servers.
        """
        settings, inventory, journey = context.settings, context.inventory, context.journey
        edge, wanted = settings.edge, settings.services
        self._context = context
        self._boots = boots
        self._discovery = discovery
        self._relay_seen = relay_seen
        self._readiness = readiness
        self._policy = NetbootPolicy(
            edge.dhcp_mode, edge.netboot_when, context.pending.has_pending, context.pending.why_none
        )
        self._quarantine = Quarantine(time.time, edge.decline_quarantine, declined)
        self._quarantine6 = Quarantine(time.time, edge.decline_quarantine, declined, IPV6)
        self._relays = Relays(edge.relays, lambda address: bool(inventory.claimants_of_ip(address)))
        metadata = metadata_settings(settings, read_secret) if Service.HTTP in wanted else None
        self.binaries = boot_binaries(settings)
        self._boot_paths = BootPaths(
            inventory, journey.record, edge.boot_path, has_grub=self.binaries.has_grub, changed=self._boot_path_changed
        )
        boots.on_not_started = self._boot_paths.not_started
        self._gone: frozenset[str] = frozenset()
        self._living: frozenset[str] = frozenset()
        self.peers = peers_of(context, metadata.keys, self.peers_changed, keep) if metadata is not None else None
        self.cache = self._artifact_cache() if wanted & {Service.HTTP, Service.TFTP} else None
        if self.peers is not None and self.cache is not None:
            self.peers.share(self.cache)
        self._make_app(metadata)
        context.exit_stack.callback(self._authorities.close)
        self._sites: list[Sites] = []
        self._link_metadata: LinkMetadata | None = None
        self._log_files = settings.data_dir / "machine-logs"
        self._logs = MachineLogs(self._mac_at, journey.record, LogFiles(self._log_files), time.monotonic, time.time)
        self._waits_for_hookos = edge.syslog is Syslog.AUTO  # Syslog starts with the first machine that boots HookOS
        makers = ServiceMakers(self._responder, self._responder6, self._tftp_server, self._advertiser)
        self._services = {state.interface: NetworkServices(state, makers) for state in context.networks.states}
        # Subscribed before the inventory is filled: a reservation is compiled while its Hardware is at hand.
        inventory.on_change(self.scripts.machine_changed)
        if self.app is not None:
            inventory.on_change(self.app.machine_changed)
            context.callers.on_change(self.app.callers_changed)
        for services in self._services.values():
            inventory.on_change(services.machine_changed)

    def _make_app(self, metadata: MetadataSettings | None) -> None:
        """Make the scripts, and the HTTP application if there is `metadata`. Raises KeyFileError."""
        context, settings = self._context, self._context.settings
        osie = context.informers[OSIE].get if OSIE in context.informers else (lambda _namespace, _name: None)
        edge, journey, inventory = settings.edge, context.journey, context.inventory
        self._authorities = Authorities(settings, self._trust)
        boot = boot_settings(settings, metadata, self._authorities)
        self.scripts = MachineScripts(
            inventory, self._policy, osie, Scripts(boot), journey.record, edge.default_osie, self._others, journey.note
        )
        self._osie_files = OsieFiles(osie, self.cache) if self.cache is not None else None
        self.app: MachineApp | None = None
        if self._osie_files is None or metadata is None:
            return
        self.app = MachineApp(
            HttpServices(
                inventory=inventory,
                callers=context.callers,
                policy=self._policy,
                scripts=self.scripts,
                osie_files=self._osie_files,
                binaries=self.binaries,
                record=journey.record,
                metadata=metadata,
                agent_ca=boot.tls_ca,
                registry_authorities=boot.registry_authorities,
                default_osie=edge.default_osie,
                ready=lambda: self._readiness().problem,
                fast_path=edge.fast_path,
                depot=settings.data_dir,
                beyond=self.cache if edge.upstream_edge else None,
                peers=self.peers,
                ipxe_dir=edge.ipxe_dir,
                nearest=lambda ip: nearest_of(ip, ((each.address, each.networks) for each in context.networks.states)),
            )
        )
        context.exit_stack.callback(self.app.close)

    @property
    def _gives_dhcp(self) -> bool:
        settings = self._context.settings
        return Service.DHCP in settings.services and settings.edge.dhcp_mode is not DhcpMode.OFF

    @property
    def _gives_dhcp6(self) -> bool:
        # A second DHCPv6 server beside another one has no use: nothing like ProxyDHCP exists there.
        settings = self._context.settings
        is_sole = settings.edge.dhcp_mode is DhcpMode.RESERVATION
        return self._gives_dhcp and is_sole and settings.networks[0].ipv6

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the parts that all networks share. Raises each part's own error."""
        context, edge = self._context, self._context.settings.edge
        metrics, exit_stack = context.metrics, context.exit_stack
        metrics.register(Scraped(context.networks.metrics))
        metrics.register(Scraped(partial(listener_metrics, turn_budget())))
        if self.cache is not None:
            await self.cache.start()
            exit_stack.push_async_callback(self.cache.stop)
            metrics.register(Scraped(partial(cache_metrics, self.cache)))
        if self.peers is not None:
            await self.peers.calls.start()
            exit_stack.push_async_callback(self.peers.calls.stop)
            metrics.register(Scraped(partial(peer_metrics, self.peers)))
        if self.app is not None:
            make_site = await sites_of(machine_runner(self.app), exit_stack)
            ports = (edge.http_port, "--http-port"), *((port, "--legacy-ports") for port in edge.legacy_ports)
            self._sites = [Sites(make_site, port, "HTTP", flag) for port, flag in ports]
            if edge.link_metadata:
                self._link_metadata = LinkMetadata(lambda: context.networks.states, make_site, context.journey.announce)
                exit_stack.push_async_callback(self._link_metadata.stop)
            await self._start_syslog(edge.syslog)
        for services in self._services.values():
            exit_stack.push_async_callback(services.stop)

    async def run(self) -> None:
        """Run the periodic work of the servers until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._logs.run())
            if self.binaries.problem:
                tasks.create_task(self._wait_for_binaries())
            if self._link_metadata is not None:
                tasks.create_task(self._link_metadata.run())
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                self._quarantine.expire()
                self._quarantine6.expire()
                if self.scripts.logs_wanted and self._waits_for_hookos:
                    await self._receive_logs_of_hookos()

    async def _wait_for_binaries(self) -> None:
        """Read the boot programs again until there are some, then discard the answers that were made without them."""
        while self.binaries.problem:
            await asyncio.sleep(_BINARIES_SECONDS)
            self.binaries.reread()
        self._boot_paths.has_grub = self.binaries.has_grub
        for machine in self._context.inventory.machines():
            self._boot_path_changed(machine.mac)

    @property
    def other_edges(self) -> frozenset[str]:
        """The addresses of the other edges of the site, living and gone."""
        return self._living | self._gone

    @property
    def unprobed(self) -> str:
        """The services that can't probe a declined address, as text for people."""
        return ", ".join(each for services in self._services.values() for each in services.unprobed)

    # --- changes ------------------------------------------------------------------------------------------------------

    async def network_changed(self, state: NetworkState) -> None:
        """Serve a network as it is now. Raises each part's own error."""
        # HTTP first and DHCP last, because DHCP sends machines to the others.
        for sites in self._sites:
            for address in state.addresses:
                await sites.follow(state.interface, address)
        await self._services[state.interface].follow(state)
        self._update_responders()
        if self.peers is not None:
            self.peers.place(places_of(self._context.networks.states))

    def peers_changed(self, living: frozenset[str], gone: frozenset[str]) -> None:
        """Other edges have started or ended: their addresses (`edge.peers`)."""
        self._living, self._gone = living, gone
        self.scripts.peers_changed()
        self._update_responders()

    def _update_responders(self) -> None:
        """Tell each DHCP responder the addresses of the other responders, whose offers are not a stranger's."""
        for interface, services in self._services.items():
            if services.responder is not None:
                # The other networks' responders answer for the same machines.
                others = (services.responder for name, services in self._services.items() if name != interface)
                addresses = frozenset(responder.settings.server_ip for responder in others if responder is not None)
                services.responder.peers_changed(addresses | self._living, self._gone)

    def _trust(self) -> None:
        """Give machines the authorities as their files are now."""
        now = self._authorities.tls_ca, self._authorities.registries
        self.scripts.trust(*now)
        if self.app is not None:
            self.app.trust(*now)

    def _boot_path_changed(self, mac: str) -> None:
        for services in self._services.values():
            services.machine_changed(mac)

    def _learn(self, interface: str, mac: str, ip: str, relayed: bool) -> None:
        self._context.callers.learn(mac, ip, "" if relayed else interface)

    def _relay_heard(self, machine: Machine, link: str, relay: str) -> None:
        self._relay_seen(machine, relay)
        self._boots.relays[link] = relay

    # --- machines' log lines ------------------------------------------------------------------------------------------

    async def _start_syslog(self, wanted: Syslog) -> None:
        """Raises SyslogServerError if the operator has asked for syslog and the port is taken."""
        self._context.exit_stack.push_async_callback(self._logs.flush)
        self._context.metrics.register(Scraped(partial(syslog_metrics, self._logs)))
        parameters = self._context.settings.edge.kernel_parameters
        if wanted is Syslog.ON:
            await self._receive_logs()
        elif wanted is Syslog.AUTO and (is_hookos(parameters) or self._log_files.exists()):
            # Files exist if machines have sent lines before the last restart; they continue to send.
            await self._receive_logs_of_hookos()

    async def _receive_logs_of_hookos(self) -> None:
        """Start syslog for HookOS. A failure is logged, because machines boot without it."""
        self._waits_for_hookos = False
        try:
            await self._receive_logs()
        except SyslogServerError as error:
            log.error("the log lines of HookOS are not received: %s", error)

    async def _receive_logs(self) -> None:
        def server(state: NetworkState, address: str) -> SyslogServer:
            take = partial(self._logs.take, interface=state.interface)
            return SyslogServer(take, host=address, interface=state.interface)

        for services in self._services.values():
            await services.receive_logs(server)

    def _mac_at(self, ip: str, interface: str) -> str | None:
        machine = self._context.callers.answering_on(interface).machine(ip)
        return machine.mac if machine is not None else None

    # --- lookups ------------------------------------------------------------------------------------------------------

    def _others(self, address: str, mac: str) -> tuple[EdgeOrigin, ...]:
        """Return the other edges for a machine that has reached this edge at `address`."""
        if self.peers is None:
            return ()
        found = self.peers.alternatives(address, mac)
        return tuple(EdgeOrigin(each.address, http_port=each.http_port, grpc_port=each.server_port) for each in found)

    # --- makers of the parts ------------------------------------------------------------------------------------------

    def _artifact_cache(self) -> ArtifactCache:
        edge, data_dir = self._context.settings.edge, self._context.settings.data_dir
        return ArtifactCache(
            data_dir / "artifacts",
            budget=edge.cache_bytes,
            file_root=edge.osie_dir or data_dir / "osie",
            reach=reach_of(self._context.settings),
            shared=SharedFiles(data_dir / "files", data_dir / "images") if edge.downstream_edges else None,
            peers=self.peers.caches if self.peers is not None else None,
        )

    def _responder(self, state: NetworkState) -> Responder | None:
        if not self._gives_dhcp:
            return None
        edge = self._context.settings.edge
        dhcp = DhcpSettings(
            server_ip=state.address,
            tftp_ip=state.address,
            http_base_url=f"http://{state.address}:{edge.http_port}",
            networks=state.networks,
            ipv6=bool(state.address6),
        )
        return Responder(
            self._dhcp_site(),
            dhcp,
            quarantine=self._quarantine,
            learn=partial(self._learn, state.interface),
            on_relay_seen=self._relay_heard,
            discovery=self._discovery,
        )

    def _responder6(self, state: NetworkState) -> Responder6 | None:
        if not self._gives_dhcp6:
            return None
        edge = self._context.settings.edge
        settings = Settings6(
            IPv6Address(state.address6),
            f"http://{join_host_port(state.address6, edge.http_port)}",
            duid=server_duid(state.mac),
            networks=state.networks6,
        )
        resolution = LinkLocalResolution(state.interface, self._context.callers.neighbour, time.monotonic)
        return Responder6(self._dhcp_site(), settings, resolution, self._quarantine6)

    def _dhcp_site(self) -> DhcpSite:
        edge, journey = self._context.settings.edge, self._context.journey
        return DhcpSite(
            self._context.inventory,
            self._policy,
            self.binaries,
            journey.record,
            time.monotonic,
            journey.note,
            self._relays,
            self._boot_paths.of,
            edge.fast_path,
        )

    def _advertiser(self, state: NetworkState) -> RouterAdvertiser | None:
        edge, boots = self._context.settings.edge, self._boots
        routes = state.interface in edge.ipv6_router
        if edge.router_advertisements or routes:
            lifetime = ROUTER_LIFETIME_SECONDS if routes else 0
            content = Advertised(self._gives_dhcp6, lifetime, state.networks6, state.mac)
            return RouterAdvertiser(state.interface, content, on_solicitation=boots.solicitations.record)
        if edge.router_advertisements is None and self._gives_dhcp and not self._gives_dhcp6:
            is_ipxe = boots.is_ipxe_waiting  # iPXE waits 16 s for a router
            return RouterAdvertiser(state.interface, only=is_ipxe, on_solicitation=boots.solicitations.record)
        return None

    def _tftp_server(self, state: NetworkState, address: str) -> tuple[BootFiles, TftpServer] | None:
        if Service.TFTP not in self._context.settings.services:
            return None
        edge = self._context.settings.edge
        callers = self._context.callers.answering_on(state.interface)
        files = BootFiles(
            self.binaries,
            self._context.inventory,
            callers,
            self._policy,
            address=address,
            scripts=self.scripts,
            osie_files=self._osie_files,
            default_osie=edge.default_osie,
            extra=edge.tftp_dir,
            pi_firmware=edge.rpi_dir,
            resolution=AddressResolution(callers.is_hidden, state.interface),
        )
        server = TftpServer(
            files,
            self._context.journey.record,
            host=address,
            interface=state.interface,
            single_port=edge.tftp_single_port,
            is_unresolved=callers.is_unresolved,
        )
        return files, server


def nearest_of(ip: str, places: Iterable[tuple[str, Iterable[IPv4Network]]]) -> str:
    """Return the one of our addresses whose networks contain the IPv4 address `ip`; empty if none does. `places` are
    our addresses, each with the networks of its interface.
    """
    try:
        machine = IPv4Address(ip)
    except ValueError:
        return ""
    found = (address for address, networks in places if any(machine in network for network in networks))
    return next(filter(None, found), "")


def places_of(states: Iterable[NetworkState]) -> list[tuple[str, str]]:
    """Return the addresses by which machines reach this edge, each with its network."""
    found = []
    for state in states:
        for address in state.addresses:
            networks = state.networks6 if ":" in address else state.networks
            network = next((each for each in networks if ip_address(address) in each), None)
            if network is not None:
                found.append((address, str(network)))
    return found


def reach_of(settings: StackSettings) -> Reach:
    """Return the addresses that downloads may connect to: not this host, unless allowed, and never its own services."""
    edge = settings.edge
    own_ports = frozenset({edge.http_port, *edge.legacy_ports, edge.admin_port, settings.grpc_port, settings.api_port})
    return Reach(edge.allowed_upstreams, is_own, own_ports)
