"""Scripts and boot programs over HTTP, signs of life, and what the server does whatever the path."""

from __future__ import annotations

import json

import aiohttp
import pytest

from edge.journey.events import Outcome, Step
from edge.machines import DhcpMode
from tests.support.objects import MAC, OTHER_MAC
from tests.unit.http.conftest import IP, OTHER_IP, Rack

SCRIPT = f"/ipxe/script/{MAC}/auto.ipxe"
DASHED = MAC.replace(":", "-")
UNKNOWN_IP = "127.0.0.9"


@pytest.fixture
def two(rack: Rack) -> Rack:
    rack.register(kernelParams=["quiet"])
    rack.register("m2", OTHER_MAC, OTHER_IP)
    return rack


async def test_registered_machine_gets_its_script(rack):
    rack.register()
    reply = await rack.ask(SCRIPT, User_Agent="iPXE/1.21.1 (x)")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert reply.headers["Cache-Control"] == "no-store"  # it may have a token in it
    # The address of ours that the machine has reached.
    assert "\nkernel http://127.0.0.1:7080/osie/lab/kernel grpc_authority=127.0.0.1:42113 " in reply.text
    assert f" worker_id={MAC} " in reply.text
    assert " quiet " not in reply.text
    assert rack.lines() == [(Step.SCRIPT, Outcome.OK, "script sent: OSIE default/lab")]
    assert rack.journey.events(MAC)[0].detail["client"] == "iPXE/1.21.1"
    rack.register(kernelParams=["quiet"])
    assert " quiet " in (await rack.ask(SCRIPT)).text
    rack.register(osie=None, ipxe={"inline": "#!ipxe\nshell"})
    assert (await rack.ask(SCRIPT)).text.endswith("\nshell\n")


async def test_script_that_asks_why_is_never_sent_itself_again_and_a_refused_kernel_is_on_the_journey(rack):
    rack.register()
    reply = await rack.ask(f"{SCRIPT}?failed")
    assert "\necho the edge has the files of the OSIE, but the connection to this machine broke\n" in reply.text
    assert "kernel http" not in reply.text
    assert rack.lines() == []
    assert (await rack.ask("/sign/failed")).status == 200
    (event,) = rack.journey.events(MAC)
    assert (event.step, event.outcome, event.detail["phase"]) == (Step.BOOT, Outcome.FAILED, "failed")
    assert "Where Secure Boot is on, the kernel of the OSIE must be signed" in event.message


@pytest.mark.parametrize(
    "path",
    [
        "/ipxe/script/52%3A54%3A00%3A00%3A00%3A01/auto.ipxe",  # iPXE of 2019
        f"/ipxe/script/{DASHED}/auto.ipxe",
        f"//ipxe//script/{MAC}///auto.ipxe",
        f"{SCRIPT}?x=1",
    ],
)
async def test_spellings_of_real_firmware_reach_the_script_without_redirect(two, path):
    assert (await two.ask(path)).status == 200


@pytest.mark.parametrize("path", ["/auto.ipxe", "/ipxe/script/auto.ipxe", f"/{MAC}/auto.ipxe"])
async def test_script_under_smees_path_is_the_callers_own(two, path):
    assert f" worker_id={MAC} " in (await two.ask(path)).text
    other = await two.ask(path, ip=OTHER_IP, X_Forwarded_For=IP)
    assert f"worker_id={MAC}" not in other.text
    assert (other.status, f" worker_id={OTHER_MAC} " in other.text) == ((403, False) if MAC in path else (200, True))
    assert (await two.ask(path, ip=UNKNOWN_IP)).status in (403, 404)


async def test_probe_of_smee_finds_its_fields(rack):
    reply = await rack.ask("/healthcheck")
    assert reply.headers["Content-Type"].startswith("application/json")
    assert set(json.loads(reply.body)) == {"git_rev", "uptime_seconds", "goroutines"}


async def test_unregistered_machine_shows_why_it_is_not_booted_and_leaves_no_trace(rack):
    reply = await rack.ask(SCRIPT)
    assert reply.status == 200
    assert "\necho no Hardware has this MAC address\n" in reply.text
    assert reply.text.endswith("exit 1\n")
    assert (await rack.ask("/ipxe/script/someone/auto.ipxe")).status == 404
    rack.register("m2", OTHER_MAC, OTHER_IP)
    assert (await rack.ask(SCRIPT, ip=OTHER_IP)).status == 403, "at another one's address it gets nothing"
    assert rack.lines() == []


async def test_unregistered_machine_whose_address_is_known_gets_its_own_script_and_no_other(other_rack):
    async with other_rack(mode=DhcpMode.AUTO_PROXY, default_osie=("default", "lab")) as rack:
        rack.callers.learn(MAC, IP)
        own = await rack.ask(SCRIPT)
        assert own.status == 200
        assert "/osie/lab/kernel" in own.text
        assert (await rack.ask(f"/ipxe/script/{OTHER_MAC}/auto.ipxe")).status == 403


async def test_script_of_another_machine_is_refused_and_the_attempt_shown(two):
    for _ in range(3):
        reply = await two.ask(SCRIPT, ip=OTHER_IP, X_Forwarded_For=IP)
        assert (reply.status, reply.text) == (403, "this script is served to its own machine only\n")
    message = "script request from 127.0.0.6, but the machine's address is 127.0.0.5"
    assert two.lines() == [(Step.SCRIPT, Outcome.REFUSED, message)]


async def test_script_of_one_interface_is_not_for_another_one_of_the_same_machine(rack):
    rack.register(networkInterfaces={MAC: {"dhcp": {"ip": IP}}, OTHER_MAC: {"dhcp": {"ip": OTHER_IP}}})
    # It names the interface that the installation goes on with.
    assert [(await rack.ask(SCRIPT, ip=ip)).status for ip in (IP, OTHER_IP)] == [200, 403]


async def test_machine_without_an_address_is_not_identified_by_address(rack):
    rack.register(ip=None)
    assert (await rack.ask(SCRIPT)).status == 403
    assert rack.lines()[0][2].endswith("but the machine's Hardware has no address")


@pytest.mark.parametrize(
    ("spec", "outcome", "reason"),
    [
        ({"osie": None}, Outcome.FAILED, "Hardware default/m1: spec.osie.name is not set"),
        ({"osie": {"name": "gone"}}, Outcome.FAILED, "OSIE default/gone, which Hardware m1 names, does not exist"),
        ({"kernelParams": ["a\nb"]}, Outcome.FAILED, "Hardware default/m1: spec.kernelParams[0] has a line break"),
        (
            {"interface": {"disableNetboot": True}},
            Outcome.REFUSED,
            f"Hardware default/m1: spec.networkInterfaces[{MAC}].disableNetboot is true",
        ),
    ],
)
async def test_machine_that_cannot_boot_shows_why_and_goes_on(rack, spec, outcome, reason):
    rack.register(**spec)
    reply = await rack.ask(SCRIPT)
    assert reply.status == 200
    assert f"echo {reason}" in reply.text
    assert reply.text.endswith("exit 1\n")
    ((step, recorded, message),) = rack.lines()
    assert (step, recorded) == (Step.SCRIPT, outcome)
    assert message.startswith(f"no boot: {reason}")


# --- boot programs ---


@pytest.mark.parametrize("path", [f"/ipxe/binary/{MAC}/snponly.efi", "/ipxe/binary/snponly.efi"])
async def test_uefi_http_boot_gets_the_headers_that_it_needs(rack, path):
    rack.register()
    head = await rack.ask(path, method="HEAD")
    reply = await rack.ask(path)
    assert head.status == reply.status == 200
    assert head.headers["Content-Length"] == reply.headers["Content-Length"] == str(len(reply.body)) == "1002"
    assert reply.headers["Content-Type"] == "application/efi"
    assert head.headers["ETag"] == reply.headers["ETag"] == '"b1"'
    assert "Cache-Control" not in reply.headers  # the same for all: a proxy may keep it
    # The shim, what it asks for next, and what is not there.
    rack.binaries["snponly-x86_64-sb-shim.efi"] = rack.binaries["snponly-x86_64-sb.efi"] = rack.binaries["snponly.efi"]
    for name in ("snponly-x86_64-sb-shim.efi", "snponly-x86_64-sb.efi", "grub.efi"):
        other = await rack.ask(path.replace("snponly.efi", name))
        assert other.status == (200 if name in rack.binaries else 404)
    sent = "boot program snponly.efi sent over HTTP: 1.0 kB"
    assert rack.lines()[0] == (Step.BINARY, Outcome.OK, sent)
    assert rack.lines()[-1] == (Step.BINARY, Outcome.FAILED, "there is no boot program grub.efi")


async def test_uefi_http_boot_resumes_where_it_broke_off(rack):
    rack.register()
    path = "/ipxe/binary/snponly.efi"
    reply = await rack.ask(path, Range="bytes=1000-", If_Match='"b1"')
    assert (reply.status, reply.headers["Content-Range"], reply.body) == (206, "bytes 1000-1001/1002", b"\0\0")
    assert (await rack.ask(path, Range="bytes=1000-", If_Match='"b0"')).status == 412
    beyond = await rack.ask(path, Range="bytes=2000-")
    assert (beyond.status, beyond.headers["Content-Range"]) == (416, "bytes */1002")
    assert (await rack.ask(path, If_None_Match='"b1"')).status == 304


async def test_boot_program_is_for_the_machine_that_the_path_names_wherever_it_asks_from(rack):
    path = f"/ipxe/binary/{MAC}/snponly.efi"
    reply = await rack.ask(path)
    assert (reply.status, reply.text) == (403, "no netboot: no Hardware has this MAC address\n")
    rack.register()
    rack.register("m2", OTHER_MAC, OTHER_IP, interface={"disableNetboot": True})
    for mac, name, method, status in (
        (MAC, "snponly.efi", "GET", 200),
        (OTHER_MAC, "snponly.efi", "GET", 403),
        (OTHER_MAC, "netboot-not-allowed", "HEAD", 403),  # what a refused ROM asks for
        (OTHER_MAC, "netboot-not-allowed", "GET", 403),
    ):
        for ip in ("127.0.0.77", IP):
            assert (await rack.ask(f"/ipxe/binary/{mac}/{name}", ip=ip, method=method)).status == status
    assert {line[:2] for line in rack.lines(OTHER_MAC)} == {(Step.BINARY, Outcome.REFUSED)}


@pytest.mark.parametrize("path", ["/ipxe/binary/autoexec.ipxe", f"/ipxe/binary/{MAC}/autoexec.ipxe"])
async def test_new_ipxe_is_shown_the_way_to_its_script(rack, path):
    assert (await rack.ask(path)).status == 403
    rack.register()
    reply = await rack.ask(path)
    assert reply.status == 200
    assert f"chain --replace http://127.0.0.1:7080/ipxe/script/{MAC}/auto.ipxe ||" in reply.text
    head = await rack.ask(path, method="HEAD")
    assert head.headers["Content-Length"] == str(len(reply.body))
    rack.register(interface={"disableNetboot": True})
    assert (await rack.ask(path)).status == 403


# --- GRUB, and OSIEs that were started without words ------------------------------------------------------------------


async def test_grub_that_came_by_http_gets_the_script_of_the_machine_that_asks_and_no_other(two):
    length = (await two.ask("/grub/grub.cfg", method="HEAD")).headers["Content-Length"]
    assert two.lines() == []  # GRUB asks for the length first
    paths = [
        "/grub/grub.cfg",
        f"/grub/grub.cfg-01-{DASHED}",
        "//grub//grub.cfg",
        "/grub.cfg",
        "/EFI/BOOT/grub.cfg-0A00",
    ]
    paths += [f"/ipxe/binary/{MAC}//grub.cfg", f"/ipxe/binary/{DASHED}/grub.cfg-01-{DASHED}", "/ipxe/binary/grub.cfg-0"]
    for path in paths:
        reply = await two.ask(path)
        assert (reply.status, reply.headers["Cache-Control"], len(reply.body)) == (200, "no-store", int(length))
        assert "if linux '(http,127.0.0.1:7080)/osie/lab/kernel' " in reply.text
        assert "(tftp," not in reply.text
    assert two.lines() == [(Step.SCRIPT, Outcome.OK, "script sent: OSIE default/lab")] * len(paths)
    assert f"'worker_id={OTHER_MAC}'" in (await two.ask("/grub/grub.cfg", ip=OTHER_IP)).text
    for path in (f"/grub/grub.cfg-01-{DASHED}", f"/EFI/BOOT/grub.cfg-{MAC}", f"/ipxe/binary/{MAC}/grub.cfg"):
        assert (await two.ask(path, ip=OTHER_IP)).status == 403
    own = OTHER_MAC.replace(":", "-")
    assert (await two.ask(f"/ipxe/binary/{MAC}/grub.cfg-01-{own}", ip=OTHER_IP)).status == 403
    assert (await two.ask("/grub/grub.cfg", ip=UNKNOWN_IP)).status in (403, 404)


async def test_grub_shows_why_its_machine_may_not_netboot_and_why_its_kernel_did_not_come(rack):
    rack.register(interface={"disableNetboot": True})
    assert "disableNetboot is true'" in (await rack.ask("/grub/grub.cfg")).text
    rack.register()
    rack.upstream.mode = "404"
    await rack.ask("/osie/lab/kernel")
    assert "404" in (await rack.ask("/grub/why.cfg")).text


@pytest.mark.parametrize("name", ["x86_64-efi/command.lst", "fonts/unicode.pf2", "grub.cfg-x", "x86_64-efi/http.mod"])
async def test_optional_files_of_grub_are_no_event(rack, name):
    rack.register()
    reply = await rack.ask(f"/grub/{name}")
    assert (reply.status, reply.body) == (200 if name.endswith(".lst") else 404, b"")
    assert rack.lines() == []


async def test_osie_that_was_started_without_words_gets_those_of_its_machine_by_its_address(two):
    reply = await two.ask("/auto/parameters")
    assert (reply.status, reply.headers["Cache-Control"]) == (200, "no-store")
    words = reply.text.split()
    assert words[0] == "grpc_authority=127.0.0.1:42113"
    assert {f"worker_id={MAC}", f"hw_addr={MAC}", "quiet"} < set(words)
    assert "initrd=initrd" not in words
    assert f"worker_id={OTHER_MAC}" in (await two.ask("/auto/parameters", ip=OTHER_IP)).text
    assert (await two.ask("/auto/parameters", ip=UNKNOWN_IP)).status == 404
    assert [line[2] for line in two.lines()] == ["the OSIE has requested its parameters"]


async def test_osie_of_a_machine_without_netboot_or_parameters_gets_the_reason(rack):
    for spec, status, outcome, why in (
        ({"interface": {"disableNetboot": True}}, 403, Outcome.REFUSED, "disableNetboot is true"),
        ({"kernelParams": ["x=${mac}"]}, 404, Outcome.FAILED, "has a setting of iPXE in it"),
    ):
        rack.register(**spec)
        reply = await rack.ask("/auto/parameters")
        assert (reply.status, why in reply.text) == (status, True)
        assert rack.lines()[-1][:2] == (Step.SCRIPT, outcome)


async def test_unified_kernel_image_is_sent_as_a_program_for_uefi(rack):
    rack.register()
    missing = await rack.ask("/osie/lab/uki.efi")
    assert (missing.status, "tinkerbell.org/uki-url] is not set" in missing.text) == (404, True)
    url = rack.osies["default", "lab"]["spec"]["kernelUrl"]
    rack.osies["default", "lab"]["metadata"]["annotations"] = {"tinkerbell.org/uki-url": url}
    reply = await rack.ask("/osie/lab/uki.efi")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/efi")
    assert reply.body == rack.upstream.content
    last = rack.ends()[-1]
    assert (last.step, last.outcome, last.detail["uki"]) == (Step.BINARY, Outcome.OK, "yes")
    assert last.message.startswith("UKI of OSIE default/lab sent: 4.2 MB")
    rack.osies["default", "lab"]["metadata"]["annotations"]["tinkerbell.org/uki-sha256"] = "0" * 64
    with pytest.raises(aiohttp.ClientPayloadError):  # the end of what is wrong is withheld
        await rack.ask("/osie/lab/uki.efi")


# --- signs of life: what iPXE and the OSIE say on the way ---


@pytest.mark.parametrize(
    ("below", "above", "mib"),
    [
        ("00000000ffff0700", "", 512),  # as QEMU says it, to both of Debian's iPXEs
        ("00000000ffff2f00", "00004000ffff0700", None),  # one that ends before it begins
        ("00000000ffff2f00", "00004000ffff4f00", 4096),  # a second one, above 4 GiB
        ("00000000ffffffff", "", None),  # SMBIOS 2.7: the addresses stand elsewhere
        ("", "", None),
        ("ffff", "", None),
        ("x" * 16, "", None),
        ("00000000ffff0700", "zz", None),
    ],
)
async def test_report_of_ipxe_before_the_kernel_is_on_the_journey(rack, below, above, mib):
    rack.register()
    reply = await rack.ask(f"/sign/starting?model=Maker%20Model&uuid=u&memory={below}&above={above}")
    assert (reply.status, reply.text) == (200, "ok\n")
    (event,) = rack.journey.events(MAC)
    assert (event.step, event.outcome, event.message) == (Step.BOOT, Outcome.INFO, "iPXE starts the kernel")
    memory = {} if mib is None else {"memory_bytes": mib << 20}
    assert event.detail == {"phase": "starting", "model": "Maker Model", "uuid": "u", **memory}


@pytest.mark.parametrize(
    ("clock", "ahead"), [("0", True), ("9999999999", True), ("0x5c3f1b00", True), ("", False), ("10h", False)]
)
async def test_clock_of_a_machine_is_compared_with_ours(rack, clock, ahead):
    rack.register()
    assert (await rack.ask(f"/sign/starting?clock={clock}")).status == 200
    (event,) = rack.journey.events(MAC)
    assert ("clock_ahead_seconds" in event.detail) is ahead
    if ahead:
        assert abs(int(event.detail["clock_ahead_seconds"]) + event.time - int(clock, 0)) < 60


async def test_sign_of_an_unknown_machine_is_refused(rack):
    rack.register()
    assert (await rack.ask("/sign/up", ip="127.0.0.9")).status == 403
    assert (await rack.ask("/sign/down")).status == 404
    assert rack.journey.events(MAC) == []


# --- whatever the path ---


async def test_health_is_of_the_process_and_readiness_of_the_service(rack):
    assert (await rack.ask("/healthz")).text == "ok\n"
    assert (await rack.ask("/readyz")).text == "ok\n"
    rack.problem = "Hardware not synced"
    reply = await rack.ask("/readyz")
    assert (reply.status, reply.text) == (503, "not ready: Hardware not synced\n")
    assert (await rack.ask("/healthz")).status == 200


async def test_no_listing_and_nothing_of_the_operators_port_and_a_wrong_method_names_the_right_one(rack):
    rack.register()
    for path in ("/osie", "/osie/lab/", "/ipxe/binary/", "/api/v1/machines", "/metrics", "/x"):
        reply = await rack.ask(path)
        assert (reply.status, reply.text) == (404, "not found\n")
    reply = await rack.ask("/osie/lab/kernel", method="DELETE")
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
    assert (await rack.ask(f"/phone-home/{MAC}")).headers["Allow"] == "POST"


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def test_browser_is_led_from_the_machines_port_to_the_page_and_learns_nothing_else(rack):
    rack.register()
    for path in ("/", "/favicon.ico", "/x/y"):
        reply = await rack.ask(path, Accept=BROWSER)
        assert (reply.status, reply.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
        assert "'tinkedge page' on the host prints a link" in reply.text
        assert reply.headers["Content-Security-Policy"] == "default-src 'none'"
    plain = await rack.ask("/")
    assert (plain.status, plain.text[:22]) == (404, "not found: This port o")
    assert "'tinkedge page'" in plain.text
    assert (await rack.ask("/x")).text == "not found\n"
