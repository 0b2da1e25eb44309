"""The composition root: makes the parts of the stack from the settings, starts them in order, stops them in reverse.

    API (embedded, or the operator's) -> client -> informers -> webhooks -> manifests
                                                            -> inventory -> journey
                                                            -> controller, gRPC server
                                                            -> DHCP, TFTP, HTTP, router advertisements, admin HTTP

`Stack._nodes` is the list of all parts in their start order. `tinkedge up` runs all parts in one process, except the
gRPC server, which is a child process (`edge.run.server_process`). `edge`, `controller`, `server` and `apiserver` run
some of the parts. No other module depends on which parts run where.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import Metric

from edge.callers import UNSEEN, Callers, Neighbours
from edge.checkpoint import checkpoint_metrics
from edge.journey.archive import Archive
from edge.journey.discovery import DiscoveryJourney
from edge.journey.recorder import Journey
from edge.machines import (
    BootProblemWriter,
    ConditionWriter,
    DhcpMode,
    DiscoveryWriter,
    Inventory,
    MistakeWriter,
    PendingWorkflows,
    StateWriter,
    progress_of,
)
from edge.neighbour.host import NetworkState
from edge.neighbour.table import NeighbourTable, neighbour_changes
from edge.page import Api
from edge.peers.site import event_batch_metrics
from edge.run.boot_settings import EdgeUrls
from edge.run.boot_watch import MAX_EVENTS, BootWatch
from edge.run.context import Context, Tasks
from edge.run.errors import StackError
from edge.run.examination import Examination
from edge.run.machine_work import AgentJourney, WorkflowJourney
from edge.run.manifests import ManifestApplier
from edge.run.networks.agents import AgentsAddresses, at_networks
from edge.run.networks.follow import HostNetworks
from edge.run.networks.services import tcp_advice
from edge.run.operators import start_operators
from edge.run.other_edges import say_hello, start_reports
from edge.run.outage import SavedState, follow_api, has_saved_state, remove_unwanted, secret_reader
from edge.run.process.memory import read_up
from edge.run.readiness import ApiContact, Readiness
from edge.run.reviews import HOOKS, Reviews, are_reached
from edge.run.serving import MachineServers, reach_of
from edge.settings.model import EDGE, Service, StackSettings
from edge.telemetry import BootEnds, Durations, Telemetry, Traces
from tink.api.annotations import EXPECTED_MACHINES_LABEL
from tink.api.crds import generate, generate_bmc
from tink.api.mistakes import ELSEWHERE, Site
from tink.api.v1alpha2 import Raw
from tink.controller import UpstreamWatch, WorkflowController, followed_definitions
from tink.discovery.admission import Admission
from tink.discovery.expected import ExpectedMachines
from tink.files.data_directory import claim
from tink.kube.cache import START_JITTER_SECONDS, Informer, ObjectCompressor
from tink.kube.client import KubeClient, log_missing_namespaces
from tink.kube.manifests import with_last_applied
from tink.kube.metrics import client_metrics, controller_metrics, informer_metrics, leader_metrics
from tink.kube.objects import NamespacedName
from tink.kube.resources import CONFIG_MAP, HARDWARE, JOB, MACHINE, OSIE, TASK, TEMPLATE, WORKFLOW, ResourceType
from tink.kube.runtime import Controller, LeaderElectionConfig, LeaderElector, pod_namespace
from tink.metrics.families import Scraped, gauge
from tink.metrics.process import process_registry
from tink.net.addresses import join_host_port
from tink.server import AgentActivity, WorkflowServer
from tink.template_process import TemplateProcess
from tink.workflow import ended
from tink.workflow import guards as protection

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from edge.run.server_process.supervisor import ServerProcess
    from tink.bmc.manager import BmcManager
    from tink.kubeapi import ApiServer

log = logging.getLogger(__name__)

_ALL: Final = frozenset(Service)
_WRITERS: Final = frozenset({Service.CONTROLLER, Service.BMC, Service.DISCOVERY, Service.SERVER}) | HOOKS
"""Services that can do nothing while the API is away. The edge can."""
_USERS: Final[dict[ResourceType, frozenset[Service]]] = {
    HARDWARE: EDGE | {Service.CONTROLLER, Service.BMC, Service.DISCOVERY, Service.SERVER, Service.WEBHOOKS},
    OSIE: frozenset({Service.HTTP, Service.TFTP, Service.WEBHOOKS}),
    TEMPLATE: frozenset({Service.CONTROLLER, Service.WEBHOOKS}),
    WORKFLOW: EDGE | {Service.CONTROLLER, Service.BMC, Service.DISCOVERY, Service.SERVER, Service.WEBHOOKS},
    MACHINE: frozenset({Service.BMC}),
    JOB: frozenset({Service.BMC}),
    TASK: frozenset({Service.BMC}),
    CONFIG_MAP: frozenset({Service.DISCOVERY}),
}
"""The services that need the objects of a kind; of ConfigMaps, those with lists of expected machines."""

_STARTING: Final = "starting"
_RESTORE_SECONDS: Final = 3.0
"""Time that the start waits for the journeys of earlier runs. Their reading continues while machines are served."""


@dataclass(frozen=True, slots=True)
class AgentsObserver:
    """The callbacks of a process that runs only the gRPC server.

    `observe` receives the agents' activity. `listens` is called when the server listens. `kept_away` receives the
    blocked networks (CIDR), each with the end of its block (CLOCK_MONOTONIC); `away` are those of the start.
    """

    observe: Callable[[AgentActivity], None]
    listens: Callable[[], None]
    kept_away: Callable[[list[tuple[str, float]]], None]
    away: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of the stack. It is started if one of `services` runs in this process."""

    name: str
    services: frozenset[Service]
    start: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Edge:
    """The parts that only an edge has: the servers for machines, and the tasks that write its findings to Hardware."""

    serving: MachineServers
    mistakes: MistakeWriter
    boots: BootWatch
    tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]


class Stack:
    """All parts of one process. `start` once, then `run`, then `stop` once."""

    def __init__(self, settings: StackSettings, agents: AgentsObserver | None = None) -> None:
        """Create a stack. `agents` receives the agents' activity; without it, the journey does."""
        self._settings = settings
        self._here = settings.services - ({Service.SERVER} if settings.server_apart else frozenset())
        """The services of this process."""
        self._agents = agents
        self.starting = _STARTING  # why the process has not started or is about to end; empty while it runs
        self._exit = AsyncExitStack()
        self._tasks = Tasks(self._exit)
        self._spawn = self._tasks.spawn
        self._compressor = ObjectCompressor()  # one packed copy of each Hardware, for informer and inventory alike
        self.inventory = Inventory(self._compressor)
        self.journey = Journey(time.time, began=time.time())
        self._pending = PendingWorkflows()
        self._templates = TemplateProcess()
        self._exit.callback(self._templates.close)
        self._reviews = Reviews(settings, self._site, self._exit, Examination(settings, reach_of(settings)))
        self._kubeconfig = settings.kubeconfig
        self._informers: dict[ResourceType, Informer] = {}
        self._controllers: dict[str, Controller] = {}
        self._contact = ApiContact(
            lambda: self._informers.values(),
            self.journey.announce,
            restored=lambda: self._saved.known_at if self._saved is not None else None,
        )
        self.metrics = process_registry(lambda: self.not_ready)  # the metrics for Prometheus
        self.metrics.register(Scraped(self._guard_metrics))
        self.metrics.register(Scraped(lambda: leader_metrics(*self._electors)))
        self.agents_metrics: list[Collector] = []  # the metrics of the gRPC server, if it runs in this process
        # The nodes below set these:
        self._context: Context
        self._client: KubeClient
        self._api: ApiServer | None = None
        self._server_process: ServerProcess | None = None
        self._applier: ManifestApplier | None = None
        self._saved: SavedState | None = None
        self._networks: HostNetworks | None = None
        self._callers: Callers | None = None
        self._edge: _Edge | None = None
        self._elector: LeaderElector | None = None
        self._electors: list[LeaderElector] = []
        self._bmc: BmcManager | None = None
        self._upstream: UpstreamWatch | None = None
        self._fixed: AgentsAddresses | None = None
        self._archive: Archive | None = None
        self._expected: ExpectedMachines | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every service of the settings; ready when it returns. Raises StackError or the part's own error."""
        try:
            for node in self._nodes():
                if node.services & self._settings.services:
                    log.debug("starting: %s", node.name)
                    await node.start()
        except BaseException:
            await self.stop()
            raise
        self.starting = ""
        log.info("%s: %s", "started" if self.not_ready else "ready", ", ".join(sorted(self._settings.services)))

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises StackError if a part ends by itself."""
        await self._tasks.run_until(stop)

    async def stop(self) -> None:
        """Stop everything, the newest part first."""
        self.starting = "stopping"
        await self._exit.aclose()

    def _nodes(self) -> list[_Node]:
        """Return the parts in the order of their start."""
        disk, server = frozenset({Service.APISERVER, Service.HTTP}), frozenset({Service.SERVER})
        return [
            _Node("data directory", disk, self._claim_data_directory),
            _Node("embedded API", frozenset({Service.APISERVER}), self._start_api),
            # Its start takes as long as that of all other parts, so it begins early.
            _Node("process of the gRPC server", server, self._start_server_process),
            _Node("client of the API", _ALL, self._connect),
            _Node("definitions of kinds", _ALL, self._apply_definitions),
            _Node("informers, networks and callers", _ALL, self._make_context),
            _Node("servers for machines", EDGE, self._make_edge),
            _Node("controller", frozenset({Service.CONTROLLER}), self._start_controller),
            _Node("BMC control", frozenset({Service.BMC}), self._start_bmc),
            _Node("discovery", frozenset({Service.DISCOVERY}), self._start_discovery),
            _Node("gRPC server", server, self._start_server),
            _Node("journeys of earlier runs", frozenset({Service.ADMIN}), self._restore_journeys),
            _Node("objects of the API, webhooks, manifests", _ALL, self._follow_api),
            # Machines are served when their Hardware is known: earlier, an edge would call each of them unknown.
            _Node("networks", _ALL, self._start_networks),
            _Node("operators' HTTP and background tasks", EDGE, self._start_edge_tasks),
            _Node("agents of the gRPC server's process", server, self._wait_for_server_process),
        ]

    # --- status -------------------------------------------------------------------------------------------------------

    @property
    def not_ready(self) -> str:
        """The reason why this process can't do its work, as on /readyz; empty if it can."""
        services = self._settings.services
        denied = next(filter(None, (informer.denied for informer in self._informers.values())), "")
        if self.starting == _STARTING and denied:
            return f"{_STARTING}: {denied}"
        reasons = [self.starting, self._networks.not_ready() if self._networks is not None else "", denied]
        reasons += [self._edge.serving.binaries.problem] if self._edge is not None else []
        reasons += [self._server_process.problem] if self._server_process is not None else []
        if services & _WRITERS and not services & EDGE:
            reasons += [self._contact.problem, self._contact.not_listed]
        return next(filter(None, reasons), "")

    @property
    def readiness(self) -> Readiness:
        """`not_ready` with the notes for operators."""
        saved = self._saved.note if self._saved is not None else ""
        leadership, elector = "", self._elector
        if elector is not None:
            standby = f"this replica is on standby; {elector.leader or 'no replica'} leads"
            leadership = "this replica leads" if elector.is_leader else standby
        notes = [self._contact.note, saved, leadership, self.agents_note]
        notes += [self._applier.note] if self._applier is not None else []
        notes += [self._bmc.note] if self._bmc is not None else []
        notes += [self._upstream.note] if self._upstream is not None else []
        notes += self._open_guards().values()
        return Readiness(self.not_ready, tuple(filter(None, notes)))

    def _open_guards(self) -> dict[str, str]:
        """Return the guards that fail open now, by name, each with the reason."""
        serves = bool(self._settings.services & (EDGE | {Service.SERVER}))
        blind = serves and self._callers is not None and not self._callers.sees_neighbours
        unprobed = self._edge.serving.unprobed if self._edge is not None else ""
        believed = f"{unprobed}: no probe can be sent, so a forged decline of a machine's address"
        return {
            "reviews": "; ".join(self._reviews.notes),
            "declines": f"{believed} silences it for a minute in ten" if unprobed else "",
            "neighbours": "the kernel's neighbours can't be read: machines are known by address alone" if blind else "",
        }

    def _guard_metrics(self) -> Iterator[Metric]:
        text = "1: the guard lets things pass, see /readyz."
        yield gauge(
            "tinkedge_open_guard", text, ["guard"], {(name,): bool(why) for name, why in self._open_guards().items()}
        )

    @property
    def agents_note(self) -> str:
        """The note for operators about the gRPC server; empty if there is none."""
        if self._server_process is not None:
            return self._server_process.note
        return self._fixed.note if self._fixed is not None else ""

    @property
    def networks(self) -> list[NetworkState]:
        """The current states of the networks that face machines."""
        return self._networks.states if self._networks is not None else []

    async def alive(self) -> None:
        """Return when the threads of the embedded API answer, if it runs here."""
        if self._api is not None:
            await self._api.alive()

    def _site(self) -> Site:
        """Return what this process knows of the DHCP server of its networks."""
        if self._networks is None or Service.DHCP not in self._settings.services:
            return ELSEWHERE
        relayed = self._edge.mistakes.relayed if self._edge is not None else ()
        return self._networks.site(relayed, self._settings.edge.dhcp_mode)

    # --- API and client -----------------------------------------------------------------------------------------------

    async def _claim_data_directory(self) -> None:
        """Lock the data directory for this process."""
        claim(self._settings.data_dir)

    async def _start_api(self) -> None:
        # Edges and their restarts do not wait for these imports.
        from tink import versions
        from tink.kubeapi import ApiServer, ApiServerError

        api = self._api = ApiServer(
            self._settings.data_dir,
            port=self._settings.api_port,
            addresses=self._settings.api_addresses,
            names=self._settings.api_names,
            admit=_admit,
            plugin=self._reviews.in_process(lambda: self._api),
            converters=dict.fromkeys(versions.DEFINITIONS, versions),
        )
        try:
            await api.start()
        except ApiServerError as error:
            raise StackError(str(error)) from error
        self.metrics.register(api.metrics())
        self._exit.push_async_callback(api.stop)
        log.info("embedded API on %s, kubeconfig %s", api.url, api.kubeconfig)
        self._kubeconfig = api.kubeconfig

    async def _start_server_process(self) -> None:
        if not self._settings.server_apart:
            return
        from edge.run.server_process.supervisor import ServerProcess

        observe = AgentJourney(self.journey.record, self.inventory).observe
        process = self._server_process = ServerProcess(self._settings, self._kubeconfig, observe, self.journey.announce)
        self._exit.push_async_callback(process.stop)
        self.metrics.register(Scraped(process.metrics))
        process.start()

    async def _connect(self) -> None:
        self._client = await KubeClient.connect(self._kubeconfig)
        self._exit.push_async_callback(self._client.close)
        self.metrics.register(Scraped(partial(client_metrics, self._client)))

    async def _apply_definitions(self) -> None:
        """Apply this release's CRDs to the embedded API, and the CRDs of --manifests; the informers need them."""
        settings = self._settings
        applier = self._applier = ManifestApplier(
            self._client, lambda: self._api.refusal if self._api is not None else "", settings.manifests
        )
        self.metrics.register(Scraped(applier.metrics))
        if self._api is not None:
            # Those of BMCs may collide with Rufio's, of another release and with other versions.
            definitions = (generate(serve_v1alpha1=True), generate_bmc())
            own, bmc = ([with_last_applied(each) for each in some] for some in definitions)
            await applier.apply_own(own, bmc)
            if applier.own:
                self._spawn(applier.apply_own_later(), "definitions of this release", ends=True)
        if settings.manifests is not None:
            await applier.apply_definitions()

    # --- shared parts -------------------------------------------------------------------------------------------------

    async def _make_context(self) -> None:
        """Make the informers, networks and callers, which the services share. The informers do not run yet."""
        settings = self._settings
        wanted = self._here if are_reached(settings) else self._here - HOOKS
        informers = self._informers = {
            resource: self._informer(resource) for resource, users in _USERS.items() if users & wanted
        }
        if self._admits_listed:
            informers.setdefault(CONFIG_MAP, self._informer(CONFIG_MAP))
        if self._reviews.plugin is not None:
            self._reviews.plugin.follow(informers)
            self.metrics.register(self._reviews.plugin.metrics)
        remove_unwanted(settings)
        if has_saved_state(settings):
            self._saved = SavedState(settings, self._client, informers, self._pending, self.inventory)
        self.metrics.register(Scraped(partial(informer_metrics, informers.values())))
        self.metrics.register(Scraped(partial(controller_metrics, self._controllers)))
        callers = self._callers = callers_of(settings, self.inventory, self._exit)
        networks = self._networks = HostNetworks(settings.networks, self.journey.announce)
        self._exit.callback(networks.close)
        self._context = Context(
            settings=settings,
            exit_stack=self._exit,
            tasks=self._tasks,
            metrics=self.metrics,
            journey=self.journey,
            inventory=self.inventory,
            pending=self._pending,
            networks=networks,
            callers=callers,
            client=self._client,
            informers=informers,
            contact=self._contact,
        )

    def _informer(self, resource: ResourceType) -> Informer:
        settings = self._settings
        selectors = {HARDWARE: settings.hardware_selector, CONFIG_MAP: f"{EXPECTED_MACHINES_LABEL}=true"}
        return Informer(
            self._client,
            resource,
            settings.namespaces,
            label_selector=selectors.get(resource, ""),
            # A cluster starts many replicas in pods at the same time.
            start_jitter=START_JITTER_SECONDS if settings.kubeconfig is None and self._api is None else 0.0,
            compressor=self._compressor if resource is HARDWARE else None,
            archive_format=ended if resource is WORKFLOW else None,
        )

    # --- edge ---------------------------------------------------------------------------------------------------------

    async def _make_edge(self) -> None:
        """Make the servers for machines, and connect everything at the edge that depends on Hardware and Workflows."""
        context, settings = self._context, self._settings
        client, hardware, workflows = self._client, self._informers[HARDWARE], self._informers[WORKFLOW]
        conditions = ConditionWriter(client)
        self._exit.callback(self.journey.flush)
        hardware.add_event_handler(lambda new, _: self.inventory.apply(new), self.inventory.remove)
        hardware.add_event_handler(conditions.apply, conditions.remove)
        journey = WorkflowJourney(self.journey, self.inventory, others=bool(settings.hardware_selector))
        workflows.add_event_handler(journey.on_change, journey.on_delete)
        workflows.add_event_handler(self._pending.apply, self._pending.remove)
        mistakes = MistakeWriter(client, hardware, self._informers.get(OSIE), self._site)
        context.networks.on_change(mistakes.networks_changed)
        problems, states = BootProblemWriter(client, hardware), StateWriter(client, hardware)
        self._controllers |= {
            "hardware-conditions": conditions.runtime,
            "hardware-mistakes": mistakes.runtime,
            "hardware-boot-problems": problems.runtime,
            "hardware-states": states.runtime,
        }
        boots = BootWatch(
            self.journey,
            self.inventory,
            self._pending,
            context.networks,
            lambda: mistakes.relayed,
            problems,
            (settings.edge.http_port, settings.grpc_port),
            api_away=lambda: self._contact.problem,
            states=states,
        )
        hardware.add_event_handler(lambda _new, _old: None, boots.hardware_gone)
        discoveries = DiscoveryJourney(
            self.journey, is_live=lambda: hardware.has_synced, line_of=self._line_of, on_approved=boots.approved
        )
        hardware.add_event_handler(discoveries.on_change, discoveries.on_delete)
        boots.is_moving = discoveries.is_moving
        self._expected = self._expected_machines()
        discovery = self._make_discovery()
        serving = MachineServers(
            context,
            boots,
            declined=conditions.changed,
            discovery=discovery,
            relay_seen=mistakes.relay_heard,
            readiness=lambda: self.readiness,
            read_secret=secret_reader(client, self._saved),
            keep=lambda happened: self._archive.keep(happened) if self._archive is not None else None,
        )
        tasks = {
            "conditions": conditions.run,
            "mistakes of Hardware": mistakes.run,
            "problems of boots": problems.run,
            "states of machines": states.run,
            "expectations of boots": boots.run,
        }
        if discovery is not None:
            tasks["admission of unknown machines"] = discovery.run
        self._edge = _Edge(serving, mistakes, boots, tasks)

    def _make_discovery(self) -> DiscoveryWriter | None:
        """Return the writer of Hardware for unknown machines; None if no rule admits any."""
        rules, networks = self._settings.edge.discover, self._context.networks
        if not rules:
            return None

        def own_addresses() -> Iterator[str]:
            for state in networks.states:
                yield from state.addresses
            if self._edge is not None:
                yield from self._edge.serving.other_edges

        admission = Admission(
            rules,
            lambda mac: bool(self.inventory.claimants(mac)),
            own_addresses=own_addresses,
            listed=self._expected if self._admits_listed else None,
            progress=lambda mac: progress_of(entry for _, entry in self.journey.after(mac, 0.0, MAX_EVENTS)),
            is_in_use=lambda hardware: bool(self._pending.pending(*hardware)),
        )
        # After the inventory's handlers, so that a machine is registered when its admission ends.
        writer = DiscoveryWriter(self._client, self._informers[HARDWARE], admission, rules, self.journey.record)
        self._controllers["hardware-discovery"] = writer.runtime
        self.metrics.register(Scraped(writer.metrics))
        return writer

    @property
    def _admits_listed(self) -> bool:
        """True if an edge in this process has rules of admission, and reads the lists of expected machines.

        In a cluster, an edge without a controller reads them only for a rule with only=listed or lists=, because that
        needs the right to read all ConfigMaps.
        """
        rules = self._settings.edge.discover
        has_lists = Service.DISCOVERY in self._here or any(rule.listed_only or rule.lists for rule in rules)
        return Service.DHCP in self._here and bool(rules) and has_lists

    def _expected_machines(self) -> ExpectedMachines | None:
        """Return the lists of expected machines; None if this process does not follow them.

        It follows them if it approves machines, or if a rule of admission needs them. Other edges need no right to read
        ConfigMaps.
        """
        if CONFIG_MAP not in self._informers:
            return None
        expected = ExpectedMachines()
        self._informers[CONFIG_MAP].add_event_handler(lambda new, _: expected.apply(new), expected.remove)
        return expected

    def _line_of(self, hardware: NamespacedName) -> str:
        """Return the line of the lists with this name, for messages; empty if this process knows none."""
        line = self._expected.named(hardware) if self._expected is not None else None
        return line.source if line is not None else ""

    async def _start_edge_tasks(self) -> None:
        """Start the operators' HTTP, and everything at the edge that runs in the background."""
        edge, saved = self._edge, self._saved
        if edge is None:
            return
        api = "cluster" if self._api is None else "embedded"
        await start_operators(
            self._context,
            edge.serving,
            edge.boots,
            lambda: self.readiness,
            lambda: Api(api, self._client.url, self._contact.problem),
            self._expected,
        )
        self._spawn(edge.serving.run(), "edge")
        self._spawn(self._load_rest(self._informers[HARDWARE]), "Hardware that are read later", ends=True)
        if edge.serving.peers is not None:
            say_hello(self._context, edge.serving.peers)
        self.metrics.register(Scraped(self._contact.metrics))
        self.metrics.register(Scraped(partial(checkpoint_metrics, saved.checkpoint if saved is not None else None)))
        self._spawn(self._contact.run(), "contact with the API")
        if saved is not None:
            self._exit.push_async_callback(saved.checkpoint.close)
            self._spawn(saved.checkpoint.run(), "checkpoint")
            if saved.secrets is not None:
                self._spawn(saved.secrets.run(), "Secrets that are kept")
        for name, work in edge.tasks.items():
            self._spawn(work(), name)
        durations, endpoint = Durations(), self._settings.edge.otlp_endpoint
        self.metrics.register(Scraped(durations.metrics))
        traces = Traces(endpoint) if endpoint else None
        if traces is not None:
            self.metrics.register(Scraped(traces.metrics))
            self._exit.push_async_callback(asyncio.to_thread, traces.close)
        self._spawn(Telemetry(BootEnds(self.journey, time.time), durations, traces).run(), "boots that have ended")

    async def _load_rest(self, hardware: Informer) -> None:
        """Load the Hardware that no machine has asked for yet, soon after a restart with very many."""
        if self._saved is not None:
            await self._saved.restore_rest()
        await hardware.wait_for_cache_sync()
        await read_up()

    async def _restore_journeys(self) -> None:
        """Restore the journeys of earlier runs from disk (at most 3 s), then persist new events."""
        self._archive = Archive(self.journey, self._settings.data_dir)
        self._spawn(self._archive.run(), "journeys that are kept")
        with suppress(TimeoutError):
            async with asyncio.timeout(_RESTORE_SECONDS):
                await self._archive.restored.wait()

    async def _start_networks(self) -> None:
        """Serve machines on each network that is there."""
        context = self._context
        if self._edge is not None:
            await self._edge.serving.start()
            context.networks.add_follower(self._edge.serving.network_changed)
        await context.networks.start()
        self._spawn(context.networks.run(), "networks")

    # --- objects of the API -------------------------------------------------------------------------------------------

    async def _follow_api(self) -> None:
        """Run the informers until they have listed everything, then start the webhooks and apply the manifests."""
        alone = not self._settings.services & EDGE
        if await follow_api(self._informers, self._run_informers, self._saved, alone=alone):
            await self._start_reviews()
        else:
            # The API is away, and the start can continue without it.
            self._spawn(self._start_reviews(), "what waits for the API", ends=True)

    def _run_informers(self) -> None:
        for resource, informer in self._informers.items():
            self._spawn(informer.run(), f"informer of {resource.plural}")

    async def _start_reviews(self) -> None:
        """Log the namespaces that do not exist, start the webhooks, and apply the manifests, which they review."""
        for informer in self._informers.values():
            await informer.wait_for_cache_sync()
        await log_missing_namespaces(self._client, self._settings.namespaces)
        webhooks = await self._reviews.start(self._client, self._informers, self.metrics)
        if webhooks is not None:
            self._exit.push_async_callback(webhooks.stop)
            self._spawn(webhooks.run(), "webhooks")
        if self._applier is not None and self._settings.manifests is not None:
            await self._applier.apply_and_wait(self._informers)
            self._spawn(self._applier.run(), "manifests")
        self._watch_upstream()

    def _watch_upstream(self) -> None:
        """Watch for a Tinkerbell on this API. The webhook for v1alpha1 has tried to register itself before."""
        services = self._settings.services
        if Service.CONTROLLER not in services or (self._api is None and Service.V1ALPHA1 not in services):
            return  # In a cluster, only the rights for v1alpha1 let the controller read definitions.
        definitions = followed_definitions(
            is_embedded=self._api is not None, serves_v1alpha1=True, has_bmc=Service.BMC in services
        )
        watch = self._upstream = UpstreamWatch(self._client, definitions)
        self.metrics.register(Scraped(watch.metrics))
        self._spawn(watch.run(), "a Tinkerbell on this API")

    # --- controller and gRPC server -----------------------------------------------------------------------------------

    async def _start_controller(self) -> None:
        settings = self._settings
        self._elector = self._leader_elector("tinkedge-controller")
        controller = WorkflowController(
            self._client,
            workflows=self._informers[WORKFLOW],
            hardware=self._informers[HARDWARE],
            templates=self._informers[TEMPLATE],
            settings=settings.controller,
            elector=self._elector,
            render=self._templates.render_template,
        )
        self._controllers["workflow"] = controller.runtime
        self.metrics.register(controller.metrics)
        self._spawn(controller.run(), "controller")

    def _leader_elector(self, lease: str) -> LeaderElector | None:
        """Return the part of this process in an election; None if there is only one replica."""
        settings = self._settings
        if not settings.leader_elect:
            return None
        config = LeaderElectionConfig(lease, settings.lease_namespace or pod_namespace())
        elector = LeaderElector(self._client, config)
        self._electors.append(elector)
        return elector

    async def _start_bmc(self) -> None:
        """Start the control of machines by their BMCs. It works while it holds the Lease of Rufio's name."""
        from tink.bmc.manager import BmcManager  # edges and their restarts do not wait for this import

        settings, networks = self._settings, self._context.networks

        def address() -> str:
            return next((each for state in networks.states for each in state.addresses), "")

        manager = self._bmc = BmcManager(
            self._client,
            self._informers,
            settings.bmcs,
            namespace=settings.lease_namespace or pod_namespace(),
            urls=EdgeUrls(settings, address, has_edge=Service.HTTP in settings.services),
        )
        self._controllers |= manager.controllers
        self.metrics.register(manager)
        self._spawn(manager.run(), "BMC control")

    async def _start_discovery(self) -> None:
        """Start the controller of discovered and expected machines."""
        from tink.discovery.controller import LEASE_NAME, DiscoveryController  # edges do not wait for this import

        elector = self._leader_elector(LEASE_NAME)
        controller = DiscoveryController(self._client, self._informers, elector=elector, expected=self._expected)
        self._controllers["discovery"] = controller.runtime
        self.metrics.register(controller)
        self._spawn(controller.run(), "discovery")

    async def _start_server(self) -> None:
        """Start the gRPC server in this process, and its reports to edges if it is apart from them."""
        if self._server_process is not None:
            # Stopped before the parts that were started since: a child that goes on would lose the API.
            self._exit.push_async_callback(self._server_process.stop)
            return
        context, port, agents = self._context, self._settings.grpc_port, self._agents
        if self._settings.grpc_addresses:
            self._fixed = AgentsAddresses(self._settings.grpc_addresses, port)
        states = context.networks.states
        networked = [join_host_port(address, port) for state in states for address in state.addresses]
        server = WorkflowServer(
            self._client,
            workflows=self._informers[WORKFLOW],
            hardware=self._informers[HARDWARE],
            addresses=networked if self._fixed is None else self._fixed.listening,
            settings=self._settings.server,
            observe=agents.observe if agents is not None else AgentJourney(self.journey.record, self.inventory).observe,
            kept_away=agents.kept_away if agents is not None else lambda _: None,
            away=agents.away if agents is not None else (),
            other_host=context.callers.stranger,
            scope=self._settings.scope,
        )
        try:
            await server.start()
        except OSError as error:
            raise StackError(f"{error.strerror or error}: {tcp_advice(error, port, '--grpc-port')}") from error
        self._exit.push_async_callback(server.stop)
        self.agents_metrics.append(server)
        self.metrics.register(self.agents_metrics[-1])
        if agents is not None:
            agents.listens()
        if self._fixed is None:
            context.networks.add_follower(at_networks(server, states, port))
        else:
            self._spawn(self._fixed.run(server), "addresses of agents")
        if self._edge is None:
            reports = await start_reports(context)  # raises KeyFileError
            if reports is not None:
                self._informers[HARDWARE].add_event_handler(
                    lambda new, _: self.inventory.apply(new), self.inventory.remove
                )
                self.metrics.register(Scraped(partial(event_batch_metrics, reports.calls.counts)))

    async def _wait_for_server_process(self) -> None:
        """Wait until the child process listens for agents. Raises StackError if it can't."""
        if self._server_process is not None:
            await self._server_process.listening()


def _admit(new: Raw, old: Raw | None) -> None:
    """Add to a write of the embedded API: the finalizer of a new Workflow, and v1alpha1 to our definitions."""
    # Edges and their restarts do not wait for this import.
    from tink import versions

    if old is None:
        protection.protect(new)
    versions.keep_served(new, old)


def callers_of(settings: StackSettings, inventory: Inventory, exit_stack: AsyncExitStack) -> Callers:
    """Return what identifies the sender of a request; `exit_stack` closes it. Raises OSError if the DHCP mode needs
    that.
    """
    edge = settings.edge
    neighbours: Neighbours = UNSEEN
    if settings.services & (EDGE | {Service.SERVER}):
        try:
            neighbours = table = NeighbourTable([network.interface for network in settings.networks])
            exit_stack.callback(table.close)
        except OSError as error:
            if edge.dhcp_mode is not DhcpMode.RESERVATION:
                raise
            log.warning("the kernel's neighbour table can't be read: machines are known by address alone: %s", error)
    callers = Callers(inventory, edge.dhcp_mode, neighbours, by_address=edge.known_by_address)
    if neighbours is not UNSEEN:
        exit_stack.callback(neighbour_changes(callers.changed).close)
    return callers
