"""Boot media over HTTP: who gets one, that any part of it is right, and what the journey says."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edge.callers import MediumTokens, MetadataTokens
from edge.journey.events import Outcome, Step
from edge.machines import DhcpMode
from tests.support.objects import MAC, OTHER_MAC
from tests.unit.http.conftest import IP, OTHER_IP, OtherRack, Rack
from tests.unit.ipxe_medium import parts

BMC_IP = "127.0.0.9"
BOOT = f"/iso/{MAC}/boot.iso"
STATIC = {"netmask": "255.0.0.0", "gateway": "127.0.0.1"}


@pytest.fixture
def ipxe_dir(tmp_path: Path) -> Path:
    """The parts of boot media."""
    return parts.fill(tmp_path / "ipxe")


def register(rack: Rack, **dhcp: Any) -> None:
    """A machine with a whole reservation."""
    rack.register(interface={"dhcp": {"ip": IP, **STATIC, **dhcp}})


@pytest.fixture
async def media(ipxe_dir: Path, other_rack: OtherRack) -> AsyncIterator[Rack]:
    async with other_rack(ipxe_dir=ipxe_dir) as rack:
        register(rack)
        yield rack


def signed(rack: Rack, mac: str = MAC, **settings: Any) -> str:
    return f"/iso/{MediumTokens(rack.keys, **settings).mint(mac)}"


async def test_machine_gets_its_own_medium_which_leads_to_its_script(media):
    reply = await media.ask(BOOT)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/x-iso9660-image")
    chain = f"chain --replace http://127.0.0.1:7080/ipxe/script/{MAC}/auto.ipxe?medium=boot"
    assert reply.body.count(chain.encode()) == 2
    stick = await media.ask(f"/iso/{MAC.replace(':', '-')}/boot.img")
    assert (stick.body, stick.headers["Content-Type"]) == (reply.body, "application/octet-stream")
    static = await media.ask(f"/iso/{MAC}/static.iso")
    assert static.body.count(b"set ${medium-port}/ip 127.0.0.5\n") == 2
    assert len(static.body) == len(reply.body)
    assert static.headers["ETag"] != reply.headers["ETag"]
    assert media.lines()[0] == (Step.MEDIUM, Outcome.OK, "boot medium boot.iso of 129.0 kB is sent to the machine")


async def test_bmc_gets_it_by_the_signed_url_and_the_journey_names_it_once(media):
    for _ in range(3):
        assert (await media.ask(f"{signed(media)}/static.iso", ip=BMC_IP)).status == 200
    ((step, outcome, message),) = media.lines()
    assert (step, outcome) == (Step.MEDIUM, Outcome.OK)
    assert message == "boot medium static.iso of 129.0 kB is sent to 127.0.0.9, by its signed URL"
    assert media.journey.events(MAC)[0].detail == {"medium": "static", "from": BMC_IP}


async def test_others_get_none_and_the_attempt_is_shown(media):
    media.register("m2", OTHER_MAC, OTHER_IP)
    for _ in range(3):
        reply = await media.ask(f"/iso/{MAC}/static.iso", ip=OTHER_IP, X_Forwarded_For=IP)
        assert (reply.status, b"127.0.0.5" in reply.body) == (403, False)
    for method in ("GET", "HEAD"):
        assert (await media.ask(BOOT, ip=BMC_IP, method=method)).status == 403
    assert [line[:2] for line in media.lines()] == [(Step.MEDIUM, Outcome.REFUSED)] * 2
    assert "from 127.0.0.6, which is not known to be this machine, without a signed URL" in media.lines()[0][2]


async def test_only_a_good_token_of_media_opens_and_it_opens_nothing_else(media, tmp_path):
    ended = signed(media, lifetime=1, clock=lambda: 1000.0)
    metadata = f"/iso/{MetadataTokens(media.keys).mint(MAC)}"
    good = signed(media)
    for path in (ended, metadata, good[:-1], good[:5] + "525400000002" + good[17:], "/iso/I1.x"):
        reply = await media.ask(f"{path}/boot.iso", ip=BMC_IP)
        assert (reply.status, reply.text[:30]) in ((403, "the token in this path is not "), (404, "not found\n")), path
    assert "it ended at" in (await media.ask(f"{ended}/boot.iso", ip=BMC_IP)).text
    for path in (f"/machine{good[4:]}/2009-04-04/meta-data/instance-id", f"/nocloud{good[4:]}/user-data"):
        assert (await media.ask(path, ip=BMC_IP)).status in (403, 404)
    assert (await media.ask(f"{good}/boot.iso", ip=BMC_IP)).status == 200
    assert (await media.ask(f"{signed(media, OTHER_MAC)}/boot.iso", ip=BMC_IP)).status == 403


async def test_there_is_nothing_under_other_names(media):
    for name in ("other.iso", "boot.iso.gz", "boot", "boot.exe", "static", "boot.iso/x"):
        assert (await media.ask(f"/iso/{MAC}/{name}")).status == 404
    assert (await media.ask(BOOT, method="PUT")).status == 405
    assert (await media.ask("/iso/someone/boot.iso")).status == 404


async def test_head_ranges_and_conditions_are_those_of_a_file(media):
    whole = await media.ask(BOOT)
    size, etag = len(whole.body), whole.headers["ETag"]
    head = await media.ask(BOOT, method="HEAD")
    assert (head.status, int(head.headers["Content-Length"]), head.headers["Accept-Ranges"]) == (200, size, "bytes")
    assert head.headers["ETag"] == etag
    for start in range(0, size - 4096, 8192):  # sectors and runs of them, as firmware makes a BMC read
        end = start + random.Random(start).choice((2048, 4096, 32768))
        part = await media.ask(BOOT, Range=f"bytes={start}-{end - 1}", If_Range=etag)
        assert (part.status, part.body) == (206, whole.body[start:end])
        assert part.headers["Content-Range"] == f"bytes {start}-{min(end, size) - 1}/{size}"
    assert (await media.ask(BOOT, Range=f"bytes={size}-")).status == 416
    assert (await media.ask(BOOT, If_None_Match=etag)).status == 304
    register(media, vlanId="7")
    assert (await media.ask(BOOT, If_Match=etag)).status == 412, "another Hardware, another image"
    changed = await media.ask(BOOT, Range="bytes=2048-4095", If_Range=etag)
    assert (changed.status, len(changed.body)) == (200, size)


async def test_static_medium_without_an_address_names_the_missing_field(media):
    media.register()
    reply = await media.ask(f"/iso/{MAC}/static.iso")
    field = f"Hardware default/m1: spec.networkInterfaces[{MAC}].dhcp"
    assert (reply.status, reply.text) == (404, f"{field} needs ip and netmask, for a medium that does without DHCP\n")
    assert media.lines()[0][:2] == (Step.MEDIUM, Outcome.FAILED)


async def test_host_without_the_parts_of_media_names_the_packages_to_install(tmp_path, other_rack):
    async with other_rack(ipxe_dir=tmp_path / "empty") as rack:
        rack.register()
        reply = await rack.ask(BOOT)
        assert (reply.status, "install the package ipxe" in reply.text) == (503, True)
        assert rack.lines()[0][:2] == (Step.MEDIUM, Outcome.FAILED)
        parts.fill(tmp_path / "empty")
        assert (await rack.ask(BOOT)).status == 200, "mended without a restart"


async def test_script_for_a_medium_names_it_and_gives_the_osie_its_address(media):
    path = f"/ipxe/script/{MAC}/auto.ipxe"
    assert " ipam=52-54-00-00-00-01::127.0.0.5:255.0.0.0:" in (await media.ask(f"{path}?medium=static")).text
    assert " ipam=" not in (await media.ask(f"{path}?medium=boot")).text
    assert " ipam=" not in (await media.ask(f"{path}?medium=other")).text
    assert [line[2] for line in media.lines()] == [
        "script sent to its boot medium, with the address of its Hardware: OSIE default/lab",
        "script sent to its boot medium, with a lease: OSIE default/lab",
        "script sent: OSIE default/lab",
    ]


async def test_unregistered_machine_gets_a_medium_if_such_machines_may_netboot(ipxe_dir, other_rack):
    default = {"mode": DhcpMode.AUTO_PROXY, "default_osie": ("default", "lab")}
    async with other_rack(ipxe_dir=ipxe_dir, nearest={IP: "10.0.0.1"}.__getitem__, **default) as rack:
        rack.callers.learn(MAC, IP)
        assert (await rack.ask(BOOT)).status == 200
        assert (await rack.ask(f"/iso/{OTHER_MAC}/boot.iso")).status == 403
        rack.register()  # the medium names the edge's address in the machine's network
        assert b"chain --replace http://10.0.0.1:7080/ipxe/" in (await rack.ask(BOOT)).body
    async with other_rack(ipxe_dir=ipxe_dir) as rack:
        assert (await rack.ask(BOOT)).status == 403
