"""The composition root: puts the parts of the stack together, starts them in order and stops them in reverse.

    API (embedded, or the operator's) -> client -> informers -> webhooks -> manifests
                                                            -> inventory -> journey
                                                            -> controller, gRPC server
                                                            -> DHCP, TFTP, HTTP, router advertisements, admin HTTP

`tinkedge up` runs all parts in one process, except the gRPC server, which is a child process
(`edge.run.server_process`). `edge`, `controller`, `server` and `apiserver` run some of the parts. No other
module depends on which parts run where.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from edge.callers import Callers
from edge.checkpoint import checkpoint_metrics
from edge.journey.agents import AgentJourney
from edge.journey.archive import Archive
from edge.journey.recorder import Journey
from edge.journey.workflows import WorkflowJourney
from edge.machines import (
    BootProblemWriter,
    ConditionWriter,
    Inventory,
    Machine,
    MistakeWriter,
    PendingWorkflows,
    StateWriter,
)
from edge.neighbour.host import NetworkState
from edge.page import Api
from edge.peers import event_batch_metrics
from edge.run import hooks
from edge.run.examination import Examination
from edge.run.expecting import BootWatch
from edge.run.hooks import HOOKS
from edge.run.manifests import ManifestApplier
from edge.run.neighbours import callers_of
from edge.run.networks import AgentsAddresses, HostNetworks, at_networks, tcp_advice
from edge.run.other_edges import say_hello, start_reports
from edge.run.outage import Kept, NotListedError, followed, forget, keeps, secret_reader
from edge.run.process import read_up
from edge.run.readiness import ApiContact, Readiness
from edge.run.serving import Serving, reach_of
from edge.run.settings import EDGE, Service, StackSettings
from edge.run.tasks import StackError, Tasks
from edge.telemetry import BootEnds, Durations, Telemetry, Traces
from tink.api.crds import generate
from tink.api.mistakes import ELSEWHERE, Site
from tink.api.v1alpha2 import Raw
from tink.controller import WorkflowController
from tink.files.data_directory import claim
from tink.kube.cache import START_JITTER_SECONDS, Informer, ObjectCompressor
from tink.kube.client import KubeClient, log_missing_namespaces
from tink.kube.manifests import with_last_applied
from tink.kube.metrics import ClientMetrics, ControllerMetrics, InformerMetrics, LeaderMetrics
from tink.kube.resources import HARDWARE, OSIE, TEMPLATE, WORKFLOW, ResourceType
from tink.kube.runtime import Controller, LeaderElectionConfig, LeaderElector, pod_namespace
from tink.metrics.families import Scraped, gauge
from tink.metrics.process import process_registry
from tink.net.addresses import join_host_port
from tink.server import AgentActivity, WorkflowServer
from tink.template_process import TemplateProcess
from tink.workflow import ended, protection

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from edge.run.server_process import ServerProcess
    from tink.kubeapi import ApiServer

log = logging.getLogger(__name__)

_WRITERS = frozenset({Service.CONTROLLER, Service.SERVER}) | HOOKS
"""What has nothing to do while the API is away; the edge has."""

_SERVED = (HARDWARE, OSIE, WORKFLOW)
"""What those who serve machines know of."""

_STARTING = "starting"
_RESTORE_SECONDS = 3.0
"""So long at most the start waits for what machines did before; that goes on while they are served."""


@dataclass(frozen=True, slots=True)
class AgentsObserver:
    """The callbacks of a process that runs only the gRPC server.

    `observe` receives the agents' activity, `listens` is called when the server listens, and `kept_away` receives the
    blocked networks (CIDR), each with the end of its block (CLOCK_MONOTONIC). `away` are the networks that are blocked
    from the start on.
    """

    observe: Callable[[AgentActivity], None]
    listens: Callable[[], None]
    kept_away: Callable[[list[tuple[str, float]]], None]
    away: tuple[tuple[str, float], ...] = ()


class Stack:
    """Started once, stopped once."""

    def __init__(self, settings: StackSettings, agents: AgentsObserver | None = None) -> None:
        """Create a stack. `agents` receives the agents' activity; without it, the journey does."""
        self._settings = settings
        self._agents = agents
        self._server_process: ServerProcess | None = None
        self.agents_metrics: list[Collector] = []
        """The metrics of the gRPC server, if it runs in this process."""
        self._exit = AsyncExitStack()
        self._tasks = Tasks(self._exit)
        self._spawn = self._tasks.spawn
        self._not_ready = _STARTING
        self._informers: dict[ResourceType, Informer] = {}
        self._api: ApiServer | None = None
        self._applier: ManifestApplier | None = None
        # One packed copy of each Hardware, for the informer and the inventory alike.
        self._compressor = ObjectCompressor()
        self.inventory = Inventory(self._compressor)
        self.journey = Journey(time.time, began=time.time())
        self._networks: HostNetworks | None = None
        self._mistakes: MistakeWriter | None = None
        self._pending = PendingWorkflows()
        self._elector: LeaderElector | None = None
        self._fixed: AgentsAddresses | None = None
        self._archive: Archive | None = None
        self._controllers: dict[str, Controller] = {}
        self._kept: Kept | None = None
        self._serving: Serving | None = None
        self._callers: Callers | None = None
        self._templates = TemplateProcess()
        self._exit.callback(self._templates.close)
        self._reviews = hooks.Reviews(settings, self._site, self._exit, Examination(settings, reach_of(settings)))
        self._contact = ApiContact(
            lambda: self._informers.values(),
            self.journey.announce,
            restored=lambda: self._kept.known_at if self._kept is not None else None,
        )
        self.metrics = process_registry(lambda: self.not_ready)
        """What Prometheus is given."""
        self.metrics.register(Scraped(self._guard_metrics))

    async def start(self) -> None:
        """Start every service of the settings; ready when it returns. Raises StackError or the part's own error."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        self._not_ready = ""
        log.info("%s: %s", "started" if self.not_ready else "ready", ", ".join(sorted(self._settings.services)))

    @property
    def starting(self) -> str:
        """Why it has not started, or is about to end. Empty: it runs, be the networks there or not."""
        return self._not_ready

    @property
    def not_ready(self) -> str:
        """Why this process can't do its work, such as serve machines: what /readyz says. Empty: it can."""
        services = self._settings.services
        denied = next(filter(None, (informer.denied for informer in self._informers.values())), "")
        if self._not_ready == _STARTING and denied:
            return f"{_STARTING}: {denied}"
        reasons = [self._not_ready, self._networks.not_ready() if self._networks is not None else "", denied]
        reasons += [self._serving.workers_problem, self._serving.binaries_problem] if self._serving is not None else []
        reasons += [self._server_process.problem] if self._server_process is not None else []
        if services & _WRITERS and not services & EDGE:
            reasons += [self._contact.problem, self._contact.not_listed]
        return next(filter(None, reasons), "")

    @property
    def readiness(self) -> Readiness:
        """The same, with what operators are told beside it."""
        kept = self._kept.note if self._kept is not None else ""
        notes = [self._contact.note, kept, self._leadership(), self.agents_note]
        notes += [self._serving.workers_note] if self._serving is not None else []
        notes += [self._applier.note] if self._applier is not None else []
        notes += self._open_guards().values()
        return Readiness(self.not_ready, tuple(filter(None, notes)))

    def _open_guards(self) -> dict[str, str]:
        """Return the guards that fail open now, by name, each with the reason."""
        serves = bool(self._settings.services & (EDGE | {Service.SERVER}))
        blind = serves and self._callers is not None and not self._callers.sees_neighbours
        unprobed = self._serving.unprobed if self._serving is not None else ""
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

    def _leadership(self) -> str:
        elector = self._elector
        if elector is None:
            return ""
        if elector.is_leader:
            return "this replica leads"
        return f"this replica is on standby; {elector.leader or 'nobody'} leads"

    @property
    def networks(self) -> list[NetworkState]:
        """The networks that face machines, as they are."""
        return self._networks.states if self._networks is not None else []

    async def alive(self) -> None:
        """Return when the threads of the embedded API answer, if it runs here."""
        if self._api is not None:
            await self._api.alive()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises StackError if a part ends by itself."""
        await self._tasks.run_until(stop)

    async def stop(self) -> None:
        """Stop everything, the newest part first."""
        self._not_ready = "stopping"
        await self._exit.aclose()

    # --- the parts, in the order of their starting ----------------------------------------------------------------

    async def _start(self) -> None:
        settings = self._settings
        if settings.services & {Service.APISERVER, Service.HTTP}:
            claim(settings.data_dir)
        kubeconfig = settings.kubeconfig
        if Service.APISERVER in settings.services:
            kubeconfig = await self._start_api()
        if settings.server_apart:
            self._start_server_process(kubeconfig)
        client = await _connect(kubeconfig)
        self._exit.push_async_callback(client.close)
        self.metrics.register(ClientMetrics(client))
        applier = self._applier = ManifestApplier(
            client, lambda: self._api.refusal if self._api is not None else "", settings.manifests
        )
        if Service.APISERVER in settings.services:
            await applier.apply_own([with_last_applied(each) for each in generate()])
            if applier.waits:
                self._spawn(applier.apply_own_later(), "definitions of this release", ends=True)
        self.metrics.register(Scraped(applier.metrics))
        if settings.manifests is not None:
            # Definitions first, for the informers; the rest when the webhooks can review it.
            await applier.apply_definitions()
        await self._start_services(client)

    async def _start_api(self) -> Path:
        from tink.kubeapi import ApiServer, ApiServerError  # what edges and their restarts need not wait for

        api = self._api = ApiServer(
            self._settings.data_dir,
            port=self._settings.api_port,
            addresses=self._settings.api_addresses,
            names=self._settings.api_names,
            admit_create=protection.protect,
            plugin=self._reviews.in_process(lambda: self._api),
        )
        try:
            await api.start()
        except ApiServerError as error:
            raise StackError(str(error)) from error
        self.metrics.register(api.metrics())
        self._exit.push_async_callback(api.stop)
        log.info("embedded API on %s, kubeconfig %s", api.url, api.kubeconfig)
        return api.kubeconfig

    def _start_server_process(self, kubeconfig: Path | None) -> None:
        """Start the gRPC server's process early: its start takes as long as that of all other services."""
        from edge.run.server_process import ServerProcess  # the child imports Stack

        observe = AgentJourney(self.journey.record, self.inventory).observe
        process = self._server_process = ServerProcess(self._settings, kubeconfig, observe, self.journey.announce)
        self._exit.push_async_callback(process.stop)
        self.metrics.register(Scraped(process.metrics))
        process.start()

    async def _start_services(self, client: KubeClient) -> None:
        wanted = self._settings.services
        if self._server_process is not None:
            wanted -= {Service.SERVER}
        needed: dict[ResourceType, frozenset[Service]] = {
            HARDWARE: EDGE | {Service.CONTROLLER, Service.SERVER, Service.WEBHOOKS},
            OSIE: frozenset({Service.HTTP, Service.TFTP, Service.WEBHOOKS}),
            TEMPLATE: frozenset({Service.CONTROLLER, Service.WEBHOOKS}),
            WORKFLOW: EDGE | {Service.CONTROLLER, Service.SERVER, Service.WEBHOOKS},
        }
        if not hooks.are_reached(self._settings):
            wanted -= HOOKS
        informers = self._informers = {
            resource: self._informer(client, resource) for resource, users in needed.items() if users & wanted
        }
        if self._reviews.plugin is not None:
            self._reviews.plugin.follow(informers)
            self.metrics.register(self._reviews.plugin.metrics)
        forget(self._settings)
        kept = self._kept = self._keeping(client, informers)
        self.metrics.register(InformerMetrics(informers.values()))
        self.metrics.register(ControllerMetrics(self._controllers))
        serving, mistakes, conditions = None, None, ConditionWriter(client)
        boots, problems, states = None, None, None
        callers = self._callers = callers_of(self._settings, self.inventory, self._exit)
        networks = self._networks = HostNetworks(self._settings.networks, self.journey.announce)
        self._exit.callback(networks.close)
        if wanted & EDGE:
            self._follow(informers[HARDWARE], informers[WORKFLOW], conditions)
            mistakes = self._mistakes = MistakeWriter(client, informers[HARDWARE], informers.get(OSIE), self._site)
            networks.on_change(mistakes.networks_changed)
            problems = BootProblemWriter(client, informers[HARDWARE])
            states = StateWriter(client, informers[HARDWARE])
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
                networks,
                lambda: mistakes.relayed if mistakes is not None else (),
                problems,
                (self._settings.edge.http_port, self._settings.grpc_port),
                api_away=lambda: self._contact.problem,
                states=states,
            )
            informers[HARDWARE].add_event_handler(lambda _new, _old: None, boots.hardware_gone)
            serving = self._serving = Serving(
                self._settings,
                self._exit,
                networks=networks,
                inventory=self.inventory,
                callers=callers,
                workflows=self._pending,
                journey=self.journey,
                osie=informers[OSIE].get if OSIE in informers else lambda _namespace, _name: None,
                declined=conditions.changed,
                relay_heard=partial(_relay_heard, mistakes, boots),
                readiness=lambda: self.readiness,
                notices=self._contact.notices,
                metrics=self.metrics,
                read_secret=secret_reader(client, kept),
                boots=boots,
                workflow=lambda namespace, name: self._workflow_of(informers[WORKFLOW], namespace, name),
                informers={resource.plural: informers[resource] for resource in _SERVED if resource in informers},
                kept=lambda happened: self._archive.keep(happened) if self._archive is not None else None,
                api=lambda: Api("cluster" if self._api is None else "embedded", client.url, self._contact.problem),
            )
        if Service.CONTROLLER in wanted:
            self._elector = self._electing(client)
            if self._elector is not None:
                self.metrics.register(LeaderMetrics(self._elector))
            controller = WorkflowController(
                client,
                workflows=informers[WORKFLOW],
                hardware=informers[HARDWARE],
                templates=informers[TEMPLATE],
                settings=self._settings.controller,
                elector=self._elector,
                render=self._templates.render_actions,
            )
            self._controllers["workflow"] = controller.runtime
            self.metrics.register(controller.metrics)
            self._spawn(controller.run(), "controller")
        if self._server_process is not None:
            self._exit.push_async_callback(self._server_process.stop)
        if Service.SERVER in wanted:
            await self._start_server(client, informers, callers, networks)
            if serving is None:
                await self._start_reports(client, informers[HARDWARE])
        await self._restore_journeys()
        await self._follow_api(client, informers)
        # Machines are heard when it is known which there are: a moment earlier, each would be told that it is unknown.
        if serving is not None:
            await serving.start()
            networks.add_follower(serving.network_changed)
        await networks.start()
        self._spawn(networks.run(), "networks")
        if serving is not None and mistakes is not None:
            await serving.start_for_operators()
            self._spawn(serving.run(), "edge")
            self._spawn(self._read_up(informers[HARDWARE]), "Hardware that are read later", ends=True)
            if serving.peers is not None:
                say_hello(self._settings, serving.peers, client, self._tasks)
            self.metrics.register(Scraped(self._contact.metrics))
            self.metrics.register(Scraped(partial(checkpoint_metrics, kept.checkpoint if kept is not None else None)))
            self._spawn(self._contact.run(), "contact with the API")
            self._keep()
            self._spawn(conditions.run(), "conditions")
            self._spawn(mistakes.run(), "mistakes of Hardware")
        if boots is not None and problems is not None and states is not None:
            self._spawn(problems.run(), "problems of boots")
            self._spawn(states.run(), "states of machines")
            self._spawn(boots.run(), "expectations of boots")
            self._spawn(self._telemetry().run(), "boots that have ended")
        if self._server_process is not None:
            await self._server_process.listening()

    def _telemetry(self) -> Telemetry:
        """How long boots took. Raises TracesError."""
        durations, endpoint = Durations(), self._settings.edge.otlp_endpoint
        self.metrics.register(Scraped(durations.metrics))
        traces = Traces(endpoint) if endpoint else None
        if traces is not None:
            self.metrics.register(Scraped(traces.metrics))
            self._exit.push_async_callback(asyncio.to_thread, traces.close)
        return Telemetry(BootEnds(self.journey, time.time), durations, traces)

    async def _restore_journeys(self) -> None:
        """Know what machines did before, and keep what they do. Machines do not wait for much of that."""
        if Service.ADMIN not in self._settings.services:
            return
        self._archive = Archive(self.journey, self._settings.data_dir)
        self._spawn(self._archive.run(), "journeys that are kept")
        with suppress(TimeoutError):
            async with asyncio.timeout(_RESTORE_SECONDS):
                await self._archive.restored.wait()

    def _informer(self, client: KubeClient, resource: ResourceType) -> Informer:
        settings = self._settings
        return Informer(
            client,
            resource,
            settings.namespaces,
            label_selector=settings.hardware_selector if resource is HARDWARE else "",
            # Replicas in pods are many, and start together when a cluster does.
            start_jitter=START_JITTER_SECONDS if settings.kubeconfig is None and self._api is None else 0.0,
            compressor=self._compressor if resource is HARDWARE else None,
            archive_format=ended if resource is WORKFLOW else None,
        )

    async def _start_reports(self, client: KubeClient, hardware: Informer) -> None:
        """Raises KeyFileError."""
        reports = await start_reports(self._settings, client, self.journey, self._exit, self._tasks)
        if reports is not None:
            hardware.add_event_handler(lambda new, _: self.inventory.apply(new), self.inventory.remove)
            self.metrics.register(Scraped(partial(event_batch_metrics, reports.counts)))

    async def _follow_api(self, client: KubeClient, informers: dict[ResourceType, Informer]) -> None:
        """Have the informers follow the API, and do what has to wait for that: now, or, if it is away and the start can
        go on without it, when it is there."""
        try:
            alone = not self._settings.services & EDGE
            there = await followed(informers, lambda: self._run(informers), self._kept, alone=alone)
        except NotListedError as error:
            raise StackError(str(error)) from error
        if there:
            await self._reviewed(client, informers)
        else:
            self._spawn(self._when_it_is_there(client, informers), "what waits for the API", ends=True)

    def _run(self, informers: dict[ResourceType, Informer]) -> None:
        for resource, each in informers.items():
            self._spawn(each.run(), f"informer of {resource.plural}")

    async def _when_it_is_there(self, client: KubeClient, informers: dict[ResourceType, Informer]) -> None:
        for informer in informers.values():
            await informer.wait_for_cache_sync()
        await self._reviewed(client, informers)

    async def _reviewed(self, client: KubeClient, informers: dict[ResourceType, Informer]) -> None:
        """Say what the operator has named and is not there, have writes reviewed, and apply what he has given."""
        await log_missing_namespaces(client, self._settings.namespaces)
        await self._start_webhooks(client, informers)
        if self._applier is not None and self._settings.manifests is not None:
            await self._applier.apply_and_wait(informers)
            self._spawn(self._applier.run(), "manifests")

    def _keeping(self, client: KubeClient, informers: dict[ResourceType, Informer]) -> Kept | None:
        if not keeps(self._settings):
            return None
        return Kept(self._settings, client, informers, self._pending, self.inventory)

    async def _read_up(self, hardware: Informer) -> None:
        """Read the Hardware that no machine has asked for yet, soon after a restart with very many."""
        if self._kept is not None:
            await self._kept.restore_rest()
        await hardware.wait_for_cache_sync()
        await read_up()

    def _keep(self) -> None:
        """Write down what is known, from now on: this data directory is nobody else's."""
        kept = self._kept
        if kept is None:
            return
        self._exit.push_async_callback(kept.checkpoint.close)
        self._spawn(kept.checkpoint.run(), "checkpoint")
        if kept.secrets is not None:
            self._spawn(kept.secrets.run(), "Secrets that are kept")

    def _site(self) -> Site:
        """What is known here of who gives machines their addresses."""
        if self._networks is None or Service.DHCP not in self._settings.services:
            return ELSEWHERE
        mode = self._settings.edge.dhcp_mode
        return self._networks.site(self._mistakes.relayed if self._mistakes is not None else (), mode)

    def _electing(self, client: KubeClient) -> LeaderElector | None:
        """Who decides which of several controllers works; None where there is one only."""
        if not self._settings.leader_elect:
            return None
        namespace = self._settings.lease_namespace or pod_namespace()
        return LeaderElector(client, LeaderElectionConfig("tinkedge-controller", namespace))

    def _follow(self, hardware: Informer, workflows: Informer, conditions: ConditionWriter) -> None:
        """Let everything at the edge that depends on them hear of Hardware and Workflows."""
        self._exit.callback(self.journey.flush)
        hardware.add_event_handler(lambda new, _: self.inventory.apply(new), self.inventory.remove)
        hardware.add_event_handler(conditions.apply, conditions.remove)
        journey = WorkflowJourney(self.journey, self.inventory, others=bool(self._settings.hardware_selector))
        workflows.add_event_handler(journey.on_change, journey.on_delete)
        workflows.add_event_handler(self._pending.apply, self._pending.remove)

    def _workflow_of(self, workflows: Informer, namespace: str, name: str) -> Raw | None:
        """The Workflow that a Hardware is at, or the last one that is still there."""
        found = self._pending.newest(namespace, name)
        return workflows.get(namespace, found) if found else None

    async def _start_webhooks(self, client: KubeClient, informers: dict[ResourceType, Informer]) -> None:
        webhooks = await self._reviews.start(client, informers, self.metrics)
        if webhooks is None:
            return
        self._exit.push_async_callback(webhooks.stop)
        self._spawn(webhooks.run(), "webhooks")

    async def _start_server(
        self, client: KubeClient, informers: dict[ResourceType, Informer], callers: Callers, networks: HostNetworks
    ) -> None:
        port = self._settings.grpc_port
        if self._settings.grpc_addresses:
            self._fixed = AgentsAddresses(self._settings.grpc_addresses, port)
        networked = [join_host_port(address, port) for state in networks.states for address in state.addresses]
        agents = self._agents
        server = WorkflowServer(
            client,
            workflows=informers[WORKFLOW],
            hardware=informers[HARDWARE],
            addresses=networked if self._fixed is None else self._fixed.listening,
            settings=self._settings.server,
            observe=agents.observe if agents is not None else AgentJourney(self.journey.record, self.inventory).observe,
            kept_away=agents.kept_away if agents is not None else lambda _: None,
            away=agents.away if agents is not None else (),
            other_host=callers.stranger,
            scope=self._settings.scope,
        )
        try:
            await server.start()
        except OSError as error:
            raise StackError(f"{error.strerror or error}: {tcp_advice(error, port, '--grpc-port')}") from error
        self._exit.push_async_callback(server.stop)
        self.agents_metrics.append(server.metrics())
        self.metrics.register(self.agents_metrics[-1])
        if agents is not None:
            agents.listens()
        if self._fixed is None:
            networks.add_follower(at_networks(server, networks.states, port))
        else:
            self._spawn(self._fixed.run(server), "addresses of agents")


async def _connect(kubeconfig: Path | None) -> KubeClient:
    return await KubeClient.connect(kubeconfig)


def _relay_heard(mistakes: MistakeWriter, boots: BootWatch, machine: Machine, link: str, relay: str) -> None:
    mistakes.relay_heard(machine, relay)
    boots.relay_heard(link, relay)
