"""A worker: HTTP and TFTP for machines, in a process of its own, with what the main process says there is.

    channel -> objects -> inventory, OSIEs, pending Workflows -> `edge.run.machine_services`
            -> sockets -> HTTP sites, TFTP servers
    what is recorded, logged, opened or read -> channel

It ends when the main process closes the channel, or is gone. Signals are for the main process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from ipaddress import IPv4Network
from typing import Any, Final

from aiohttp import web

from edge.callers import Callers
from edge.http import MAX_REFUSALS, MAX_SAID, SAY_AGAIN_SECONDS, Memory, machine_runner
from edge.journey.events import Outcome, Step, Value
from edge.machines import Inventory, NetbootPolicy, PendingWorkflows
from edge.peers import ToldEdges
from edge.run.machine_services import MachineServices, boot_binaries, metadata_settings, nearest_of
from edge.run.neighbours import callers_of
from edge.run.workers.borrowing import BorrowedArtifacts, BorrowedSecrets
from edge.run.workers.channel import Channel
from edge.run.workers.messages import (
    ArtifactFailed,
    ArtifactFilled,
    ArtifactOpened,
    Connection,
    Edges,
    Event,
    Failure,
    Learned,
    Listen,
    LogsWanted,
    Message,
    Move,
    Networks,
    Object,
    Ping,
    Pong,
    Ready,
    Reread,
    Said,
    SecretRead,
    Unlisten,
    Up,
)
from edge.run.workers.shared import SharedFailures, SharedOnce
from edge.run.workers.worker import Begin
from edge.settings.model import Service
from edge.tftp import BEGUN_SECONDS, MAX_BEGUN, MAX_FAILURES, BootFiles, TftpServer
from ipxe.scripts import Origin
from tink.api.v1alpha2 import Raw
from tink.files.rereading import reread_all
from tink.kube.cache import ObjectCompressor
from tink.kube.objects import NamespacedName

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
WAITING_BYTES: Final = 8 << 20
"""Of events and lines that the main process has not taken yet: more are dropped, and counted."""


class ServingWorker:
    """`start` it; then `take` every message until the channel ends, and `stop`."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._exit = AsyncExitStack()
        self._channel: Channel
        self._dropped = 0
        self._places: dict[int, web.SockSite | TftpServer] = {}
        self._retired: list[TftpServer] = []
        """Those with transfers that go on."""
        self._todo: asyncio.Queue[tuple[Message, list[int]]] = asyncio.Queue()
        self._logs_told = False
        self._ready = "starting"
        self._networks: list[tuple[str, list[IPv4Network]]] = []
        self._osies: dict[NamespacedName, Raw] = {}
        self._edges = ToldEdges()
        self._artifacts = BorrowedArtifacts(self.send)
        self._secrets = BorrowedSecrets(self.send)
        self._once = {
            "said": SharedOnce(SAY_AGAIN_SECONDS, MAX_SAID, self._telling("said")),
            "refusals": SharedOnce(SAY_AGAIN_SECONDS, MAX_REFUSALS, self._telling("refusals")),
            "begun": SharedOnce(BEGUN_SECONDS, MAX_BEGUN, self._telling("begun")),
        }
        self._failures = {of: SharedFailures(MAX_FAILURES, partial(self._failed, of)) for of in ("http", "tftp")}
        self._inventory = Inventory(ObjectCompressor())
        self._pending = PendingWorkflows()
        self._files: dict[int, BootFiles] = {}
        self._callers: Callers
        self._machines: MachineServices
        self._runner: web.BaseRunner | None = None
        self._doing: asyncio.Task[None]

    async def start(self, channel: Channel) -> None:
        """Put everything together. Raises the parts' own errors."""
        self._channel = channel
        settings = self._begin.settings
        edge = settings.edge
        self._callers = callers_of(settings, self._inventory, self._exit)
        memory = Memory(self._once["said"], self._once["refusals"], self._failures["http"])
        self._machines = MachineServices(
            settings,
            self._exit,
            inventory=self._inventory,
            callers=self._callers,
            policy=NetbootPolicy(edge.dhcp_mode, edge.netboot_when, self._pending.has_pending, self._pending.why_none),
            osie=lambda namespace, name: self._osies.get(NamespacedName(namespace, name)),
            binaries=boot_binaries(settings),
            artifacts=self._artifacts,
            metadata=metadata_settings(settings, self._secrets) if Service.HTTP in settings.services else None,
            record=self.record,
            ready=lambda: self._ready,
            nearest=lambda ip: nearest_of(ip, self._networks),
            others=self._others,
            memory=memory,
        )
        self._machines.subscribe()
        self._inventory.on_change(self._machine_changed)
        if self._machines.app is not None:
            self._runner = machine_runner(self._machines.app, hand_on=self._hand_on)
            await self._runner.setup()
            self._exit.push_async_callback(self._runner.cleanup)
        self._doing = asyncio.create_task(self._do())
        self.send(Up())

    async def stop(self) -> None:
        """Serve no more; machines are told."""
        self._doing.cancel()
        for place in (*self._places.values(), *self._retired):
            if isinstance(place, TftpServer):
                await place.stop()
        await self._exit.aclose()

    # --- what is told ------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Say something that the main process waits for."""
        self._channel.send(message)

    def tell(self, message: Message) -> None:
        """Say something that may be lost, if there is no end of it."""
        if self._channel.waiting_bytes > WAITING_BYTES:
            self._dropped += 1
        else:
            self._channel.send(message, can_wait=True)

    def record(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: Value) -> None:
        """An `edge.journey.events.Recorder`."""
        self.tell(Event(time.monotonic(), mac, step.value, outcome.value, message, detail))
        if self._machines.scripts.logs_wanted and not self._logs_told:
            self._logs_told = True
            self.send(LogsWanted())

    def _failed(self, of: str, mac: str, reason: str) -> None:
        self.tell(Failure(of, mac, reason))

    def _telling(self, of: str) -> Callable[[list[Any]], None]:
        return lambda key: self.tell(Said(of, key))

    def _hand_on(self, fd: int, received: bytes) -> None:
        self._channel.send(Connection(received.decode("latin-1")), [fd])

    # --- what is heard -----------------------------------------------------------------------------------------------

    def take(self, message: Message, files: list[int]) -> None:
        """The main process says this."""
        match message:
            case Object():
                self._object(message)
            case Ready():
                self._ready = message.problem
            case Learned():
                self._callers.learn(message.mac, message.ip)
            case Networks():
                self._networks = [(address, [*map(IPv4Network, each)]) for address, each in message.places]
            case Edges():
                self._edges.told(message.own, message.others)
                self._machines.scripts.peers_changed()
            case Said():
                self._once[message.of].heard(message.key, self._now(message.of))
            case Failure():
                self._failures[message.of].heard(message.mac, message.reason)
            case ArtifactOpened() if files:
                self._artifacts.opened(message, files.pop())
            case ArtifactFilled():
                self._artifacts.filled(message)
            case ArtifactFailed():
                self._artifacts.failed(message)
            case SecretRead():
                self._secrets.read(message)
            case Reread():
                reread_all()
            case Listen() | Unlisten() | Move() | Ping():
                self._todo.put_nowait((message, files))
                return
        for fd in files:
            os.close(fd)

    def _now(self, of: str) -> float:
        """By the clock of those who ask: HTTP's, and that of the event loop, which TFTP has."""
        return asyncio.get_running_loop().time() if of == "begun" else time.monotonic()

    def _object(self, message: Object) -> None:
        content, removed = message.content, message.removed
        match message.kind:
            case "hardware" if removed:
                self._inventory.remove(content)
            case "hardware":
                self._inventory.apply(content)
            case "workflows" if removed:
                self._pending.remove(content)
            case "workflows":
                self._pending.apply(content)
            case "osies" if removed:
                self._osies.pop(NamespacedName.of(content), None)
            case "osies":
                self._osies[NamespacedName.of(content)] = content

    def _machine_changed(self, mac: str) -> None:
        for files in self._files.values():
            files.machine_changed(mac)

    def _others(self, address: str, mac: str) -> tuple[Origin, ...]:
        found = self._edges.alternatives(address, mac)
        return tuple(Origin(each.address, http_port=each.http_port, grpc_port=each.server_port) for each in found)

    # --- where it serves ---------------------------------------------------------------------------------------------

    async def _do(self) -> None:
        """One thing after the other, for each depends on those before."""
        while True:
            message, files = await self._todo.get()
            try:
                match message:
                    case Listen() if files:
                        await self._listen(message, socket.socket(fileno=files.pop()))
                    case Unlisten():
                        await self._unlisten(message.place)
                    case Move():
                        place = self._places.get(message.place)
                        if isinstance(place, TftpServer):
                            place.move_to_interface()
                    case Ping():
                        self.send(Pong(message.number, self._dropped))
            except Exception:
                log.exception("a worker could not do %s", type(message).__name__)

    async def _listen(self, where: Listen, sock: socket.socket) -> None:
        if where.place in self._places:  # it was taken back, and is given again
            sock.close()
        elif where.protocol == "tftp":
            files, server = self._machines.tftp_server(
                where.interface,
                where.address,
                sock=sock,
                processes=self._begin.count,
                failures=self._failures["tftp"],
                begun=self._once["begun"],
            )
            self._files[where.place] = files
            self._places[where.place] = server
            await server.start()
        elif self._runner is not None:
            site = web.SockSite(self._runner, sock, backlog=BACKLOG)
            self._places[where.place] = site
            await site.start()

    async def _unlisten(self, number: int) -> None:
        place = self._places.pop(number, None)
        self._files.pop(number, None)
        if isinstance(place, TftpServer):
            if self._begin.settings.edge.tftp_single_port:
                await place.stop()
            else:
                place.retire()
            self._retired = [each for each in (*self._retired, place) if each.transfers]
        elif place is not None:
            await place.stop()
