"""Discovery (docs/discovery.md): the rules of `--discover` and the lists of expected machines, beside what the API has.

`check_discovery` reads the API once; `judge_rules` and `judge_lists` compare (pure).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge.doctor.doctor import ExaminedServices
from edge.doctor.findings import Finding, note, passed, problem, warning
from edge.neighbour.host import HostError
from edge.neighbour.links import look

# The packages of the services are imported in the functions, so that `tinkedge doctor --help` does not load them.
if TYPE_CHECKING:
    from tink.api.v1alpha2 import Raw
    from tink.discovery.model import AdmissionRule

_API_TIMEOUT_SECONDS: Final = 10.0
_NEARLY_FULL: Final = 10
"""A range with fewer free addresses than one of so many is nearly full."""
_LISTS: Final = "lists of expected machines"


@dataclass(frozen=True, slots=True)
class DiscoveryObjects:
    """The objects of the API that discovery uses: Hardware, ConfigMaps with lists, and OSIEs as NAMESPACE/NAME."""

    hardware: Sequence[Raw] = ()
    lists: Sequence[Raw] = ()
    osies: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DiscoverySite:
    """The networks of this host that face machines, and the addresses of its relays (`--relays`), if any are given."""

    networks: Sequence[IPv4Network] = ()
    addresses: Sequence[str] = ()
    has_relays: bool = False


def check_discovery(
    rules: Sequence[AdmissionRule],
    serving: ExaminedServices,
    kubeconfig: Path,
    manifests: Path | None,
    *,
    has_relays: bool,
) -> Iterator[Finding]:
    """Check the rules of `--discover` and all lists. No finding if there is neither a rule nor a list.

    `manifests` is the directory of `--manifests`, whose OSIEs count as created. `has_relays`: --relays is given.
    """
    site = _site(serving, has_relays=has_relays)
    try:
        found = asyncio.run(_objects(kubeconfig, is_whole=bool(rules))) if kubeconfig.exists() else None
        why = "" if found is not None else f"there is no {kubeconfig}"
    except Exception as error:  # An API fails in many ways, and the other checks go on.
        found, why = None, str(error) or type(error).__name__
    if found is None:
        if rules:
            yield from filter(None, (_network_finding(rule, site) for rule in rules))
            yield note(
                "discovery",
                f"ranges, OSIEs and lists are not examined: {why}",
                "start the API, or name it by --kubeconfig",
            )
        return
    osies = found.osies | frozenset(_osies_of(manifests))
    yield from judge_rules(rules, DiscoveryObjects(found.hardware, found.lists, osies), site)
    yield from judge_lists(found.lists)


def judge_rules(rules: Sequence[AdmissionRule], objects: DiscoveryObjects, site: DiscoverySite) -> Iterator[Finding]:
    """Find the rules that can admit no machine, or soon none."""
    from tink.discovery.admission import Admission
    from tink.discovery.model import counts
    from tink.kube.objects import NamespacedName

    admission = Admission(rules, lambda _mac: False, own_addresses=lambda: site.addresses)
    for each in objects.hardware:
        admission.apply(each, 0.0)
    for rule in rules:
        found = [
            _network_finding(rule, site),
            _osie_finding(rule, objects.osies),
            _range_finding(rule, admission.free(rule, 0.0), objects.hardware),
            _reservation_finding(rule, objects.hardware),
        ]
        namespaces = (NamespacedName.of(each).namespace for each in objects.lists)
        if rule.listed_only and not any(counts(each, rule.list_namespaces) for each in namespaces):
            names = ", ".join(sorted(rule.list_namespaces))
            seen = f"it has only=listed, and namespace {names} has no list of expected machines: it admits no machine"
            remedy = "import one: 'tinkedge discover import FILE.csv', or leave only=listed out"
            found.append(warning(_name(rule), seen, remedy))
        yield from filter(None, found)


def judge_lists(lists: Sequence[Raw]) -> Iterator[Finding]:
    """Report the lines of lists that can't be used. `lists` are ConfigMaps; no finding without any."""
    from tink.discovery.expected import ExpectedMachines

    if not lists:
        return
    expected = ExpectedMachines()
    for each in lists:
        expected.apply(each)
    problems = expected.problems
    if not problems:
        yield passed(_LISTS, f"{len(expected)} machines on {len(lists)} lists, no problem")
        return
    count = "one line or column" if len(problems) == 1 else f"{len(problems)} lines or columns"
    seen = f"{count} can't be used; the first: {problems[0].source}: {problems[0].text}"
    remedy = "correct the file and import it again; 'tinkedge discover list' shows all"
    yield warning(_LISTS, seen, remedy)


# --- one rule ---------------------------------------------------------------------------------------------------------


def _name(rule: AdmissionRule) -> str:
    return f"--discover {rule.name}"


def _network_finding(rule: AdmissionRule, site: DiscoverySite) -> Finding | None:
    """Return the finding about a rule whose network is that of no interface; None if it is that of one."""
    if not site.networks or any(network.overlaps(rule.network) for network in site.networks):
        return None
    served = ", ".join(map(str, site.networks))
    seen = f"no interface that faces machines is in {rule.network} ({served}): it admits only machines behind a relay"
    if rule.relays or site.has_relays:
        return note(_name(rule), seen)
    return warning(_name(rule), seen, "correct the range, or name the relays of that network in --relays")


def _osie_finding(rule: AdmissionRule, osies: frozenset[str]) -> Finding:
    if str(rule.osie) in osies:
        return passed(_name(rule), f"its OSIE {rule.osie} is there")
    seen = f"its OSIE {rule.osie} does not exist: machines are admitted, and boot nothing"
    return problem(_name(rule), seen, "create that OSIE, or correct osie= of the rule")


def _range_finding(rule: AdmissionRule, free: int, hardware: Sequence[Raw]) -> Finding:
    from tink.discovery.model import is_discovered

    size = int(rule.last) - int(rule.first) + 1
    waiting = sum(is_discovered(each) for each in hardware if any(_addresses_in(rule, each)))
    seen = f"{free} of {size} addresses are free, {waiting} are those of machines that wait for their approval"
    if free and free * _NEARLY_FULL >= size:
        return passed(_name(rule), seen)
    remedy = "approve or delete the machines that wait ('tinkedge discover list'), or widen the range"
    return warning(_name(rule), seen, remedy) if free else problem(_name(rule), seen, remedy)


def _reservation_finding(rule: AdmissionRule, hardware: Sequence[Raw]) -> Finding | None:
    """Return the finding about reservations in the range that do not come from discovery; None without any."""
    from tink.api.annotations import DISCOVERED_AS_ANNOTATION
    from tink.discovery.approval import annotations_of
    from tink.discovery.model import is_discovered
    from tink.kube.objects import NamespacedName

    found = [
        f"{NamespacedName.of(each)} ({address})"
        for each in hardware
        if not is_discovered(each) and DISCOVERED_AS_ANNOTATION not in annotations_of(each)
        for address in _addresses_in(rule, each)
    ]
    if not found:
        return None
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    seen = f"its range has addresses that are reserved: Hardware {', '.join(found[:3])}{more}"
    return warning(_name(rule), seen, "set a range apart for discovery, or give these Hardware other addresses")


def _addresses_in(rule: AdmissionRule, hardware: Raw) -> Iterator[str]:
    """Yield the reserved IPv4 addresses of a Hardware that are in the range of a rule."""
    from tink.api.v1alpha2 import as_mapping

    for interface in as_mapping(as_mapping(hardware.get("spec")).get("networkInterfaces")).values():
        address = as_mapping(as_mapping(interface).get("dhcp")).get("ip")
        with suppress(ValueError):
            if isinstance(address, str) and rule.first <= IPv4Address(address) <= rule.last:
                yield address


# --- this host and the API --------------------------------------------------------------------------------------------


def _site(serving: ExaminedServices, *, has_relays: bool) -> DiscoverySite:
    """Return the networks of the interfaces that face machines; none if the kernel does not describe them."""
    networks: list[IPv4Network] = []
    addresses: list[str] = []
    with suppress(HostError, OSError):  # `check_serving` has reported it
        for network in serving.networks():
            link = look(network.interface)
            for each in link.addresses if link is not None else ():
                networks.append(each.network)
                addresses.append(str(each.ip))
    return DiscoverySite(tuple(dict.fromkeys(networks)), tuple(addresses), has_relays=has_relays)


def _osies_of(manifests: Path | None) -> Iterator[str]:
    """Yield the OSIEs of a directory of manifests. One that can't be read is reported by `check_osies`."""
    from tink.kube.manifests import ManifestError, manifest_files, read
    from tink.kube.objects import NamespacedName

    if manifests is None:
        return
    with suppress(ManifestError, OSError):
        for file in manifest_files(manifests):
            usable, _ = read(file)
            yield from (str(NamespacedName.of(each)) for each in usable if each["kind"] == "OSIE")


async def _objects(kubeconfig: Path, *, is_whole: bool) -> DiscoveryObjects:
    """Return the objects of the API; without `is_whole` only the lists. Raises the client's errors."""
    from tink.api.annotations import EXPECTED_MACHINES_LABEL
    from tink.kube.client import KubeClient
    from tink.kube.objects import NamespacedName
    from tink.kube.resources import CONFIG_MAP, HARDWARE, OSIE

    async with await KubeClient.connect(kubeconfig) as client, asyncio.timeout(_API_TIMEOUT_SECONDS):
        lists = await client.list(CONFIG_MAP, label_selector=f"{EXPECTED_MACHINES_LABEL}=true")
        if not is_whole:
            return DiscoveryObjects(lists=lists["items"])
        hardware, osies = await client.list(HARDWARE), await client.list(OSIE)
        return DiscoveryObjects(
            hardware["items"], lists["items"], frozenset(str(NamespacedName.of(each)) for each in osies["items"])
        )
