"""One run of a fleet.

    place      a stack of its own in namespaces, or the target as seen from the namespace where this runs
    objects    creates or reads Hardware, OSIE, Template and Workflows
    machines   runs all machines at once, in their namespace, until the last has ended
    verdict    compares each Workflow's state in the API with its machine's result; then removes everything

The process is in one network namespace at a time: the API's before and after, the machines' in between. Sockets stay in
the namespace where they were opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import click

from edge.building.screen import ProgressLine
from edge.building.shell import CommandError
from edge.dhcp.wire import options
from edge.fleet.bmc import FleetBmcs
from edge.fleet.boot import live
from edge.fleet.discovery import DiscoveryPlan, Introduction, ReadyTimes, compare, plan, rule
from edge.fleet.machine import SimulatedMachine, Surroundings
from edge.fleet.network import (
    DhcpPort,
    FleetError,
    FramePort,
    MachineLink,
    RelayPort,
    attach,
    check,
    is_hosts_namespace,
    uplink,
)
from edge.fleet.objects import Objects
from edge.fleet.population import Identity, Traits, draw, identity
from edge.fleet.results import Failure, FleetReport, FleetStep, Process, Recorder, Whole, judged, numbers
from edge.fleet.settings import FleetSettings, HardwareSource
from edge.fleet.stack import UPLINK, Stack, own_process
from edge.lab.namespaces import NAMESPACES, OWN, inside
from tink.kube.client import KubeClient, KubeConfigError

_SETTLE_SECONDS: Final = 1.0
"""Seconds from the last created object to the first power-on, in which edges read the objects."""
_FILES: Final = 200_000

_DRAW_SECONDS: Final = 1.0
_LOG_SECONDS: Final = 15.0


class Screen(ProgressLine):
    """The progress of a run on standard error."""

    def __init__(self, recorder: Recorder, *, shown: bool = True) -> None:
        super().__init__(_DRAW_SECONDS, _LOG_SECONDS, shown=shown)
        self._recorder = recorder
        self._began = time.monotonic()
        self._before = (self._began, 0, 0)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._shown:
            self.clear()
            click.echo(text, err=True)

    def refresh(self) -> None:
        """Draw the progress if due. To be called about once a second."""
        if self.is_due():
            self.draw(self._line(time.monotonic()))

    def _line(self, now: float) -> str:
        recorder = self._recorder
        before, packets, events = self._before
        passed = max(now - before, 0.001)
        self._before = (now, recorder.packets, recorder.events)
        shown = [step for step in FleetStep if recorder.at[step] and step not in (FleetStep.DONE, FleetStep.FAILED)]
        steps = " ".join(f"{step}:{recorder.at[step]}" for step in shown)
        done = click.style(f"provisioned {len(recorder.seconds[Whole.PROVISIONED])}/{recorder.machines}", fg="green")
        failed = f"failed {len(recorder.failures)}"
        packet_rate, event_rate = (recorder.packets - packets) / passed, (recorder.events - events) / passed
        return (
            f"{now - self._began:6.0f} s  {done} done {recorder.at[FleetStep.DONE]} "
            f"{click.style(failed, fg='red') if recorder.failures else failed} errors {recorder.errors.total()}  "
            f"{packet_rate:.0f} packets/s {event_rate:.0f} events/s  {steps}"
        )


async def _run_in_thread(main: Callable[[], Coroutine[Any, Any, None]], namespace: Path) -> None:
    """Run `main` in an event loop of a thread in a network namespace, until it ends or this is cancelled."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    async def work() -> None:
        task = asyncio.ensure_future(main())
        running.append((asyncio.get_running_loop(), task))
        await task

    def thread() -> None:
        with inside(namespace):
            asyncio.run(work())

    future = asyncio.ensure_future(asyncio.to_thread(thread))
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        for loop, task in running:
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()
        raise


class Fleet:
    """One run of a fleet. `recorder` has its counters."""

    def __init__(self, settings: FleetSettings, *, shown: bool = True) -> None:
        self._settings = settings
        self._shown = shown
        self._name = f"fleet-{settings.seed}-{os.getpid()}"
        self._screen = Screen(Recorder(0), shown=shown)
        self.recorder = Recorder(0)
        self._shown_at = time.monotonic()
        self._stack: Stack | None = None
        self._machines_namespace: Path | None = None
        self._home = OWN
        """The network namespace of the start, which reaches the API of a target."""
        self._bmcs: FleetBmcs | None = None
        self._discovery: DiscoveryPlan | None = None
        self._ready = ReadyTimes()

    async def run(self) -> FleetReport:
        """Run the fleet and return the report. Raises FleetError."""
        _prepare_process()
        try:
            async with AsyncExitStack() as stack:
                return await self._run(stack)
        except (CommandError, KubeConfigError, OSError) as error:
            raise FleetError(str(error)) from error
        except ExceptionGroup as group:
            raise FleetError(str(_first(group))) from group

    async def _run(self, stack: AsyncExitStack) -> FleetReport:
        settings = self._settings
        home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, home)
        self._home = Path(f"/proc/self/fd/{home}")
        server = await self._place(stack)
        identities = await self._identities(stack, server)
        traits = [draw(settings.profile, settings.seed, number) for number in range(len(identities))]
        self.recorder = Recorder(len(identities))
        self._screen = Screen(self.recorder, shown=self._shown)
        gc.collect()
        gc.freeze()
        if self._stack is not None:
            self._stack.begin()
        before, began = time.process_time(), time.monotonic()
        await self._boot(server, identities, traits)
        seconds = time.monotonic() - began
        processes = [*(self._stack.processes() if self._stack is not None else []), own_process(before)]
        await self._verify(identities)
        conditions = _conditions(settings, server, identities, traits)
        if self._bmcs is not None:
            conditions["BMCs"] = self._bmcs.summary()
        if self._discovery is None:
            return self._report(seconds, processes, conditions)
        async with self._objects() as objects:
            result = compare(self._discovery, await objects.verdicts(), self._ready.seconds())
        report = self._report(seconds, processes, conditions | result.summary())
        return replace(report, broken=[*report.broken, *result.missed, *result.false])

    # --- the place ---

    async def _place(self, stack: AsyncExitStack) -> IPv4Address:
        """Prepare the machines' namespace and return the edge's address.

        Raises FleetError, CommandError.
        """
        settings = self._settings
        if settings.target is not None:
            if settings.uplink:
                self._machines_namespace = await uplink(stack, settings.interface, settings.uplink)
            elif settings.netns:
                self._machines_namespace = NAMESPACES / settings.netns
            with self._among_machines():
                is_hosts = not settings.uplink and is_hosts_namespace()
                check(settings.target, settings.allow, is_hosts=is_hosts, by_uplink=bool(settings.uplink))
            return settings.target
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tinkedge-fleet-")))
        if settings.unknown:
            options = ("--discover", self._rule())
            settings = replace(settings, stack_options=(*settings.stack_options, *options))
        self._stack = Stack(settings, directory)
        self._screen.say(f"starting a stack at {self._stack.server}")
        await self._stack.up(stack)
        self._machines_namespace = self._stack.machines
        return IPv4Address(self._stack.server)

    def _rule(self) -> str:
        """Return the rule that admits unknown machines. Raises FleetError."""
        settings = self._settings
        osie = f"{settings.api_namespace}/{self._name}"
        try:
            return rule(settings.network, settings.machines, settings.relay_address, osie)
        except ValueError as error:
            raise FleetError(f"{error}: give a larger --network") from error

    def _among_machines(self) -> contextlib.AbstractContextManager[None]:
        return inside(self._machines_namespace) if self._machines_namespace is not None else contextlib.nullcontext()

    # --- the objects ---

    @contextlib.asynccontextmanager
    async def _objects(self, *, is_quiet: bool = False) -> AsyncIterator[Objects]:
        """Connect to the API, in the network namespace that reaches it. `is_quiet`: no progress is shown."""
        settings = self._settings
        progress = self._show_progress if not is_quiet else lambda _what, _done, _count: None
        kubeconfig = self._stack.kubeconfig if self._stack is not None else settings.kubeconfig
        with inside(self._stack.namespace) if self._stack is not None else contextlib.nullcontext():
            async with await KubeClient.connect(kubeconfig) as client:
                yield Objects(client, settings.api_namespace, self._name, progress)

    def _show_progress(self, what: str, done: int, count: int) -> None:
        """Print the number of written objects, at most once a second. `count`: all of them; 0: not known."""
        if time.monotonic() - self._shown_at > _DRAW_SECONDS or (done == count and count):
            self._shown_at = time.monotonic()
            self._screen.say(f"{what}: {done}{f' of {count}' if count else ''}")

    async def _identities(self, stack: AsyncExitStack, server: IPv4Address) -> list[Identity]:
        settings = self._settings
        if settings.hardware is HardwareSource.CLUSTER:
            async with self._objects() as objects:
                found = await objects.existing(settings.selector, settings.machines)
            for each in found:
                if IPv4Address(each.address) not in settings.network:
                    raise FleetError(
                        f"Hardware {each.name} has {each.address}, outside of --network {settings.network}"
                    )
            return found
        found = [identity(self._name, settings.network, number) for number in range(settings.machines)]
        gateway = settings.relay_address if settings.link is MachineLink.RELAY else str(server)
        boots = self._stack.boots if self._stack is not None else settings.boots
        if self._stack is None:  # a stack of its own is removed as a whole
            stack.push_async_callback(self._remove)
        if settings.unknown and self._stack is not None:
            self._discovery = plan(found, settings.network, gateway, settings.planted, settings.seed)
            async with self._objects() as objects:
                await objects.generate_unknown(self._discovery, settings.profile, boots)
            await asyncio.sleep(_SETTLE_SECONDS)
            return found
        if settings.bmc:
            drawn = [draw(settings.profile, settings.seed, number) for number in range(len(found))]
            self._bmcs = FleetBmcs(found, drawn, f"{self._name}-bmc")
            with self._among_machines():
                await self._bmcs.start(stack)
        async with self._objects() as objects:
            access = self._bmcs.access if self._bmcs is not None else None
            await objects.generate(found, settings.profile, settings.network, gateway, boots, access)
        await asyncio.sleep(_SETTLE_SECONDS)
        return found

    async def _remove(self) -> None:
        self._screen.say("removing the objects of this run")
        async with self._objects() as objects:
            await objects.remove(has_bmc=self._bmcs is not None)

    # --- the machines ---

    async def _boot(self, server: IPv4Address, identities: list[Identity], traits: list[Traits]) -> None:
        """Run all machines until the last has ended, or until the limit."""
        settings = self._settings
        interface = UPLINK if self._stack is not None else settings.interface
        with self._among_machines():
            async with AsyncExitStack() as stack:
                await attach(stack, settings.link, interface, settings.network, str(server))
                port = self._port(interface, str(server), identities)
                stack.callback(port.close)
                around = Surroundings(
                    settings.profile, settings.seed, port, self.recorder, self._is_allowed(server),
                    by_reference=settings.by_reference,
                )  # fmt: skip
                supplies = self._bmcs.supplies if self._bmcs is not None else [None] * len(identities)
                known: Sequence[Introduction | None] = [None] * len(identities)
                introductions = self._discovery.introductions if self._discovery is not None else known
                each_machine = zip(identities, traits, supplies, introductions, strict=True)
                machines = [SimulatedMachine(around, *each) for each in each_machine]
                requests = None
                if self._discovery is not None:
                    requests = asyncio.create_task(self._install_approved(identities))
                if self._bmcs is not None:
                    requests = asyncio.create_task(self._request_boots(identities, traits, self._bmcs))
                await self._until_all_have_ended(machines, requests)

    async def _request_boots(self, identities: list[Identity], traits: list[Traits], bmcs: FleetBmcs) -> None:
        """Create each Workflow when its machine is due: beside the machines, in the API's network namespace."""

        async def create() -> None:
            async with self._objects(is_quiet=True) as objects:
                await objects.request_boots(identities, [each.power_on for each in traits], bmcs.requesting)

        await _run_in_thread(create, self._home)

    async def _install_approved(self, identities: list[Identity]) -> None:
        """Create the Workflow of each machine when it is approved: beside them, in the API's network namespace."""

        async def install() -> None:
            async with self._objects(is_quiet=True) as objects:
                await objects.install_approved(identities, self._ready.observe)

        await _run_in_thread(install, self._home)

    def _port(self, interface: str, server: str, identities: list[Identity]) -> DhcpPort:
        if self._settings.link is MachineLink.RELAY:
            return RelayPort(self._settings.relay_address, server)
        return FramePort(interface, {options.ipv4(each.address): each.mac for each in identities})

    def _is_allowed(self, server: IPv4Address) -> Callable[[str], bool]:
        @functools.cache
        def allowed(address: str) -> bool:
            try:
                parsed = IPv4Address(address)
            except ValueError:
                return False
            return parsed == server or any(parsed in network for network in self._settings.allow)

        return allowed

    async def _until_all_have_ended(
        self, machines: list[SimulatedMachine], requests: asyncio.Task[None] | None = None
    ) -> None:
        """Run the machines. `requests` is the task that requests their boots: its failure ends the run."""
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(live(machine)): machine for machine in machines}
        give_up = loop.time() + self._settings.limit
        try:
            left = set(tasks)
            while left and loop.time() < give_up:
                done, left = await asyncio.wait(left, timeout=_DRAW_SECONDS)
                self._screen.refresh()
                for task in done:
                    task.result()  # `live` raises nothing: an exception here is a bug
                if requests is not None and requests.done():
                    requests.result()
        finally:
            self._screen.clear()
            if requests is not None:
                requests.cancel()
                await asyncio.wait([requests])
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in left:
            machine = tasks[task]
            cause = f"had not finished when the run's limit of {self._settings.limit:.0f} s was reached"
            self.recorder.failures.append(Failure(machine.identity.name, machine.step, cause, injected=False))

    # --- the verdict ---

    async def _verify(self, identities: list[Identity]) -> None:
        """Compare each Workflow's state in the API with its machine's result."""
        generated = self._settings.hardware is HardwareSource.GENERATE
        async with self._objects() as objects:
            states = await (objects.states() if generated else objects.states(self._settings.selector))
        failed = {failure.machine: number for number, failure in enumerate(self.recorder.failures)}
        unapproved = self._discovery.unapproved() if self._discovery is not None else frozenset()
        for each in identities:
            if each.name in unapproved and each.name not in failed:
                continue  # it gets no Workflow
            state = states.get(each.name, "")
            if each.name in failed:
                if state not in ("", "Pending", "Succeeded"):
                    before = self.recorder.failures[failed[each.name]]
                    cause = f"{before.cause}; its Workflow is {state}"
                    self.recorder.failures[failed[each.name]] = replace(before, cause=cause)
            elif state != "Succeeded" and (generated or state):
                cause = f"all its events were acknowledged, but its Workflow is {state or 'missing'}"
                self.recorder.failures.append(Failure(each.name, FleetStep.ACTIONS, cause, injected=False))

    def _report(self, seconds: float, processes: list[Process], conditions: dict[str, str]) -> FleetReport:
        recorder = self.recorder
        found = numbers(recorder, seconds)
        return FleetReport(
            conditions=conditions,
            numbers=found,
            failures=recorder.failures,
            errors=dict(recorder.errors),
            faults=dict(recorder.faults),
            twice=recorder.twice,
            processes=processes,
            broken=judged(self._settings.bars, found),
        )


def _conditions(
    settings: FleetSettings, server: IPv4Address, identities: list[Identity], traits: list[Traits]
) -> dict[str, str]:
    kinds = Counter(each.firmware for each in traits)
    faults = {name: rate for name, rate in settings.profile.faults.model_dump(by_alias=True).items() if rate}
    link = {
        MachineLink.RELAY: f"all machines behind one relay agent, {settings.relay_address} (giaddr)",
        MachineLink.DIRECT: "on the edge's link, by broadcast frames with each machine's own MAC",
    }[settings.link]
    whole = "whole; their bytes are counted in the kernel, and not copied (MSG_TRUNC)"
    return {
        "machines": f"{len(identities)}, seed {settings.seed}: "
        + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())),
        "target": f"{server}, a stack of its own" if settings.target is None else str(server),
        "DHCP": link,
        "kernel and initrd": "by reference: their length (HEAD) and their last byte"
        if settings.by_reference
        else whole,
        "faults": ", ".join(f"{name} {rate:g}" for name, rate in faults.items()) or "none",
    }


def _prepare_process() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else _FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    gc.set_threshold(50_000, 20, 100)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
