"""May a machine netboot, by which program, and what it gets: its Workflows, boot paths, scripts and OSIE."""

from __future__ import annotations

import hashlib
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from edge.artifacts.artifact import ChecksumError
from edge.artifacts.cache import ArtifactCache
from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import (
    BootPaths,
    DhcpMode,
    Inventory,
    Located,
    Machine,
    MachineScripts,
    NetbootPolicy,
    NetbootWhen,
    NoArtifactError,
    OsieFiles,
    PendingWorkflows,
    scripts,
)
from ipxe.binaries import BootPath
from ipxe.scripts import BootSettings, EdgeOrigin, LogsTo, Scripts
from tests.support.objects import MAC, OTHER_MAC, hardware, osie, workflow
from tink.api.annotations import BOOT_PATH_ANNOTATION
from tink.api.v1alpha2 import Raw, WorkflowState

# --- Workflows --------------------------------------------------------------------------------------------------------


@pytest.fixture
def work() -> PendingWorkflows:
    return PendingWorkflows()


@pytest.mark.parametrize("state", [*WorkflowState, "a state of later versions"])
def test_workflow_is_pending_until_its_end(work: PendingWorkflows, state: str) -> None:
    work.apply(workflow("w", state))
    assert work.has_pending("default", "m1") is (state not in ("Succeeded", "Failed", "Canceled"))


def test_machine_has_a_pending_workflow_while_any_workflow_names_it(work: PendingWorkflows) -> None:
    def pending() -> list[bool]:
        return [work.has_pending(*name) for name in (("default", "m1"), ("default", "b"), ("other", "m1"))]

    work.apply(workflow("w"), None)  # not prepared by the controller yet
    work.apply(workflow("x"))
    assert pending() == [True, False, False]
    work.apply(workflow("w", hardware="b"))
    assert pending() == [True, True, False]
    work.apply(workflow("x", "Failed"))
    assert pending() == [False, True, False]
    for _ in range(2):
        work.remove(workflow("w", hardware="b"))
    assert pending() == [False, False, False]
    assert work.why_none("default", "b") == "no Workflow for default/b: create one"


@pytest.mark.parametrize(
    ("state", "why"), [("Succeeded", "has Succeeded"), ("Failed", "has Failed"), ("Canceled", "was Canceled")]
)
def test_reason_names_the_workflow_and_how_it_ended(work: PendingWorkflows, state: str, why: str) -> None:
    work.apply(workflow("w", state))
    assert work.why_none("default", "m1") == f"Workflow default/w {why}: create another"


@pytest.mark.parametrize("spec", [None, {}, {"hardwareRef": None}, {"hardwareRef": {}}, {"hardwareRef": {"name": ""}}])
def test_workflow_that_names_no_machine_is_pending_for_none(work: PendingWorkflows, spec: Any) -> None:
    work.apply(workflow("w"))
    work.apply(workflow("w") | {"spec": spec})
    assert not work.has_pending("default", "m1")


def test_machine_boots_while_a_workflow_is_pending_and_else_its_screen_shows_the_reason(work: PendingWorkflows) -> None:
    inventory = Inventory()
    inventory.apply(hardware())
    policy = NetbootPolicy(DhcpMode.RESERVATION, NetbootWhen.WORKFLOW, work.has_pending, work.why_none)
    machine = inventory.by_mac(MAC)
    assert policy.decide(machine).reason == "no Workflow for default/m1: create one"
    work.apply(workflow("w"))
    assert policy.decide(machine).allowed
    work.apply(workflow("w", "Succeeded"))
    assert "default/w has Succeeded" in policy.decide(machine).reason
    assert NetbootPolicy(when=NetbootWhen.ALLOWED, has_pending=work.has_pending).decide(machine).allowed


def test_discovered_machine_boots_without_a_workflow_until_it_is_approved(work: PendingWorkflows) -> None:
    inventory = Inventory()
    policy = NetbootPolicy(DhcpMode.RESERVATION, NetbootWhen.WORKFLOW, work.has_pending, work.why_none)
    discovered = hardware()
    discovered["metadata"]["labels"] = {"tinkerbell.org/auto-discovered": "true"}
    inventory.apply(discovered)
    assert policy.decide(inventory.by_mac(MAC)).allowed
    inventory.apply(hardware())
    assert policy.decide(inventory.by_mac(MAC)).reason == "no Workflow for default/m1: create one"


def test_machine_without_hardware_boots_in_auto_proxy_mode_only() -> None:
    allowed = {mode: NetbootPolicy(mode).decide(None).allowed for mode in DhcpMode}
    assert allowed == {mode: mode is DhcpMode.AUTO_PROXY for mode in DhcpMode}


def test_held_workflow_is_not_pending_and_the_machine_gets_the_reason(work: PendingWorkflows) -> None:
    held = workflow("w", "Pending", annotations={"tinkerbell.org/hold": "restored"})
    work.apply(held)
    assert not work.has_pending("default", "m1")
    assert work.why_none("default", "m1") == "Workflow default/w is held: see its annotation tinkerbell.org/hold"
    work.apply(workflow("w", "Pending"), held)
    assert work.has_pending("default", "m1")
    work.remove(held)
    assert "create one" in work.why_none("default", "m1")


def test_only_the_last_ended_workflow_of_each_machine_is_stored(work: PendingWorkflows) -> None:
    for day in (3, 1, 5, 2):
        work.apply(workflow(f"w{day}", "Succeeded", lastTransitioned=f"2026-01-{day:02}T00:00:00Z"))
        work.apply(workflow(f"v{day}", "Failed", hardware="b", lastTransitioned=f"2026-01-{day:02}T00:00:00Z"))
    assert "w5" in work.why_none("default", "m1")
    assert [*work.names] == [], "nothing else is kept"
    work.remove(workflow("w1", "Succeeded"))
    work.remove(workflow("w5", "Succeeded"))
    assert "create one" in work.why_none("default", "m1")
    assert "v5" in work.why_none("default", "b")


# --- boot paths -------------------------------------------------------------------------------------------------------


class Site:
    def __init__(self, usual: BootPath = BootPath.IPXE, *, has_grub: bool = True) -> None:
        self.inventory, self.reported, self.changed = Inventory(), [], []
        self.paths = BootPaths(self.inventory, self._record, usual, has_grub=has_grub, changed=self.changed.append)

    def _record(self, mac: str, step: Step, outcome: Outcome, message: str, **_: Any) -> None:
        self.reported.append((mac, step, outcome, message))

    def machine(self, path: str | None, mac: str = MAC) -> Machine:
        annotations = {} if path is None else {BOOT_PATH_ANNOTATION: path}
        self.inventory.apply(hardware(f"m{mac[-1]}", mac, None, annotations=annotations))
        return self.inventory.by_mac(mac)


def test_machine_whose_firmware_refuses_ipxe_is_offered_shim_and_grub_and_the_other_way_round() -> None:
    site = Site()
    machine = site.machine("auto")
    assert site.paths.of(machine) is BootPath.AUTO, "which is iPXE for those who choose the file"
    site.paths.not_started(MAC)
    assert site.paths.of(machine) is BootPath.GRUB
    message = "boot path auto: iPXE was not started, so it is offered shim and GRUB from now on"
    assert site.reported == [(MAC, Step.DHCP, Outcome.INFO, message)]
    site.paths.not_started(MAC)
    assert site.paths.of(machine) is BootPath.IPXE
    assert site.changed == [MAC, MAC]


def test_automatic_boot_path_changes_only_for_machines_that_need_it() -> None:
    site = Site(BootPath.AUTO)
    one, other = site.machine(None), site.machine(None, OTHER_MAC)
    assert (site.paths.of(one), site.paths.of(other)) == (None, None)
    site.paths.not_started(MAC)
    assert (site.paths.of(one), site.paths.of(other)) == (BootPath.GRUB, None)
    assert site.paths.of(site.machine("ipxe")) is BootPath.IPXE, "what its Hardware says comes first"


def test_boot_path_stays_if_it_is_given_or_the_machine_is_unknown() -> None:
    site = Site()
    for path in (None, "ipxe", "grub"):
        machine = site.machine(path)
        site.paths.not_started(MAC)
        assert site.paths.of(machine) is (BootPath(path) if path is not None else None)
    site.paths.not_started(OTHER_MAC)
    assert (site.reported, site.changed) == ([], [])


def test_edge_without_shim_and_grub_names_the_packages_and_stays_with_ipxe() -> None:
    site = Site(has_grub=False)
    machine = site.machine("auto")
    site.paths.not_started(MAC)
    assert site.paths.of(machine) is BootPath.AUTO
    assert "there is no shim and GRUB here to offer instead (packages shim-signed" in site.reported[0][3]
    assert site.changed == []


# --- The scripts of machines and the files of their OSIEs: for HTTP and TFTP alike ------------------------------------


# --- scripts ----------------------------------------------------------------------------------------------------------

HERE = EdgeOrigin("10.0.0.1")


class Rack:
    def __init__(
        self, mode: DhcpMode = DhcpMode.RESERVATION, default_osie: tuple[str, str] | None = None, **settings: Any
    ) -> None:
        self.inventory, self.journey = Inventory(), Journey(time.time)
        self.osies = {("default", "lab"): {}, ("rescue", "any"): {}}
        self.scripts = MachineScripts(
            self.inventory,
            NetbootPolicy(mode),
            lambda namespace, name: self.osies.get((namespace, name)),
            Scripts(BootSettings(**settings)),
            self.journey.record,
            default_osie,
        )
        self.inventory.on_change(self.scripts.machine_changed)

    def register(self, mac: str = MAC, *, vlan: str = "", **spec: Any) -> None:
        dhcp = {"vlanId": vlan} if vlan else {}
        made = hardware(
            "m" + mac[-2:], mac, f"10.0.0.{int(mac[-2:], 16)}", dhcp=dhcp, **{"osie": {"name": "lab"}, **spec}
        )
        self.inventory.apply(made)

    def script(self, mac: str = MAC, origin: EdgeOrigin = HERE) -> str:
        return self.scripts.script(mac, origin, client="iPXE/1.0")

    def lines(self, mac: str = MAC) -> list[tuple[Step, Outcome, str]]:
        return [(event.step, event.outcome, event.message) for event in self.journey.events(mac)]


def words(parameters: str) -> Raw:
    """Return the metadata of an OSIE with these kernel parameters."""
    return {"metadata": {"annotations": {"tinkerbell.org/kernel-parameters": parameters}}}


def test_scripts_have_the_edges_address_on_the_network_of_the_request() -> None:
    rack = Rack()
    rack.register()
    for address in ("10.0.0.1", "10.1.0.1", "10.0.0.1"):
        assert f"kernel http://{address}:7080/osie/lab/kernel " in rack.script(origin=EdgeOrigin(address))
    assert f"kernel tftp://10.0.0.1/{MAC}/osie/lab/kernel " in rack.script(origin=EdgeOrigin("10.0.0.1", tftp=True))


def test_new_images_are_in_the_next_script_of_a_machine() -> None:
    images: list[str] = []
    rack = Rack(own_registry=lambda: bool(images))
    rack.register()
    assert "insecure_registries" not in rack.script()
    images.append("actions/inspect:1")
    assert " insecure_registries=10.0.0.1:7080 " in rack.script()
    images.clear()
    assert "insecure_registries" not in rack.script()


def test_changed_hardware_has_a_new_script_on_every_network() -> None:
    rack = Rack()
    rack.register()
    origins = (HERE, EdgeOrigin("10.1.0.1"))
    assert all(" quiet " not in rack.script(origin=origin) for origin in origins)
    rack.register(kernelParams=["quiet"])
    assert all(" quiet " in rack.script(origin=origin) for origin in origins)


def test_changed_parameters_of_an_osie_are_in_the_next_script() -> None:
    rack = Rack()
    rack.register()
    assert " quiet " not in rack.script()
    rack.osies["default", "lab"] = words("quiet")
    assert " quiet " in rack.script()
    rack.osies["default", "lab"] = words("a && b")
    assert "echo OSIE default/lab: metadata.annotations[tinkerbell.org/kernel-parameters]" in rack.script()
    rack.osies["default", "lab"] = {}
    assert " quiet " not in rack.script()


def test_log_lines_are_expected_after_a_script_requests_them() -> None:
    rack = Rack(logs=LogsTo.HOOKOS)
    rack.register()
    assert " syslog_host=" not in rack.script()
    assert not rack.scripts.logs_wanted
    rack.osies["default", "lab"] = words("tink_worker_image=10.0.0.1:5000/tink-agent")
    assert " syslog_host=10.0.0.1 " in rack.script()
    assert rack.scripts.logs_wanted


def test_unregistered_machine_boots_the_default_osie_under_its_mac() -> None:
    rack = Rack(DhcpMode.AUTO_PROXY, ("rescue", "any"))
    text = rack.script()
    assert "kernel http://10.0.0.1:7080/osie/any/kernel " in text
    assert f" worker_id={MAC} hw_addr={MAC} " in text
    assert rack.lines() == [(Step.SCRIPT, Outcome.OK, "script sent: OSIE rescue/any")]


def test_unregistered_machine_without_a_default_osie_shows_how_to_register_it() -> None:
    rack = Rack(DhcpMode.AUTO_PROXY)
    text = rack.script()
    assert f"\necho {MAC} is seen, not registered, and there is no '--default-osie' for such machines.\n" in text
    assert f"\necho Apply a Hardware with {MAC} under spec.networkInterfaces:\n" in text
    assert text.endswith("\nexit 1\n")
    ((step, outcome, message),) = rack.lines()
    assert (step, outcome) == (Step.SCRIPT, Outcome.REFUSED)
    assert message.startswith(f"no boot: {MAC} is seen, not registered")


def test_script_for_a_missing_default_osie_names_the_flag() -> None:
    rack = Rack(DhcpMode.AUTO_PROXY, ("rescue", "gone"))
    assert "\necho OSIE rescue/gone, which '--default-osie' names, does not exist\n" in rack.script()
    assert rack.lines()[0][1] is Outcome.FAILED


def test_registered_machine_boots_its_own_osie_in_auto_proxy_too() -> None:
    rack = Rack(DhcpMode.AUTO_PROXY, ("rescue", "any"))
    rack.register()
    assert "osie/lab/kernel" in rack.script()
    rack.register(osie=None)
    assert "spec.osie.name is not set" in rack.script()


@pytest.mark.parametrize("mode", [DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.OFF])
def test_unregistered_machine_is_refused_in_the_other_modes(mode: DhcpMode) -> None:
    rack = Rack(mode, ("rescue", "any"))
    assert "\necho no Hardware has this MAC address\n" in rack.script()


def test_number_of_stored_scripts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "MAX_KEPT", 4)
    rack = Rack()
    macs = [f"52:54:00:00:00:{number:02x}" for number in range(1, 11)]
    for mac in macs:
        rack.register(mac)
    for _ in range(2):
        for mac in macs:
            assert f"worker_id={mac} " in rack.script(mac)
    assert len(rack.scripts._compiled) == 4


def test_each_response_to_a_registered_machine_has_its_own_token() -> None:
    made: list[str] = []

    def token(mac: str) -> str:
        made.append(f"t{len(made)}-{mac}")
        return made[-1]

    rack = Rack(DhcpMode.AUTO_PROXY, ("rescue", "any"), token=token)
    assert "osie/any/kernel" in rack.script()
    assert not made
    rack.register()
    for number in range(3):
        assert f"\nset tinkerbell-token t{number}-{MAC}\n" in rack.script()
    rack.osies.clear()
    assert "tinkerbell-token" not in rack.script(), "a script that shows a reason has no secret in it"
    assert len(made) == 3
    assert not [line for line in rack.lines() if "t0-" in str(line)]


def test_journey_shows_that_a_script_leads_into_a_vlan() -> None:
    rack = Rack()
    rack.register()
    rack.script()
    rack.register(vlan="50")
    rack.script()
    assert [event.detail.get("vlan") for event in rack.journey.events(MAC)] == [None, "50"]


# --- from the name of an OSIE to the URL and the checksum of its files -----------------------------------------------

SUM = "ab" * 32
KERNEL, INITRD = (f"http://192.0.2.9/{name}" for name in ("vmlinuz", "initrd"))


def lab(**annotations: str) -> Raw:
    found = {f"tinkerbell.org/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return osie(metadata={"annotations": found})


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "cache", file_root=tmp_path)


def files(obj: Raw | None, cache: ArtifactCache) -> OsieFiles:
    return OsieFiles(lambda *names: obj if names == ("default", "lab") else None, cache)


@pytest.mark.parametrize(
    ("annotations", "part", "expected"),
    [
        ({}, "kernel", Located(KERNEL, "", "default/lab", "kernelUrl")),
        ({"kernel_sha256": SUM}, "kernel", Located(KERNEL, SUM, "default/lab", "kernelUrl")),
        ({"kernel_sha256": SUM}, "initrd", Located(INITRD, "", "default/lab", "initrdUrl")),
        ({"initrd_sha256": f"{SUM.upper()}\n"}, "initrd", Located(INITRD, SUM, "default/lab", "initrdUrl")),
    ],
)
def test_each_file_has_its_own_url_and_checksum(
    cache: ArtifactCache, annotations: Any, part: str, expected: Located
) -> None:
    assert files(lab(**annotations), cache).locate("default", "lab", part) == expected


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (None, "OSIE default/lab does not exist"),  # as one of another namespace
        ({"metadata": {"name": "lab"}, "spec": {}}, "OSIE default/lab: spec.kernelUrl: Field required"),
        (
            lab(kernel_sha256="abc"),
            "OSIE default/lab: metadata.annotations[tinkerbell.org/kernel-sha256]: "
            "a SHA-256 checksum is 64 hexadecimal digits",
        ),
    ],
)
def test_error_for_an_invalid_osie_names_object_and_field(cache: ArtifactCache, obj: Any, message: str) -> None:
    with pytest.raises(NoArtifactError) as caught:
        files(obj, cache).locate("default", "lab", "kernel")
    assert str(caught.value) == message


async def test_file_is_opened_if_it_has_the_checksum_of_its_osie(cache: ArtifactCache, tmp_path: Path) -> None:
    (tmp_path / "initrd").write_bytes(b"initrd")
    url = (tmp_path / "initrd").as_uri()
    for checksum, error in ((hashlib.sha256(b"initrd").hexdigest(), None), (SUM, ChecksumError)):
        obj = lab(initrd_sha256=checksum)
        obj["spec"]["initrdUrl"] = url
        found = files(obj, cache)
        with (
            pytest.raises(error) if error else nullcontext(),
            await found.open(found.locate("default", "lab", "initrd")) as opened,
        ):
            assert opened.size == 6
    await cache.stop()
