"""The services that the handlers of the machines' HTTP server share, and the answer to a caller that they refuse."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from edge.callers import TRUST_NOBODY, Caller, Callers, MetadataTokens, RequestCallers, TrustedNetworks
from edge.http.answers import text
from edge.http.files import BodySender
from edge.journey.events import Outcome, Recorder, Step, Value
from edge.machines import (
    Artifacts,
    Inventory,
    Machine,
    MachineScripts,
    NetbootPolicy,
    OsieFiles,
    ReadSecret,
    no_api,
)
from edge.peers.site import Peers
from ipxe.binaries import BootBinaries
from tink.files.key_file import KeyFile
from tink.limits import OncePer

log = logging.getLogger(__name__)

LOG_INTERVAL_SECONDS = 60.0
"""Time after which the same refusal, or the same document for the same machine, is logged again."""
MAX_LINES, MAX_STRANGER_LINES = 16384, 1024
"""Number of lines about machines, and about strangers, in that time."""
MAX_LINES_OF_ONE = 256
"""Maximum number of lines about one machine: its requests can't suppress the lines about other machines."""


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """The settings of the metadata service.

    keys: sign the tokens in paths and the session tokens.
    read_secret: reads a Secret from the Kubernetes API.
    trusted: the networks whose proxies and NAT are trusted.
    token_lifetime: seconds for which a token in a path is valid; 0 means without limit.
    imds_required: True if a request without a token in its path needs a session token.
    """

    keys: KeyFile
    read_secret: ReadSecret = no_api
    trusted: TrustedNetworks = TRUST_NOBODY
    token_lifetime: float = 0.0
    imds_required: bool = False


@dataclass(eq=False, kw_only=True)
class HttpServices:
    """Everything that the machines' HTTP server works with.

    The cache behind `osie_files` must be started before the server, and stopped after it.
    """

    inventory: Inventory
    callers: Callers
    policy: NetbootPolicy
    scripts: MachineScripts
    osie_files: OsieFiles
    binaries: BootBinaries
    record: Recorder
    metadata: MetadataSettings
    agent_ca: bytes = b""
    """The certificates (PEM) by which agents trust the gRPC server."""
    registry_authorities: bytes = b""
    """The certificates (JSON) by which agents trust image registries."""
    default_osie: tuple[str, str] | None = None
    """Namespace and name of the OSIE for machines without a Hardware."""
    ready: Callable[[], str] = lambda: ""
    """Returns why the edge can't serve yet, or an empty string."""
    sender: BodySender = field(default_factory=BodySender)
    fast_path: bool = True
    """False: aiohttp answers every request. The answers are the same."""
    depot: Path | None = None
    """The directory that contains `images` and `files`; None: the edge serves neither."""
    beyond: Artifacts | None = None
    """Fetches images and files that are not in `depot` from another edge."""
    peers: Peers | None = None
    """The other edges of the site, which may send requests to this one."""
    ipxe_dir: Path = Path("/usr/lib/ipxe")
    """The directory with the parts of boot media."""
    nearest: Callable[[str], str] = lambda _ip: ""
    """Returns the edge's address in the network of a machine's address, or an empty string."""
    clock: Callable[[], float] = time.monotonic
    """Returns monotonic seconds."""

    def __post_init__(self) -> None:
        metadata = self.metadata
        tokens = MetadataTokens(metadata.keys, metadata.token_lifetime)
        self.request_callers = RequestCallers(self.inventory, self.callers, tokens, metadata.trusted)
        # The recent log lines about machines and about strangers, who can't suppress the lines about machines.
        self.machine_lines = OncePer(LOG_INTERVAL_SECONDS, MAX_LINES, MAX_LINES_OF_ONE)
        self.stranger_lines = OncePer(LOG_INTERVAL_SECONDS, MAX_STRANGER_LINES)

    def first(self, what: str, mac: str, *more: Hashable) -> bool:
        """Return True if this event of a registered machine is due for a log line now."""
        return self.machine_lines.due((what, mac, *more), self.clock(), owner=mac)

    def first_refusal(self, *key: Hashable) -> bool:
        """Return True if a refusal with this key is due for a log line now. A stranger may choose parts of the key."""
        return self.stranger_lines.due(key, self.clock())

    def refuse(self, status: int, body: str, *, seen: str, why: str) -> web.Response:
        """Return an error answer with `body`, and log `why`, once in a while for each sender."""
        if self.first_refusal("refused", seen, status):
            log.warning("%s: %d: %s", seen, status, why)
        return text(body, status=status)

    def refuse_netboot(self, machine: Machine, what: str, reason: str, step: Step) -> web.Response:
        """Return the error for a machine that may not netboot and requests `what`; record it once in a while."""
        if self.first("no netboot", machine.mac, what, reason):
            self.record(machine.mac, step, Outcome.REFUSED, f"no {what}: {reason}")
        return text(f"no netboot: {reason}", status=403)

    def refuse_caller(self, caller: Caller, what: str, *, status: int = 0, step: Step = Step.METADATA) -> web.Response:
        """Return the error for a caller that is not recognised as a machine and requests `what`.

        `status` 0 means the caller's own status. If the request comes from a machine's address, the refusal is recorded
        on that machine's journey, as `step`. If the caller's MAC belongs to a machine with another address, that
        machine's journey records that its address is wrong.
        """
        owner = caller.owner
        if owner is not None and self.first_refusal("address", owner.mac, caller.mac, step):
            message = f"{what} request from {caller.address} by {caller.mac}, which is no MAC of this machine"
            self.record(owner.mac, step, Outcome.REFUSED, message, **asked_by(caller))
        asker = self.inventory.by_mac(caller.mac) if caller.mac is not None else None
        reserved = asker.addresses if asker is not None else ()
        is_elsewhere = bool(reserved) and caller.address not in reserved
        if asker is not None and is_elsewhere and self.first("elsewhere", asker.mac, step):
            whose = (
                f"the address of Hardware {owner.namespace}/{owner.name}"
                if owner is not None
                else "not an address of this machine"
            )
            message = (
                f"{what} request from {caller.address}, which is {whose}: its Hardware has {' and '.join(reserved)}"
            )
            self.record(asker.mac, step, Outcome.FAILED, message, **asked_by(caller))
        return self.refuse(
            status or caller.status, caller.reason, seen=caller.address, why=f"{what} request {caller.why}"
        )


def asked_by(caller: Caller) -> dict[str, Value]:
    """Return the caller's address and MAC, as the detail of an event on another machine's journey."""
    detail: dict[str, Value] = {"from": caller.address}
    return detail if caller.mac is None else detail | {"from_mac": caller.mac}
