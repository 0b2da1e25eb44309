"""A cluster of ten sites: the cost of 50,000 Hardware for each replica, and of 100,000 ended Workflows.

Each role is `tinkedge` as operators run it, alone, against the embedded API in another process; it is measured once it
serves. It is compared with itself: with the Hardware of all sites, and before there were Workflows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.bench.bed import SERVER_IP, Cable, Server, measured, python
from tests.bench.filled import MACHINES, fill
from tests.bench.results import Round, Row, Sample, row, say

OBJECTS: Final = 50_000
ENDED: Final = 100_000
ROLES: Final = ("edge", "server", "controller")
ONE_SITE: Final = ("--hardware-selector", "rack in (r0,r1,r2,r3)")
"""Options that select 4 of the 40 racks."""
GRPC_PORT: Final = 42113
API_PORT: Final = 6443
_ACTIONS: Final = 5
_SETTLE_SECONDS: Final = 3.0
_TINKEDGE: Final = [sys.executable, "-m", "edge.cli"]
ALL: Final = "all sites'"


def run(directory: Path) -> list[Row]:
    """Measure the cluster and return its rows of the table."""
    with Cable() as cable:
        site = _Site(cable, directory)
        site.prepare()
        say(f"sites: {MACHINES:,} Hardware, no Workflows")
        site.fill("hardware", MACHINES)
        before = site.replicas(dict.fromkeys(ROLES, ()))
        say(f"sites: {ENDED:,} Workflows that have ended are made")
        site.fill("ended", ENDED)
        after = site.replicas(dict.fromkeys(ROLES, ()))
    with Cable() as cable:
        site = _Site(cable, directory / "many")
        site.prepare()
        say(f"sites: {OBJECTS:,} Hardware are made")
        site.fill("hardware", OBJECTS)
        whole = site.replicas(dict.fromkeys(ROLES, ()))
        own = site.replicas(dict.fromkeys(ROLES[:2], ONE_SITE))
    return _table(before, after, whole, own)


def _table(
    before: dict[str, Sample], after: dict[str, Sample], whole: dict[str, Sample], own: dict[str, Sample]
) -> list[Row]:
    rows = []
    for role in ROLES:
        added = {"mb": after[role]["resident"] - before[role]["resident"]}
        alone = before[role]["resident"]
        note = f"of {_ACTIONS} actions each; without, and with {MACHINES:,} Hardware, it has {alone:.0f} MB"
        title = f"{role}: {ENDED:,} ended Workflows add"
        rows.append(row("sites", title, "MB", [Round(added, None)], "mb", "", less_is_better=True, note=note))
    for role in ROLES:
        rounds = [Round(own.get(role, whole[role]), whole[role] if role in own else None)]
        of = "its own site's of " if role in own else ""
        note = "a tenth, by --hardware-selector" if role in own else "it has to see all"
        peer = ALL if role in own else ""
        for key, unit, title in (
            ("resident", "MB", "resident"),
            ("most", "MB", "most ever"),
            ("start", "s", "start until it serves"),
        ):
            text = f"{role}: {of}{OBJECTS:,} Hardware: {title}"
            rows.append(row("sites", text, unit, rounds, key, peer, less_is_better=True, note=note))
    return rows


class _Site:
    """The state of an API, and replicas of each role that start with it."""

    def __init__(self, cable: Cable, directory: Path) -> None:
        self._cable = cable
        self._directory = directory
        directory.mkdir(exist_ok=True)
        self._state = directory / "state"
        self._kubeconfig = self._state / "kubeconfig"
        self._ipxe = directory / "ipxe"
        self._ipxe.mkdir()
        (self._ipxe / "snponly.efi").write_bytes(b"MZ" + bytes(1000))
        self._starts = 0

    def prepare(self) -> None:
        """Create the first Hardware, and run a Workflow to its end with the engine and an agent."""
        with self._api(), ExitStack() as stack:
            client = {"kubeconfig": str(self._kubeconfig)}
            for step in ({"do": "define"}, {"do": "make", "names": ["seed-0"]}):
                measured(self._cable.anywhere(python("api_client", **step, **client)))
            for role in ("controller", "server"):
                stack.callback(self._start(role).stop)
            engine = {"port": GRPC_PORT, **client}
            measured(self._cable.anywhere(python("agents", do="machines", count=1, **engine)))
            batch = {"first": 0, "machines": 1, "count": 1, "actions": _ACTIONS, "seconds": 0.0}
            measured(self._cable.anywhere(python("agents", do="batch", **batch, **engine)))

    def fill(self, kind: str, objects: int) -> None:
        """Clone objects into the store while the API does not run."""
        fill(self._state, kind, objects)

    def replicas(self, options: dict[str, tuple[str, ...]]) -> dict[str, Sample]:
        """Measure each of these roles with its options, one after the other."""
        with self._api():
            return {role: self._sample(role, *given) for role, given in options.items()}

    def _sample(self, role: str, *options: str) -> Sample:
        begin = time.monotonic()
        server = self._start(role, *options)
        took = time.monotonic() - begin
        time.sleep(_SETTLE_SECONDS)  # until the memory for the start is released
        sample = {"resident": server.memory("VmRSS"), "most": server.memory("VmHWM"), "start": took}
        server.stop()
        return sample

    @contextmanager
    def _api(self) -> Iterator[None]:
        self._kubeconfig.unlink(missing_ok=True)
        command = [*_TINKEDGE, "apiserver", "--data-dir", str(self._state), "--api-port", str(API_PORT)]
        server = self._started("apiserver", command)
        try:
            yield
        finally:
            server.stop()

    def _start(self, role: str, *options: str) -> Server:
        home = str(self._directory / f"{role}-{self._starts}")
        words = {
            "edge": ["--interface", f"srv0={SERVER_IP}", "--data-dir", home, "--ipxe-dir", str(self._ipxe)],
            "server": ["--interface", "lo=127.0.0.1", "--grpc-port", str(GRPC_PORT), "--agent-auth", "none"],
            "controller": ["--disable", "webhooks"],
        }[role]
        return self._started(role, [*_TINKEDGE, role, "--kubeconfig", str(self._kubeconfig), *words, *options])

    def _started(self, name: str, command: list[str]) -> Server:
        self._starts += 1
        log = self._directory / f"{name}-{self._starts}.log"
        return Server(self._cable.anywhere(command), log, lambda _: b"ready: " in log.read_bytes())
