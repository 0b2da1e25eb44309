"""What machines talk to, put together: DHCP, TFTP and HTTP on every network that is served, and the operators' HTTP.

    inventory, pending workflows -> policy, callers -> for each network: DHCP responder and sockets, TFTP socket
                                                    -> one HTTP application, which listens on each network's address

`edge.run.stack` starts it when the inventory is filled: a machine that asks a moment earlier would be told that
nobody knows it. `edge.run.networks` says what each network is, at the start and whenever it changes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from edge import admin_token
from edge.artifacts import ArtifactCache, SharedFiles, cache_metrics
from edge.callers import Callers
from edge.conflict import IPV6, Changed, Quarantine, Relays
from edge.dhcp import DhcpSettings, Responder
from edge.dhcp6 import Responder6, Settings6, server_duid
from edge.http import AdminApp, Runner, admin_runner, has_ended, machine_runner
from edge.journey.events import Notice
from edge.journey.recorder import Journey
from edge.journey.records import Happened
from edge.listener import listener_metrics, turn_budget
from edge.machines import (
    BootPaths,
    DhcpMode,
    Inventory,
    Machine,
    NetbootPolicy,
    OsieLookup,
    PendingWorkflows,
    ReadSecret,
)
from edge.neighbour.host import NetworkState
from edge.neighbour.resolution import LinkLocalResolution
from edge.neighbour.route import is_own
from edge.page import (
    Access,
    Api,
    EdgeStatus,
    Health,
    Keys,
    Machines,
    Other,
    Pages,
    Rack,
    Site,
    Templates,
    WorkflowLookup,
)
from edge.peers import peer_metrics
from edge.run.about import ThisEdge, osies_of
from edge.run.expecting import BootWatch
from edge.run.machine_services import MachineServices, boot_binaries, metadata_settings, nearest_of
from edge.run.networks import HostNetworks, LinkMetadata, MakeSite, NetworkServices, Sites, Tftp, sites_of
from edge.run.other_edges import peers_of
from edge.run.readiness import Readiness
from edge.run.settings import Service, StackSettings, Syslog
from edge.run.workers import Edges, Inbox, Networks, Pool, Sources, WorkerSite, WorkerTftp
from edge.syslog import LogFiles, MachineLogs, SyslogServer, SyslogServerError, syslog_metrics
from edge.tftp import BootFiles
from ipxe.parameters import is_hookos
from ipxe.scripts import Origin
from tink.kube.cache import Informer
from tink.metrics.families import Scraped
from tink.net.addresses import join_host_port
from tink.net.outbound import Reach

log = logging.getLogger(__name__)

_BINARIES_SECONDS: Final = 5.0
_TICK_SECONDS = 1.0


class Serving:
    """Starts the edge's services, each of which `exit_stack` will stop. Made before the inventory is filled.

    The networks are served when `network_changed` is told of them, after `start`.
    """

    def __init__(
        self,
        settings: StackSettings,
        exit_stack: AsyncExitStack,
        *,
        networks: HostNetworks,
        inventory: Inventory,
        callers: Callers,
        workflows: PendingWorkflows,
        journey: Journey,
        osie: OsieLookup,
        declined: Changed,
        relay_heard: Callable[[Machine, str, str], None] = lambda _machine, _link, _relay: None,
        readiness: Callable[[], Readiness],
        notices: Callable[[], list[Notice]] = list,
        metrics: CollectorRegistry,
        read_secret: ReadSecret,
        boots: BootWatch,
        workflow: WorkflowLookup,
        informers: Mapping[str, Informer] | None = None,
        kept: Callable[[Happened], None] = lambda _: None,
        api: Callable[[], Api] = Api,
    ) -> None:
        """`osie(namespace, name)` looks an OSIE up. `declined` hears of addresses going into quarantine, and out of it;
        `relay_heard(machine, link, relay)` of relays that speak for machines of a network that is none of ours.

        `readiness()` says whether machines can be served, `notices()` what was announced of the edge and is still so
        (but for the networks'); `metrics` is given what is counted here; `read_secret` asks the Kubernetes API;
        `boots` knows what is awaited of each machine; `workflow(namespace, name)` gives the Workflow of a Hardware;
        `kept` hears of what other edges and servers have seen; `informers` feed workers, by plural of their objects;
        `api()` describes the Kubernetes API for operators.

        Raises BinariesError, SettingsError, KeyFileError.
        """
        self._settings = settings
        self._exit = exit_stack
        self._networks = networks
        self._relay_heard = relay_heard
        self._boots = boots
        self._workflow = workflow
        self._metrics = metrics
        self._this_edge = ThisEdge(settings.data_dir, api)
        self._informers = informers or {}
        self._readiness = readiness
        self._notices = notices
        self._inventory = inventory
        self._callers = callers
        self._journey = journey
        edge, wanted = settings.edge, settings.services
        self._policy = NetbootPolicy(edge.dhcp_mode, edge.netboot_when, workflows.has_pending, workflows.why_none)
        self._quarantine = Quarantine(time.time, edge.decline_quarantine, declined)
        self._quarantine6 = Quarantine(time.time, edge.decline_quarantine, declined, IPV6)
        self._relays = Relays(edge.relays, lambda address: bool(inventory.claimants_of_ip(address)))
        metadata = metadata_settings(settings, read_secret) if Service.HTTP in wanted else None
        self._binaries = boot_binaries(settings)
        self._boot_paths = BootPaths(
            inventory,
            journey.record,
            edge.boot_path,
            has_grub=self._binaries.has_grub,
            changed=self._boot_path_changed,
        )
        boots.on_not_started(self._boot_paths.not_started)
        self._gone: frozenset[str] = frozenset()
        self._living: frozenset[str] = frozenset()
        self.peers = (
            peers_of(settings, metadata.keys, journey, self.peers_changed, kept) if metadata is not None else None
        )
        self._cache = self._artifact_cache() if wanted & {Service.HTTP, Service.TFTP} else None
        self._runner: Runner | None = None
        self._taken: set[asyncio.Task[None]] = set()
        self._sites: list[Sites] = []
        self._link_metadata: LinkMetadata | None = None
        self._log_files = settings.data_dir / "machine-logs"
        self._logs = MachineLogs(self._mac_at, journey.record, LogFiles(self._log_files), time.monotonic, time.time)
        self._logs_begun = edge.syslog is not Syslog.AUTO
        """Whether there is no more to be waited for."""
        if self.peers is not None and self._cache is not None:
            self.peers.share(self._cache)
        self._machines = MachineServices(
            settings,
            exit_stack,
            inventory=inventory,
            callers=callers,
            policy=self._policy,
            osie=osie,
            binaries=self._binaries,
            artifacts=self._cache,
            metadata=metadata,
            record=journey.record,
            take=journey.note,
            ready=lambda: self._readiness().problem,
            nearest=lambda ip: nearest_of(ip, ((state.address, state.networks) for state in self._networks.states)),
            others=self._others,
            peers=self.peers,
        )
        gives_dhcp = Service.DHCP in wanted and edge.dhcp_mode is not DhcpMode.OFF
        # Of a second DHCPv6 server there is no use beside another one: nothing like ProxyDHCP is known there.
        gives_dhcp6 = gives_dhcp and edge.dhcp_mode is DhcpMode.RESERVATION and settings.networks[0].ipv6
        self._services = {
            state.interface: NetworkServices(
                state,
                self._responder if gives_dhcp else None,
                self._tftp_server if Service.TFTP in wanted else None,
                self._responder6 if gives_dhcp6 else None,
                advertise=edge.router_advertisements,
                routes=state.interface in edge.ipv6_router,
                is_ipxe=boots.is_ipxe_waiting,
                solicited=boots.solicitations.heard,
            )
            for state in networks.states
        }
        self._pool: Pool | None = None
        if edge.workers > 1 and wanted & {Service.HTTP, Service.TFTP}:
            self._pool = self._workers(Sources(self._informers, self._cache, read_secret))
        self._subscribe()

    def _workers(self, sources: Sources) -> Pool:
        def logs_wanted() -> None:
            self._machines.scripts.logs_wanted = True

        return Pool(
            self._settings,
            sources,
            Inbox(self._journey.record, logs_wanted, self._take_over),
            ready=lambda: self._readiness().problem,
            learnt=self._callers.learnt,
            announce=self._journey.announce,
        )

    @property
    def binaries_problem(self) -> str:
        """The reason why no machine gets a boot program; empty if they do."""
        return self._binaries.problem

    async def _wait_for_binaries(self) -> None:
        """Read the boot programs again until there are some, then forget what was made without them."""
        while self._binaries.problem:
            await asyncio.sleep(_BINARIES_SECONDS)
            self._binaries.reread()
        self._boot_paths.programs_changed(has_grub=self._binaries.has_grub)
        if self._pool is not None:
            self._pool.reread()
        for machine in self._inventory.machines():
            self._boot_path_changed(machine.mac)

    @property
    def workers_problem(self) -> str:
        """Why no machine is served over HTTP and TFTP; empty: they are."""
        return self._pool.problem if self._pool is not None else ""

    @property
    def workers_note(self) -> str:
        """What is to be known of the workers; empty: they are well."""
        return self._pool.note if self._pool is not None else ""

    def _subscribe(self) -> None:
        """All who keep what they made of a machine hear of its changes.

        Before the inventory is filled, so that a reservation is compiled while its Hardware is at hand.
        """
        self._machines.subscribe()
        for services in self._services.values():
            self._inventory.on_change(services.machine_changed)

    async def start(self) -> None:
        """Start what is one for all networks. Raises each part's own error."""
        edge, metrics = self._settings.edge, self._metrics
        metrics.register(Scraped(self._networks.metrics))
        metrics.register(Scraped(partial(listener_metrics, turn_budget())))
        if self._cache is not None:
            await self._cache.start()
            self._exit.push_async_callback(self._cache.stop)
            metrics.register(Scraped(partial(cache_metrics, self._cache)))
        if self.peers is not None:
            await self.peers.start()
            self._exit.push_async_callback(self.peers.stop)
            metrics.register(Scraped(partial(peer_metrics, self.peers)))
        if self._machines.app is not None:
            runner = self._runner = machine_runner(self._machines.app)
            make_site = await self._set_up(runner)
            if self._pool is not None:
                make_site = partial(WorkerSite, self._pool)
            ports = (edge.http_port, "--http-port"), *((port, "--legacy-ports") for port in edge.legacy_ports)
            self._sites = [Sites(make_site, port, "HTTP", flag) for port, flag in ports]
            if edge.link_metadata:
                self._link_metadata = LinkMetadata(lambda: self._networks.states, make_site, self._journey.announce)
                self._exit.push_async_callback(self._link_metadata.stop)
            await self._start_syslog(edge.syslog)
        if self._pool is not None:
            self._exit.push_async_callback(self._pool.stop)
            await self._pool.start()
            metrics.register(Scraped(self._pool.metrics))
        for services in self._services.values():
            self._exit.push_async_callback(services.stop)

    async def start_for_operators(self) -> None:
        """Start their HTTP, when the networks are served. Raises AdminTokenError, ServingError."""
        settings, edge = self._settings, self._settings.edge
        if Service.ADMIN in settings.services:
            tokens = admin_token.accepted(settings.data_dir, edge.admin_token_file)
            app = AdminApp(
                self._journey,
                self._inventory,
                self._networks,
                tokens.holds,
                registry=self._metrics,
                ready=lambda: self._readiness().problem,
                note=lambda: "; ".join(self._readiness().notes),
                awaited=self._boots.shown,
                notices=self._notices,
                pages=self._pages(tokens),
            )
            make_site = await self._set_up(admin_runner(app))
            sites = Sites(make_site, edge.admin_port, "admin HTTP", "--admin-port")
            await sites.follow("", edge.admin_address)

    def _pages(self, keys: Keys) -> Site:
        """What operators see with a browser."""
        journey, inventory, expectations = self._journey, self._inventory, self._boots.expectations
        status = EdgeStatus(
            lambda: Health(self._readiness().problem, self._readiness().notes),
            self._networks,
            self._notices,
            journey,
            self._cache,
            time.monotonic,
            others=self._others_of_the_site,
            about=self._this_edge.about,
            osies=lambda: osies_of(self._informers["osies"].list() if "osies" in self._informers else ()),
        )
        pages = Pages(
            Rack(journey, inventory, expectations),
            Machines(journey, inventory, expectations, self._workflow, time.time),
            status,
            Templates(),
            time.time,
        )
        return Site(pages, Access(keys, time.time), has_ended=has_ended)

    @property
    def unprobed(self) -> str:
        """The services that can't probe a declined address, as text for people."""
        return ", ".join(each for services in self._services.values() for each in services.unprobed)

    async def network_changed(self, state: NetworkState) -> None:
        """Serve a network as it is now: HTTP first and DHCP last, in the order in which machines can be sent there.

        Raises each part's own error.
        """
        self._tell_workers()
        for sites in self._sites:
            for address in state.addresses:
                await sites.follow(state.interface, address)
        await self._services[state.interface].follow(state)
        self._tell_of_peers()
        if self.peers is not None:
            self.peers.place(_places(self._networks.states))
            self._tell_workers()

    def peers_changed(self, living: frozenset[str], gone: frozenset[str]) -> None:
        """Other edges have come or gone (`edge.peers`)."""
        self._living, self._gone = living, gone
        self._machines.scripts.peers_changed()
        self._tell_of_peers()
        self._tell_workers()

    def _tell_of_peers(self) -> None:
        for interface, services in self._services.items():
            if services.responder is not None:
                services.responder.peers_changed(self._peers(interface) | self._living, self._gone)

    async def run(self) -> None:
        """What has to be done now and then, until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._logs.run())
            if self._binaries.problem:
                tasks.create_task(self._wait_for_binaries())
            if self._pool is not None:
                tasks.create_task(self._pool.run())
            if self._link_metadata is not None:
                tasks.create_task(self._link_metadata.run())
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                self._quarantine.expire()
                self._quarantine6.expire()
                self._tell_workers()
                if self._machines.scripts.logs_wanted and not self._logs_begun:
                    await self._receive_logs_of_hookos()

    # --- workers ---------------------------------------------------------------------------------------------------

    def _tell_workers(self) -> None:
        """What they need to know of networks and of other edges, if that is news."""
        if self._pool is None:
            return
        states = self._networks.states
        self._pool.tell(Networks([(state.address, [str(each) for each in state.networks]) for state in states]))
        if self.peers is not None:
            self._pool.tell(Edges(*self.peers.known()))

    def _learn(self, interface: str, mac: str, ip: str, *, relayed: bool) -> None:
        """Record the address of a machine that DHCP saw on one of our interfaces."""
        if self._callers.learn(mac, ip, "" if relayed else interface) and self._pool is not None:
            self._pool.learned(mac, ip)

    def _take_over(self, sock: socket.socket, received: bytes) -> None:
        """Another edge has reached a worker."""

        async def go_on() -> None:
            if self._runner is not None:
                with suppress(OSError):
                    await self._runner.bounded.take_over(sock, received)

        task = asyncio.create_task(go_on())
        self._taken.add(task)
        task.add_done_callback(self._taken.discard)

    # --- what machines log ---------------------------------------------------------------------------------------

    async def _start_syslog(self, wanted: Syslog) -> None:
        """Raises SyslogServerError where the operator has asked for it."""
        self._exit.push_async_callback(self._logs.flush)
        self._metrics.register(Scraped(partial(syslog_metrics, self._logs)))
        if wanted is Syslog.ON:
            await self._receive_logs()
        elif wanted is Syslog.AUTO and (is_hookos(self._settings.edge.kernel_parameters) or self._log_files.exists()):
            await self._receive_logs_of_hookos()  # also where it was so before the last start: machines go on logging

    async def _receive_logs_of_hookos(self) -> None:
        """Machines boot without it, too."""
        self._logs_begun = True
        try:
            await self._receive_logs()
        except SyslogServerError as error:
            log.error("what HookOS logs is not received: %s", error)

    async def _receive_logs(self) -> None:
        for services in self._services.values():
            await services.receive_logs(self._syslog_server)

    def _syslog_server(self, state: NetworkState, address: str) -> SyslogServer:
        take = partial(self._logs.take, interface=state.interface)
        return SyslogServer(take, host=address, interface=state.interface)

    def _mac_at(self, ip: str, interface: str) -> str | None:
        machine = self._callers.answering_on(interface).machine(ip)
        return machine.mac if machine is not None else None

    # --- the parts ----------------------------------------------------------------------------------------------------

    def _artifact_cache(self) -> ArtifactCache:
        edge, data_dir = self._settings.edge, self._settings.data_dir
        return ArtifactCache(
            data_dir / "artifacts",
            budget=edge.cache_bytes,
            file_root=edge.osie_dir or data_dir / "osie",
            reach=reach_of(self._settings),
            shared=SharedFiles(data_dir / "files", data_dir / "images") if edge.downstream_edges else None,
            peers=self.peers.caches if self.peers is not None else None,
        )

    def _others_of_the_site(self) -> list[Other]:
        publishers = self.peers.publishers if self.peers is not None else []
        return [Other(each.kind, each.name, each.events) for each in publishers]

    def _others(self, address: str, mac: str) -> tuple[Origin, ...]:
        """Where a machine that has reached this edge at `address` can go on with another one."""
        if self.peers is None:
            return ()
        found = self.peers.alternatives(address, mac)
        return tuple(Origin(each.address, http_port=each.http_port, grpc_port=each.server_port) for each in found)

    def _peers(self, interface: str) -> frozenset[str]:
        """The addresses of the other networks' responders: they answer for the same machines."""
        others = (services.responder for name, services in self._services.items() if name != interface)
        return frozenset(responder.settings.server_ip for responder in others if responder is not None)

    def _responder(self, state: NetworkState) -> Responder:
        dhcp = DhcpSettings(
            server_ip=state.address,
            tftp_ip=state.address,
            http_base_url=f"http://{state.address}:{self._settings.edge.http_port}",
            networks=state.networks,
            ipv6=bool(state.address6),
        )
        return Responder(
            self._inventory,
            dhcp,
            self._journey.record,
            time.monotonic,
            self._binaries,
            self._policy,
            take=self._journey.note,
            quarantine=self._quarantine,
            relays=self._relays,
            learn=partial(self._learn, state.interface),
            relay_heard=self._relay_heard,
            fast_path=self._settings.edge.fast_path,
            boot_path=self._boot_paths.of,
        )

    def _responder6(self, state: NetworkState) -> Responder6:
        settings = Settings6(
            IPv6Address(state.address6),
            f"http://{join_host_port(state.address6, self._settings.edge.http_port)}",
            duid=server_duid(state.mac),
            networks=state.networks6,
        )
        return Responder6(
            self._inventory,
            settings,
            self._journey.record,
            time.monotonic,
            self._binaries,
            self._policy,
            LinkLocalResolution(state.interface, self._callers.neighbour, time.monotonic),
            self._quarantine6,
            relays=self._relays,
            take=self._journey.note,
            fast_path=self._settings.edge.fast_path,
            boot_path=self._boot_paths.of,
        )

    def _boot_path_changed(self, mac: str) -> None:
        for services in self._services.values():
            services.machine_changed(mac)

    def _tftp_server(self, state: NetworkState, address: str) -> tuple[BootFiles | None, Tftp]:
        if self._pool is not None:
            return None, WorkerTftp(self._pool, state.interface, address)
        return self._machines.tftp_server(state.interface, address)

    # --- how a part is started ----------------------------------------------------------------------------------------

    async def _set_up(self, runner: web.BaseRunner) -> MakeSite:
        await runner.setup()
        self._exit.push_async_callback(runner.cleanup)
        return sites_of(runner)


def _places(states: Iterable[NetworkState]) -> list[tuple[str, str]]:
    """The addresses that machines are told, each with its network."""
    found = []
    for state in states:
        for address in state.addresses:
            networks = state.networks6 if ":" in address else state.networks
            network = next((each for each in networks if ip_address(address) in each), None)
            if network is not None:
                found.append((address, str(network)))
    return found


def reach_of(settings: StackSettings) -> Reach:
    """Where OSIEs may lead: not to this host, unless that was allowed, and never to what it serves itself."""
    edge = settings.edge
    own_ports = frozenset({edge.http_port, *edge.legacy_ports, edge.admin_port, settings.grpc_port, settings.api_port})
    return Reach(edge.allowed_upstreams, is_own, own_ports)
