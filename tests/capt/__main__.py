"""`python -m tests.capt --manager FILE [PLAY]`: the manager of Cluster API's provider (CAPT) against our API.

FILE is the manager program of a CAPT release, such as the one in its container image. This command builds and downloads
none of the programs of Cluster API. It needs root, because everything runs in network namespaces of its own, where only
loopback and links between them exist.

The command plays everything around the manager:

- Cluster API: it creates the Cluster, the Machines, the bootstrap Secrets and the TinkerbellMachines, and deletes them.
- Tinkerbell: the real API server with its admission reviews, and the real Workflow controller, run in this process. The
  command writes the states that a server and an agent would write, and the condition that ends a Job of a BMC.

The plays:

- `lives` (default): all machines are created at once, and deleted when they are installed.
- `contention`: more machines than there are Hardware are created at once, and deleted when each Hardware has an owner.
- `rollout`: a cluster of half the machines grows to all, shrinks, grows again, and is upgraded as by a
  MachineDeployment: for each batch of new machines, the same number of old ones is deleted.
- `move`: `clusterctl move` takes the cluster to a second API with a manager of its own, where it is deleted.

With `--cluster`, the API is a kube-apiserver (built of its Go modules at first) that calls our conversion webhook and
our admission reviews in this process. Without it, the API is the embedded one.

It prints how many machines were installed and released, how often a Hardware changed its owner without a release, how
many machines had two Hardware or were installed again, and the errors. It exits with 1 unless all lives were complete
and the other counts are 0. `--record` writes the writes to `tinkerbell.org` and `bmc.tinkerbell.org`, which
`tests/unit/versions/test_served.py` replays.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests import peer
from tests.api import serving
from tests.bench.kubernetes import build
from tests.capt.site import CLUSTER_API, Result, Site, definition
from tests.capt.wire import Exchange, Recorder, clusterctl_move, is_ours, recorded, running_manager
from tests.interop.privileges import Upstream
from tests.interop.webhooks.v1alpha1 import is_served, serving_webhooks
from tests.waiting import until
from tink import versions
from tink.api.crds import generate, generate_bmc
from tink.api.v1alpha2 import Raw
from tink.controller.controller import WorkflowController
from tink.kube.cache import Informer
from tink.kube.client import KubeClient
from tink.kube.manifests import apply_object
from tink.kube.resources import CRD, HARDWARE, TEMPLATE, WORKFLOW
from tink.webhooks.admission import ReviewPlugin
from tink.webhooks.conversion import served_v1alpha1
from tink.webhooks.server import Webhooks

VARYING: Final = re.compile(
    r"\b(tm|hw)-?[\d-]+(-poweroff)?|[\da-f]{8}-[\da-f-]{27}|\d{4}-\d\d-\d\dT[\d:.]+Z?|0x[\da-f]+"
)


# --- the APIs ---------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def embedded(directory: Path, *, reviewed: bool) -> AsyncIterator[Path]:
    """Run the embedded API with all definitions; yield its kubeconfig."""

    async def find(key: str, namespace: str, name: str) -> Raw | None:
        return await api.find(key, namespace, name)

    definitions = [*generate(serve_v1alpha1=True), *generate_bmc(), *map(definition, CLUSTER_API)]
    plugin = ReviewPlugin(find) if reviewed else None
    converters = dict.fromkeys(versions.DEFINITIONS, versions)
    async with serving(directory, definitions, plugin, converters=converters) as (api, _):
        yield api.kubeconfig


@contextlib.asynccontextmanager
async def cluster(*, reviewed: bool) -> AsyncIterator[Path]:
    """Run a kube-apiserver that calls our webhooks for conversions and reviews; yield its kubeconfig."""
    async with contextlib.AsyncExitStack() as exits:
        kubeconfig = exits.enter_context(peer.running())
        client = await KubeClient.connect(kubeconfig)
        exits.push_async_callback(client.close)
        for each in [*generate(), *generate_bmc(), *map(definition, CLUSTER_API)]:
            await apply_object(client, CRD, each, "test")
        if reviewed:
            await exits.enter_async_context(serving_webhooks(client, served_v1alpha1()))
        else:
            webhooks = Webhooks(client, [served_v1alpha1()])
            await webhooks.start()
            exits.push_async_callback(webhooks.stop)
        await until(lambda: is_served(client), "the kube-apiserver does not serve v1alpha1")
        yield kubeconfig


def _run(exits: contextlib.AsyncExitStack, *work: Coroutine[Any, Any, Any]) -> None:
    """Run coroutines until the stack ends."""
    tasks = [asyncio.create_task(each) for each in work]

    async def stop() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    exits.push_async_callback(stop)


# --- a run ------------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """The options, the counts and the requests of a run, and the programs that belong to it."""

    options: argparse.Namespace
    directory: Path
    exits: contextlib.AsyncExitStack
    result: Result = field(default_factory=Result)
    records: list[Exchange] = field(default_factory=list)
    managers: list[asyncio.subprocess.Process] = field(default_factory=list)
    _in_turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def site(self, api: str = "") -> tuple[Site, Upstream]:
        """Start an API, its Workflow controller and its managers."""
        directory = self.directory / (api or "source")
        directory.mkdir(mode=0o700)
        reviewed = not self.options.without_review
        running = cluster(reviewed=reviewed) if self.options.cluster else embedded(directory, reviewed=reviewed)
        upstream = Upstream.read(await self.exits.enter_async_context(running))
        ours = await self.recorder("tinkedge", upstream, api)
        client = await KubeClient.connect(ours.kubeconfig(directory / "kubeconfig"))
        self.exits.push_async_callback(client.close)
        site = Site(client, self.result, self.check_managers)
        site.own_text = bool(self.options.record)
        self._start_controller(client, site)
        flags = ["--metrics-bind-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0"]
        if self.options.concurrency:
            flags.append(f"--tinkerbellmachine-concurrency={self.options.concurrency}")
        for _ in range(self.options.managers):
            number = len(self.managers)
            program, recorder = self.options.manager.resolve(), await self.recorder("capt", upstream, api)
            running_one = running_manager(program, flags, recorder, self.directory / f"manager-{number}", number)
            self.managers.append(await self.exits.enter_async_context(running_one))
        return site, upstream

    async def recorder(self, by: str, upstream: Upstream, api: str = "") -> Recorder:
        """Start a recorder of one client."""
        in_turn = self._in_turn if self.options.record else None
        return await self.exits.enter_async_context(Recorder(by, upstream, self.records, in_turn, api).running())

    def check_managers(self) -> None:
        """Raise AssertionError if a manager has ended."""
        assert all(manager.returncode is None for manager in self.managers), "a manager has ended: see its log"

    def log(self) -> str:
        """Return the logs of the managers."""
        return "".join(file.read_text() for file in sorted(self.directory.glob("manager-*/manager.log")))

    def _start_controller(self, client: KubeClient, site: Site) -> None:
        informers = {resource: Informer(client, resource) for resource in (WORKFLOW, HARDWARE, TEMPLATE)}
        informers[HARDWARE].add_event_handler(site.owner_changed)
        controller = WorkflowController(
            client, workflows=informers[WORKFLOW], hardware=informers[HARDWARE], templates=informers[TEMPLATE]
        )
        _run(self.exits, *(informer.run() for informer in informers.values()), controller.run())


def names(life: int, first: int, end: int) -> list[str]:
    """Return the names of machines of one life."""
    return [f"tm-{life}-{number}" for number in range(first, end)]


async def lives(run: Run) -> None:
    """Create and delete all machines, several times."""
    count = run.options.machines
    site, _ = await run.site()
    await site.prepare(count)
    for life in range(run.options.rounds):
        began = time.monotonic()
        machines = names(life, 0, count)
        await site.grow(machines)
        await site.shrink(machines)
        print(f"life {life + 1}: {count} machines in {time.monotonic() - began:.1f} s", flush=True)


async def contention(run: Run) -> None:
    """Create more machines than there are Hardware, several times."""
    site, _ = await run.site()
    await site.prepare(run.options.machines)
    for life in range(run.options.rounds):
        began = time.monotonic()
        machines = names(life, 0, run.options.machines + run.options.surplus)
        await site.contend(machines)
        print(f"round {life + 1}: {len(machines)} machines in {time.monotonic() - began:.1f} s", flush=True)


async def rollout(run: Run) -> None:
    """Scale a cluster up, down and up again, upgrade it in batches, and delete it."""
    count, surge = run.options.machines, run.options.surplus
    half = count // 2
    site, _ = await run.site()
    await site.prepare(count + surge)
    for life in range(run.options.rounds):
        began = time.monotonic()
        there, more, again = (names(3 * life, 0, half), names(3 * life, half, count), names(3 * life + 1, half, count))
        await site.grow(there)
        await site.grow(more)
        await site.shrink(more)
        await site.grow(again)
        print(f"scaled to {half}, {count}, {half}, {count} in {time.monotonic() - began:.1f} s", flush=True)
        began = time.monotonic()
        upgraded: list[str] = []
        for first in range(0, count, surge):
            old = [*there, *again][first : first + surge]
            new = names(3 * life + 2, len(upgraded), len(upgraded) + len(old))
            await site.grow(new, "v1.35.0")
            await site.shrink(old)
            upgraded += new
        print(f"upgraded {count} machines, {surge} at once, in {time.monotonic() - began:.1f} s", flush=True)
        await site.shrink(upgraded)


async def move(run: Run) -> None:
    """Move a cluster to a second API, and delete it there."""
    machines = names(0, 0, run.options.machines)
    site, source = await run.site()
    target, upstream = await run.site("target")
    await site.prepare(run.options.machines, with_bmcs=True)
    await site.grow(machines)
    await site.declare_running()
    before, began = await site.moved(), time.monotonic()
    at, other = await run.recorder("clusterctl", source), await run.recorder("clusterctl", upstream, "target")
    output = await clusterctl_move(run.options.clusterctl.resolve(), at, other, run.directory)
    print(f"clusterctl move: {len(output.splitlines())} lines in {time.monotonic() - began:.1f} s", flush=True)
    await target.until_ready()
    await target.check_moved(before)
    await site.check_gone()
    run.result.installed_again += [
        f"{each.by} {each.method} {each.path}" for each in run.records
        if each.method == "POST" and each.path.endswith(("/workflows", "/jobs")) and each.api
    ]  # fmt: skip
    await target.shrink(machines)


PLAYS: Final = {"lives": lives, "contention": contention, "rollout": rollout, "move": move}


async def play(options: argparse.Namespace, directory: Path) -> tuple[Result, list[Exchange], str]:
    """Run the play. Returns the counts, the requests, and the managers' logs."""
    async with contextlib.AsyncExitStack() as exits:
        run = Run(options, directory, exits)
        try:
            await PLAYS[options.play](run)
        except AssertionError as error:
            run.result.faults.append(str(error))
        return run.result, run.records, run.log()


def report(result: Result, records: Sequence[Exchange], log: str) -> None:
    """Print the counts."""
    print(f"installed {result.installed} of {result.to_install}, released {result.released} of {result.to_release}")
    if result.trials:
        print(f"machines that wanted a Hardware: {result.trials}, that got one: {result.chosen}")
    for title, lines in (
        ("Hardware with two owners", result.owners_at_once),
        ("machines with two Hardware", result.two_hardware),
        ("machines installed again", result.installed_again),
        ("other faults", result.faults),
    ):
        print(f"{title}: {len(lines)}")
        for line in lines[:20]:
            print(f"  {line}")
    for client in ("capt", "clusterctl"):
        sent = [each for each in records if each.by == client]
        ours = [each for each in sent if is_ours(each)]
        print(f"requests of {client}: {len(sent)}, {len(ours)} of them to our groups; answers with an error:")
        answers = Counter((each.method, _shape(each.path), each.status, _shape(each.message)) for each in ours)
        for (method, path, status, message), number in sorted(answers.items()):
            if status >= 400:
                print(f"  {number} {method} {path} {status} {message}")
    print("errors in the managers' logs:")
    for text, number in Counter(_error(line) for line in log.splitlines() if _error(line)).most_common():
        print(f"  {number} {text}")


def _shape(text: str) -> str:
    return VARYING.sub("*", text)


def _error(line: str) -> str:
    if line.startswith(("panic", "E")):
        return _shape(line)[:300]
    with contextlib.suppress(ValueError):
        entry = json.loads(line)
        if entry.get("level") == "error":
            return _shape(f"{entry.get('message')}: {entry.get('error')}")[:300]
    return ""


def parse() -> argparse.Namespace:
    """Read the options. Exits with 2 if they don't fit."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.capt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("play", nargs="?", choices=PLAYS, default="lives", help="what happens to the machines")
    parser.add_argument("--manager", type=Path, required=True, help="the manager program of a CAPT release")
    parser.add_argument("--managers", type=int, default=1, help="managers at once, without leader election")
    parser.add_argument("--concurrency", type=int, help="TinkerbellMachines that a manager handles at once")
    parser.add_argument("--clusterctl", type=Path, help="the program clusterctl of a Cluster API release, for `move`")
    parser.add_argument("--cluster", action="store_true", help="a kube-apiserver with our webhooks, not our own API")
    parser.add_argument("--machines", type=int, default=3, help="machines of the cluster, or Hardware in `contention`")
    parser.add_argument("--surplus", type=int, default=1, help="machines too many, or spare Hardware in `rollout`")
    parser.add_argument("--rounds", type=int, default=1, help="how often the play is repeated, except `move`")
    parser.add_argument("--without-review", action="store_true", help="without admission reviews: CAPT alone")
    parser.add_argument("--record", type=Path, help="write the requests to this file; writes then take turns")
    parser.add_argument("--log", type=Path, help="write the managers' logs to this file")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play == "move" and not options.clusterctl:
        parser.error("move needs --clusterctl FILE")
    if options.play == "move" and options.cluster:
        parser.error("move needs our own API: a kube-apiserver alone does not delete what a deleted object owned")
    return options


def main() -> int:
    options = parse()
    if not options.inside:
        if options.cluster:
            build()
        # The managers' webhooks listen on all addresses, and no request may leave this machine.
        command = ["unshare", "--net", sys.executable, "-m", "tests.capt", *sys.argv[1:], "--inside"]
        os.execvp(command[0], command)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="capt-") as directory:
        result, records, log = asyncio.run(play(options, Path(directory)))
    report(result, records, log)
    if options.log:
        options.log.write_text(log)
    if options.record:
        lines = (json.dumps(recorded(each)) for each in records if is_ours(each) and each.method != "GET")
        options.record.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
