"""Identification of callers by address, path, header, proxy or token: all attempts to be taken for another machine."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.callers import ForwardedError, MetadataTokens, inside, token_keys
from edge.callers.addresses import forwarded_for
from edge.journey.events import Outcome, Step
from edge.machines import DhcpMode
from hegel import imds
from tests.support.objects import MAC, OTHER_MAC
from tests.unit.http.conftest import (
    IP,
    MODES,
    NAT,
    OTHER_IP,
    PROXIES,
    PROXY,
    SECOND_PROXY,
    SPARE_MAC,
    STRANGER,
    TRUSTED,
    Rack,
    fill,
    hardware,
    tokens,
)

USER_DATA = "/latest/user-data"
GET_USER_DATA = b"GET /latest/user-data HTTP/1.1\r\nHost: e\r\n"
THIRD_MAC = "52:54:00:00:00:03"
SHARING_MAC, LONE_MAC = "52:54:00:00:00:0b", "52:54:00:00:00:0e"


async def raw(rack: Rack, request: bytes, ip: str = OTHER_IP) -> bytes:
    return await rack.exchange(request, ip, half_close=True)


# --- ways in: paths -------------------------------------------------------------------------------------------------

_WHO = [
    *("m1", "M1", "m1%00", "m1%20", "m1;m2", "m1%0d%0a", "./m1", "//m1", "m1/", "m1?m2", "m1%23", "*"),
    *(MAC, MAC.upper(), *(MAC.replace(":", sign) for sign in ("-", "", "%3A", "%253A"))),
    *("default%2Fm1", "default/m1", "m2%2F..%2Fm1", "m2/../m1", "m2/%2e%2e/m1", "m2/.%2e/m1"),
    *("m2\\..\\m1", "m2%5C..%5Cm1", "m2%00/../m1", "m" * 3000 + "/../m1", "\u0661".encode().decode("latin-1")),
]
_PATHS = [
    *(f"/nocloud/{{}}/{name}" for name in ("user-data", "meta-data", "vendor-data", "network-config")),
    *("/machine/{}/latest/user-data", "/machine/{}/latest/meta-data/", "/machine/{}/2009-04-04/meta-data/instance-id"),
    *("/machine/{}/metadata", "/ipxe/script/{}/auto.ipxe", "/ipxe/script/{}/auto.ipxe?failed"),
    *("/ipxe/binary/{}/autoexec.ipxe", "/latest/../nocloud/{}/user-data", "/latest/%2e%2e/nocloud/{}/user-data"),
    "//nocloud//{}//user-data",
]


@pytest.mark.parametrize("mode", MODES)
async def test_no_spelling_of_a_path_leads_to_another_machine(other_rack, mode):
    # A connection for each name, which ends at the first path that aiohttp can't read, and one for some paths.
    targets = [[path.format(who) for path in _PATHS] for who in _WHO]
    targets += [[path.format(who)] for path in _PATHS[::3] for who in _WHO if mode is MODES[0]]
    async with other_rack(mode=mode) as rack:
        fill(rack)
        for sender in (OTHER_IP, STRANGER):
            for paths in targets:
                gets = [f"GET {path} HTTP/1.1\r\nHost: e\r\n\r\n".encode("latin-1") for path in paths]
                answer = await raw(rack, b"".join(gets) + b"GET /healthz HTTP/1.1\r\nHost: e\r\n\r\n", sender)
                assert answer.startswith(b"HTTP/1.")
                assert not [word for word in (b"secret-of-m1", b"secret-of-spare", b" 500 ") if word in answer]


async def test_a_hardware_of_the_same_name_in_another_namespace_is_another_machine(machines):
    other = hardware("m1", THIRD_MAC, "127.0.0.7", namespace="other", instance=None)
    machines.inventory.apply(other)
    reply = await machines.ask("/nocloud/m1/user-data", ip="127.0.0.7")
    assert (reply.status, reply.body) == (200, b"")
    assert (await machines.ask(f"/nocloud/{MAC}/user-data", ip="127.0.0.7")).status == 403


async def test_own_name_and_macs_of_all_interfaces_lead_to_oneself_in_every_room(machines):
    second = "52:54:00:00:00:0b"
    machines.inventory.apply(hardware("m1", MAC, IP, interfaces={MAC: {"dhcp": {"ip": IP}}, second: {}}))
    digits = MAC.replace(":", "")
    written = (MAC.upper(), MAC.replace(":", "-"), MAC.replace(":", "%3A"), MAC.replace(":", "."), digits)
    for who in ("m1", MAC, second, *written, f"{digits[:4]}.{digits[4:8]}.{digits[8:]}"):
        for path in (f"/nocloud/{who}/user-data", f"/machine/{who}/latest/user-data"):
            for headers in ({}, {"X_Anything": "slow"}):
                assert (await machines.ask(path, **headers)).text == "secret-of-m1"
        assert (await machines.ask(f"/machine/{who}/metadata")).status == 200
        assert (await machines.ask(f"/phone-home/{who}", method="POST", data={"hostname": "h"})).status == 200


@pytest.mark.parametrize("name", ["525400aabbcc", "52-54-00-aa-bb-cc"])
async def test_hardware_that_is_named_by_another_mac_is_known_by_its_name(machines, name):
    machines.inventory.remove(hardware("m1", MAC, IP))
    machines.inventory.apply(hardware(name, MAC, IP))
    for headers in ({}, {"X_Anything": "slow"}):
        assert (await machines.ask(f"/nocloud/{name}/user-data", **headers)).text == f"secret-of-{name}"


# --- ways in: headers and request lines -----------------------------------------------------------------------------

_HEADERS = [
    *([("X-Forwarded-For", value)] for value in (IP, f"{IP}, {IP}", f"::ffff:{IP}", f"[::ffff:{IP}]:80", "garbage")),
    *([(name, IP)] for name in ("X-Real-IP", "Host")),
    [("X-Forwarded-For", IP), ("X-Forwarded-For", IP)],
    [("x-forwarded-for", f"{IP}:80")],
    [("Forwarded", f"for={IP};host={IP}")],
    [("X-Client-IP", IP), ("True-Client-IP", IP), ("CF-Connecting-IP", IP)],
    [("X-Original-URL", "/nocloud/m1/user-data"), ("X-Rewrite-URL", "/nocloud/m1/user-data")],
    [("X-HTTP-Method-Override", "PUT")],
    [("X-Metadata-Token", "x"), ("Authorization", "Bearer x"), ("Cookie", f"mac={MAC}")],
    [("Via", IP), ("X-Forwarded-Host", IP), ("X-Forwarded-Proto", "https")],
]


@pytest.mark.parametrize("mode", MODES)
async def test_no_header_makes_one_machine_another(other_rack, mode):
    async with other_rack(mode=mode, trusted=TRUSTED) as rack:
        fill(rack)
        for headers in _HEADERS:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
            for path in ("/latest/user-data", "/metadata", "/nocloud/m2/user-data"):
                host = "" if headers[0][0] == "Host" else "Host: e\r\n"
                request = f"GET {path} HTTP/1.1\r\nConnection: close\r\n{host}{lines}\r\n".encode()
                own, strange = await asyncio.gather(raw(rack, request), raw(rack, request, STRANGER))
                assert b"secret-of-m1" not in own + strange
                assert b"secret-of-m2" in own
                assert strange.startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    ("request_line", "own"),
    [
        (b"GET http://127.0.0.5/latest/user-data HTTP/1.1", True),
        (b"GET http://m1:7080/latest/user-data HTTP/1.1", True),
        (b"GET http://m1@127.0.0.5/latest/user-data HTTP/1.1", True),
        (b"GET //m1/latest/user-data HTTP/1.1", False),
        (b"GET http://other/nocloud/m1/user-data HTTP/1.1", False),
        (b"GET file:///latest/user-data HTTP/1.1", None),
        (b"GET /latest/user-data HTTP/1.0", True),
        (b"GET /nocloud/m1/user-data HTTP/1.0", False),
        (b"GET /latest/user-data HTTP/0.9", None),
        (b"GET /latest/user-data HTTP/2.0", None),
        (b"GET /nocloud/m1/user-data", False),
        (b"GET /latest/user-data", None),
        (b"CONNECT m1:80 HTTP/1.1", False),
        (b"CONNECT 127.0.0.5:7080 HTTP/1.1", False),
        (b"OPTIONS * HTTP/1.1", False),
        (b"TRACE /latest/user-data HTTP/1.1", False),
        (b"PROPFIND /latest/user-data HTTP/1.1", False),
        (b"POST /latest/user-data HTTP/1.1", False),
        (b"GET latest/user-data HTTP/1.1", None),
        (b"GET \\latest\\user-data HTTP/1.1", False),
        (b"GET /latest/user-data#/nocloud/m1/user-data HTTP/1.1", None),
        (b"GET /latest/user-data?/../../nocloud/m1/user-data HTTP/1.1", True),
        (b"GET /nocloud/m1/user-data\x00 HTTP/1.1", False),
        (b"GET /nocloud/m1\xff/user-data HTTP/1.1", False),
    ],
)
async def test_no_form_of_request_line_leads_to_another_machine(machines, request_line, own):
    answer = await raw(machines, request_line + b"\r\nHost: e\r\nConnection: close\r\n\r\n")
    assert b"secret-of-m1" not in answer
    if own is not None:
        assert (b"secret-of-m2" in answer) is own
    assert not answer.startswith(b"HTTP/1.1 500")


async def test_pipelined_requests_are_all_from_the_same_machine(machines):
    request = b"".join(
        b"GET %s HTTP/1.1\r\nHost: e\r\n%s\r\n" % (path, header)
        for path in (b"/latest/user-data", b"/nocloud/m1/user-data", b"/latest/meta-data/instance-id")
        for header in (b"", b"X-Forwarded-For: 127.0.0.5\r\n", b"Content-Length: 0\r\n")
    )
    answer = await raw(machines, request)
    assert answer.count(b"HTTP/1.1 ") == 9
    assert (answer.count(b"secret-of-m2"), answer.count(b"secret-of-m1")) == (6, 0)


async def test_smuggled_request_is_the_senders_own(machines):
    inner = b"GET /nocloud/m1/user-data HTTP/1.1\r\nHost: e\r\nX-Forwarded-For: 127.0.0.5\r\n\r\n"
    for framing in (
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % len(inner),
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(inner),
        b"Content-Length: %d\r\n" % len(inner),
    ):
        assert b"secret-of-m1" not in await raw(machines, GET_USER_DATA + framing + b"\r\n0\r\n\r\n" + inner)


async def test_log_names_the_machine_whose_metadata_was_refused(machines, caplog):
    for whom, ip, who in ((OTHER_MAC, IP, "m1"), ("m1", OTHER_IP, "m2")):
        assert (await machines.ask(f"/nocloud/{whom}/user-data", ip=ip)).status == 403
        assert f" request as {whom}, but this address is that of default/{who}" in caplog.text


async def test_connection_that_stays_open_does_not_keep_an_address_that_was_taken_away(machines):
    connection, other = await machines.connect(), hardware("m9", "52:54:00:00:00:09", IP)
    for headers in (b"", b"X-Anything: slow\r\n"):  # on the fast path first, then by aiohttp
        for change, kept, found in (
            (machines.inventory.apply, hardware("m1", MAC, IP), b"secret-of-m1"),
            (machines.inventory.apply, hardware("m1", MAC, "127.0.0.50"), b"404"),
            (machines.inventory.apply, other, b"secret-of-m9"),
            (machines.inventory.remove, other, b"404"),
        ):
            change(kept)
            answer = await connection.ask(GET_USER_DATA + headers + b"\r\n")
            assert found in answer
            assert (b"secret" in answer) is (b"secret" in found)


async def test_another_machines_neighbour_entry_wins_over_the_reserved_address(other_rack):
    async with other_rack(mode=DhcpMode.PROXY) as rack:
        fill(rack)
        rack.callers.learn(OTHER_MAC, IP)  # m2 has got m1's address from the other DHCP server
        assert (await rack.ask("/latest/user-data", ip=IP)).text == "secret-of-m2"
        assert (await rack.ask("/nocloud/m1/user-data", ip=IP)).status == 403
        rack.callers.learn(SPARE_MAC, "127.0.0.8")
        assert (await rack.ask("/latest/user-data", ip="127.0.0.8")).text == "secret-of-spare"


class Links:
    """The hosts on the links by address. An empty MAC: the kernel does not know it now."""

    def __init__(self) -> None:
        self.macs: dict[str, str] = {}

    def mac(self, ip: str, _interface: str = "") -> str | None:
        return self.macs.get(ip) or None

    def on_link(self, ip: str, _interface: str = "") -> bool:
        return ip in self.macs

    def link(self, ip: str) -> str:
        return "srv0" if ip in self.macs else ""


async def test_connection_stops_being_the_machines_when_another_has_its_address(other_rack):
    links = Links()
    async with other_rack(neighbours=links) as rack:
        connection = await fill(rack).connect()
        for headers in (b"", b"X-Anything: slow\r\n"):
            for mac, status in ((MAC, b"200"), (OTHER_MAC, b"403"), (MAC, b"200"), ("", b"503"), (MAC, b"200")):
                links.macs[IP] = mac
                rack.callers.changed(IP)
                answer = await connection.ask(GET_USER_DATA + headers + b"\r\n")
                assert answer.startswith(b"HTTP/1.1 " + status)
                assert answer.endswith(b"\r\n\r\nsecret-of-m1") is (mac == MAC)


@pytest.mark.parametrize("mac", [OTHER_MAC, "52:54:00:99:99:99"])
async def test_second_address_opens_no_way_by_nat_nor_to_a_session_token_but_a_signed_url_does(other_rack, mac):
    links = Links()
    links.macs[IP] = mac
    trusted = replace(TRUSTED, nat=(ipaddress.IPv4Network("127.0.0.0/8"),))
    async with other_rack(neighbours=links, trusted=trusted) as rack:
        fill(rack)
        for who in (MAC, OTHER_MAC, SPARE_MAC):
            assert (await rack.ask(f"/machine/{who}/latest/user-data")).status == 403
        assert (await session(rack)).status == 403
        token = tokens(rack).mint(MAC)
        assert (await rack.ask(f"/machine/{token}/latest/user-data")).text == "secret-of-m1"


async def test_forwarded_address_on_our_link_needs_no_entry_of_the_kernel(other_rack):
    """The machine talks to the proxy, and perhaps never to us."""
    links = Links()
    links.macs[IP] = ""
    async with other_rack(neighbours=links, trusted=TRUSTED) as rack:
        fill(rack)
        assert (await rack.ask("/latest/user-data", ip=PROXY, X_Forwarded_For=IP)).text == "secret-of-m1"
        links.macs[IP] = OTHER_MAC
        assert (await rack.ask("/latest/user-data", ip=PROXY, X_Forwarded_For=IP)).status == 403
        assert (await rack.ask("/latest/user-data", ip=PROXY, X_Forwarded_For="2001:db8::1")).status == 404


async def test_machine_whose_interfaces_share_an_address_is_known_there_and_boots_by_each(machines):
    both = {mac: {"dhcp": {"ip": OTHER_IP}} for mac in (OTHER_MAC, SHARING_MAC)} | {LONE_MAC: {}}
    machines.inventory.apply(hardware("m2", OTHER_MAC, OTHER_IP, interfaces=both))
    assert (await machines.ask(USER_DATA, ip=OTHER_IP)).text == "secret-of-m2"
    for path in ("/ipxe/script/{}/auto.ipxe", "/grub/grub.cfg-01-{}"):
        for mac, status in ((OTHER_MAC, 200), (SHARING_MAC, 200), (LONE_MAC, 403), (MAC, 403)):
            named = mac.replace(":", "-") if "grub" in path else mac
            reply = await machines.ask(path.format(named), ip=OTHER_IP)
            assert (reply.status, f"hw_addr={mac}" in reply.text) == (status, status == 200)


async def test_hardware_with_one_address_are_named_and_none_is_served(machines, caplog):
    machines.inventory.apply(hardware("m3", THIRD_MAC, IP))
    for path in (USER_DATA, "/nocloud/m1/user-data", "/nocloud/m3/user-data", "/metadata"):
        reply = await machines.ask(path)
        assert (reply.status, reply.text) == (404, f"more than one Hardware has the address {IP}\n")
    assert "default/m1 and of default/m3" in caplog.text


# --- proxies --------------------------------------------------------------------------------------------------------


async def test_trusted_proxy_names_the_machine_of_its_request(trusting):
    for value in (IP, f"{OTHER_IP}, {IP}", f"{IP}:4711", f"::ffff:{IP}", f"{IP}, {SECOND_PROXY}", f"junk,{IP}"):
        assert (await trusting.ask(USER_DATA, ip=PROXY, X_Forwarded_For=value)).text == "secret-of-m1"
    script = await trusting.ask(f"/ipxe/script/{MAC}/auto.ipxe", ip=PROXY, X_Forwarded_For=IP)
    assert "secret-of-m1" in script.text
    for path, machine, status in (
        ("/osie/lab/kernel", IP, 200),
        ("/nocloud/m1/user-data", OTHER_IP, 403),
        (USER_DATA, STRANGER, 404),
    ):
        assert (await trusting.ask(path, ip=PROXY, X_Forwarded_For=machine)).status == status
    # Of several lines, the last counts.
    lines = b"".join(b"X-Forwarded-For: %s\r\n" % each for each in (IP.encode(), OTHER_IP.encode()))
    assert b"secret-of-m2" in await raw(trusting, GET_USER_DATA + lines + b"\r\n", PROXY)


@pytest.mark.parametrize(
    "value", ["garbage", f"{IP}, unknown", f"{IP}, ", "_hidden", "010.0.0.1", f"for={IP}", "1.2.3"]
)
async def test_proxy_that_sends_garbage_gets_an_error(trusting, value):
    reply = await trusting.ask("/latest/user-data", ip=PROXY, X_Forwarded_For=value)
    if value.endswith(", "):  # an empty element of a list is none (RFC 9110, section 5.6.1)
        assert reply.text == "secret-of-m1"
    else:
        assert reply.status == 400
        assert (await trusting.ask("/osie/lab/kernel", ip=PROXY, X_Forwarded_For=value)).status == 400
        assert (await trusting.ask("/healthz", ip=PROXY, X_Forwarded_For=value)).status == 200


async def test_proxy_that_names_no_client_is_not_taken_for_its_own_machine(trusting):
    trusting.inventory.apply(hardware("proxy", "52:54:00:00:00:0e", PROXY))
    for headers in ({}, {"X_Forwarded_For": SECOND_PROXY}, {"X_Forwarded_For": ""}):
        reply = await trusting.ask(USER_DATA, ip=PROXY, **headers)
        assert reply.status == 404
        assert PROXY in reply.text
    assert b"secret" not in await raw(trusting, GET_USER_DATA + b"\r\n", PROXY)


async def test_requests_of_a_proxy_are_each_their_own_machines_on_one_connection_or_on_many(trusting):
    lines = (f"X-Forwarded-For: {IP}\r\n", "", f"X-Forwarded-For: {OTHER_IP}\r\n", "", f"Forwarded: for={IP}\r\n")
    answer = await raw(trusting, b"".join(GET_USER_DATA + f"{line}\r\n".encode() for line in lines), PROXY)
    bodies = [one.partition(b"\r\n\r\n")[2] for one in answer.split(b"HTTP/1.1 ")[1:]]
    nobody = f"the proxy {PROXY} does not name the machine: it must send X-Forwarded-For\n".encode()
    assert bodies == [b"secret-of-m1", nobody, b"secret-of-m2", nobody, nobody]
    for connection in [await trusting.connect(PROXY) for _ in range(100)]:  # more than a machine may have
        answer = await connection.ask(GET_USER_DATA + b"X-Forwarded-For: 127.0.0.5\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")


HOPS = st.sampled_from(
    [IP, OTHER_IP, PROXY, SECOND_PROXY, "::1", "[::1]:80", "2001:db8::1", "", " ", "x", "1.2.3.4:99999"]
)


@given(st.lists(st.lists(HOPS, max_size=6).map(",".join), max_size=4))
def test_address_is_the_last_that_no_trusted_proxy_has(lines):
    hops = [hop.strip() for line in lines for hop in line.split(",") if hop.strip()]
    try:
        found = forwarded_for(lines, PROXIES)
    except ForwardedError:
        assert "x" in hops
        return
    while hops and inside(hops[-1], PROXIES):
        hops.pop()
    expected = {"[::1]:80": "::1", "1.2.3.4:99999": "1.2.3.4"}
    assert found == (expected.get(hops[-1], hops[-1]) if hops else None)


@given(st.lists(st.text(max_size=60), max_size=4))
def test_no_header_of_a_proxy_crashes_the_edge(lines):
    try:
        found = forwarded_for(lines, PROXIES)
    except ForwardedError:
        return
    assert found is None or str(ipaddress.ip_address(found)) == found


def test_endless_list_of_proxies_is_refused():
    with pytest.raises(ForwardedError):
        forwarded_for([",".join([PROXY] * 33)], PROXIES)
    assert forwarded_for([",".join([IP] + [PROXY] * 31)], PROXIES) == IP


# --- behind NAT: by MAC ---------------------------------------------------------------------------------------------


async def test_mac_in_the_path_is_believed_from_the_named_networks_only(trusting):
    for spelled in (SPARE_MAC, SPARE_MAC.upper(), SPARE_MAC.replace(":", "-")):
        for path in (f"/machine/{spelled}/2009-04-04/user-data", f"/nocloud/{spelled}/user-data"):
            assert (await trusting.ask(path, ip=NAT)).text == "secret-of-spare"
            assert (await trusting.ask(path, ip=STRANGER)).status == 404
            assert (await trusting.ask(path, ip=OTHER_IP)).status == 403
            assert (await trusting.ask(path, ip=STRANGER, X_Forwarded_For=NAT)).status == 404
            assert (await trusting.ask(path, ip=PROXY, X_Forwarded_For=NAT)).text == "secret-of-spare"
            assert (await trusting.ask(path, ip=PROXY)).status == 404
    for path in ("/nocloud/spare/user-data", USER_DATA, "/nocloud/52:54:00:00:00:77/user-data"):
        assert (await trusting.ask(path, ip=NAT)).status == 404
    assert (await trusting.ask(f"/ipxe/script/{MAC}/auto.ipxe", ip=NAT)).status == 403
    report = await trusting.ask(f"/phone-home/{SPARE_MAC}", ip=NAT, method="POST", data={"hostname": "s"})
    assert report.status == 200
    step, outcome, message = trusting.lines(SPARE_MAC)[-1]
    assert (step, outcome) == (Step.METADATA, Outcome.OK)
    assert message.startswith("cloud-init finished on s")


@pytest.mark.parametrize("mode", MODES)
async def test_address_that_is_known_or_claimed_by_two_is_no_third_machine_behind_nat(other_rack, mode, caplog):
    async with other_rack(mode=mode, trusted=TRUSTED) as rack:
        fill(rack)
        rack.inventory.apply(hardware("rival-7", "52:54:00:00:00:07", NAT))
        assert (await rack.ask(f"/nocloud/{SPARE_MAC}/user-data", ip=NAT)).status == 403
        assert (await rack.ask("/latest/user-data", ip=NAT)).text == "secret-of-rival-7"
        rack.inventory.apply(hardware("rival-8", "52:54:00:00:00:08", NAT))
        for who in (SPARE_MAC, "52:54:00:00:00:07"):
            for path in (f"/nocloud/{who}/user-data", f"/machine/{who}/latest/user-data"):
                reply = await rack.ask(path, ip=NAT)
                assert (reply.status, reply.text) == (404, f"more than one Hardware has the address {NAT}\n")
        token = tokens(rack).mint(SPARE_MAC)
        assert (await rack.ask(f"/nocloud/{token}/user-data", ip=NAT)).text == "secret-of-spare"
        for number in (7, 8):
            rack.inventory.remove(hardware(f"rival-{number}", f"52:54:00:00:00:0{number}", NAT))
        rack.inventory.apply(hardware("thief", SPARE_MAC, None))
        for who in (SPARE_MAC, token):
            assert (await rack.ask(f"/nocloud/{who}/user-data", ip=NAT)).status == 404
        if mode is DhcpMode.PROXY:
            rack.callers.learn(SPARE_MAC, "127.0.2.2")
            reply = await rack.ask(f"/nocloud/{MAC}/user-data", ip="127.0.2.2")
            why = f"more than one Hardware has the MAC {SPARE_MAC}, which is at 127.0.2.2\n"
            assert (reply.status, reply.text) == (404, why)
            assert "of default/spare and of default/thief: none is served" in caplog.text


@pytest.mark.parametrize(
    ("address", "whose"),
    [("127.0.0.77", "not an address of this machine"), (OTHER_IP, "the address of Hardware default/m2")],
)
async def test_request_from_a_wrong_address_is_recorded_on_the_machines_own_journey(other_rack, address, whose):
    links = Links()
    links.macs[address] = MAC
    async with other_rack(neighbours=links) as rack:
        fill(rack)
        for _ in range(2):
            assert (await rack.ask("/latest/user-data", ip=address)).status in (403, 404)
        message = f"metadata request from {address}, which is {whose}: its Hardware has {IP}"
        assert rack.lines(MAC) == [(Step.METADATA, Outcome.FAILED, message)]


# --- tokens in the path, behind NAT -----------------------------------------------------------------------------------


async def test_token_in_the_path_identifies_the_machine_from_any_address(machines):
    token = tokens(machines).mint(SPARE_MAC)
    for ip in (STRANGER, OTHER_IP, NAT):
        for path in ("machine/{}/2009-04-04", "machine/{}/latest", "nocloud/{}"):
            assert (await machines.ask(f"/{path.format(token)}/user-data", ip=ip)).text == "secret-of-spare"
        assert "instance-id" in (await machines.ask(f"/machine/{token}/latest/meta-data/", ip=ip)).text
        assert (await machines.ask(f"/machine/{token}/metadata", ip=ip)).headers["Content-Type"] == "application/json"
        report = await machines.ask(f"/phone-home/{token}", ip=ip, method="POST", data={"hostname": "s"})
        assert report.status == 200
    # It opens metadata, and nothing else.
    assert (await machines.ask(f"/ipxe/script/{token}/auto.ipxe", ip=STRANGER)).status == 404
    assert (await machines.ask(f"/machine/{token}/osie/lab/kernel", ip=STRANGER)).status == 404


def bad_tokens(rack: Rack, tmp_path: Any) -> Iterator[str]:
    good, mine = tokens(rack).mint(MAC), tokens(rack).mint(OTHER_MAC)
    yield tokens(rack, lifetime=60, clock=lambda: time.time() - 61).mint(MAC)
    yield from (good[:length] for length in (3, 10, 20, len(good) - 1))
    yield good + "A"
    yield good.lower()
    yield good.replace("M1", "M2")
    yield MetadataTokens(token_keys(tmp_path / "another edge", None, create=True)).mint(MAC)
    # Of two good ones.
    claims, _, signature = good.rpartition(".")
    my_claims, _, my_signature = mine.rpartition(".")
    yield f"{claims}.{my_signature}"
    yield mine.replace(OTHER_MAC.replace(":", ""), MAC.replace(":", ""))
    yield f"{my_claims}{claims[2:]}.{my_signature}"
    # An ending that is another's, and none where there was one.
    ending = tokens(rack, lifetime=60, clock=lambda: time.time() - 61).mint(MAC)
    yield ".".join([*ending.split(".")[:2], "0", ending.split(".")[3]])
    yield claims.replace(".0", ".00") + "." + signature
    yield claims.replace(".0", ".\u0660") + "." + signature
    yield f"{claims}.{imds.mint(rack.keys, 'default/m1', 0).partition('.')[2]}"
    yield f"{claims}."
    yield f"{claims}.{'=' * 43}"
    yield good.replace(".", "%2e%2e")


async def test_bad_token_opens_nothing_and_is_never_shown(machines, tmp_path, caplog):
    caplog.set_level("DEBUG")
    bad = list(bad_tokens(machines, tmp_path))
    for token in bad:
        for ip in (OTHER_IP, STRANGER):
            for path in (f"/nocloud/{token}/user-data", f"/machine/{token}/latest/user-data"):
                reply = await machines.ask(path, ip=ip)
                assert reply.status in (400, 403, 404), token
                assert "secret" not in reply.text
                assert len(token) < 11 or token[10:] not in reply.text
    shown = caplog.text + str(machines.lines(MAC)) + str(machines.lines(OTHER_MAC))
    for token in bad:
        signature = token.rpartition(".")[2]
        assert len(signature) < 20 or signature not in shown


@pytest.mark.parametrize(
    "line", ["GET /machine/{}/\x7f HTTP/1.1", "GET /nocloud/{} /user-data HTTP/1.1", "GE\x00T /machine/{}/x HTTP/1.1"]
)
async def test_tokens_are_not_in_the_log_however_bad_the_request(machines, line, caplog):
    caplog.set_level("DEBUG")
    token = tokens(machines).mint(MAC)
    await raw(machines, line.format(token).encode() + b"\r\nHost: e\r\n\r\n")
    await machines.ask(f"/nocloud/{token}/user-data", ip=OTHER_IP)
    await machines.ask(f"/nocloud/{token}/user-data?x", ip=OTHER_IP, X_aws_ec2_metadata_token="bad")
    await machines.ask(f"/nocloud/{token[1:]}/user-data", ip=OTHER_IP)
    assert token[20:] not in caplog.text + str(machines.lines())


async def test_token_outlives_neither_its_time_nor_its_key(machines, tmp_path):
    now = time.time()
    made = MetadataTokens(machines.keys, 60, lambda: now)
    token = made.mint(MAC)
    assert (await machines.ask(f"/nocloud/{token}/user-data", ip=STRANGER)).status == 200
    now += 60
    with pytest.raises(ValueError, match="it ended at"):
        made.mac(token)
    lasting = tokens(machines).mint(MAC)
    (tmp_path / "metadata-token.key").write_text("f" * 64 + "\n")
    assert machines.keys.reread()
    assert (await machines.ask(f"/nocloud/{lasting}/user-data", ip=STRANGER)).status == 403


# --- session tokens -------------------------------------------------------------------------------------------------

TTL = {"X_aws_ec2_metadata_token_ttl_seconds": "60"}


async def session(rack: Rack, ip: str = IP, path: str = "/latest/api/token", **headers: str) -> Any:
    return await rack.ask(path, ip=ip, method="PUT", **(TTL | headers))


async def test_session_token_is_made_and_taken_on_all_interfaces_of_its_machine(machines):
    reply = await session(machines)
    assert (reply.status, reply.headers["X-aws-ec2-metadata-token-ttl-seconds"]) == (200, "60")
    for path in ("/latest/user-data", "/2009-04-04/user-data", "/nocloud/m1/user-data", "/metadata"):
        assert (await machines.ask(path, X_aws_ec2_metadata_token=reply.text)).status == 200
    two = {MAC: {"dhcp": {"ip": IP}}, SPARE_MAC: {"dhcp": {"ip": STRANGER}}}
    machines.inventory.remove(hardware("spare", SPARE_MAC, None))
    machines.inventory.apply(hardware("m1", MAC, IP) | {"spec": {"networkInterfaces": two}})
    for ip, status in ((STRANGER, 200), (OTHER_IP, 401)):
        assert (await machines.ask("/latest/meta-data/", ip=ip, X_aws_ec2_metadata_token=reply.text)).status == status


@pytest.mark.parametrize("mode", MODES)
async def test_session_token_of_another_machine_is_worth_nothing(other_rack, mode):
    async with other_rack(mode=mode, imds_required=True) as rack:
        fill(rack)
        token = (await session(rack)).text
        mine = (await session(rack, OTHER_IP)).text
        ended = imds.mint(rack.keys, "default/m2", int(time.time()) - 1)
        spliced = f"{mine.partition('.')[0]}.{token.partition('.')[2]}"
        later = f"{int(time.time()) + 9999}.{mine.partition('.')[2]}"
        path_token = MetadataTokens(rack.keys).mint(OTHER_MAC)
        for bad in (token, ended, spliced, later, mine[:-1], mine + "A", "", "x", path_token, mine.replace(".", "%2e")):
            for path in ("/latest/user-data", "/metadata", "/nocloud/m2/user-data", "/latest/meta-data/"):
                reply = await rack.ask(path, ip=OTHER_IP, X_aws_ec2_metadata_token=bad)
                assert (reply.status, "secret" in reply.text) == (401, False), (bad, path)
        assert (await rack.ask("/latest/user-data", ip=OTHER_IP, X_aws_ec2_metadata_token=mine)).text == "secret-of-m2"
        both = f"X-aws-ec2-metadata-token: {mine}\r\nX-aws-ec2-metadata-token: {token}\r\n"
        answer = await raw(rack, f"GET /latest/user-data HTTP/1.1\r\nHost: e\r\n{both}\r\n".encode())
        assert b" 401 " in answer


async def test_where_session_tokens_are_required_nothing_is_served_without(other_rack):
    async with other_rack(imds_required=True, trusted=TRUSTED) as rack:
        fill(rack)
        for path in ("/latest/user-data", "/latest/", "/metadata", "/nocloud/m1/user-data", f"/machine/{MAC}/metadata"):
            assert (await rack.ask(path)).status == 401
        assert (await rack.ask(f"/nocloud/{SPARE_MAC}/user-data", ip=NAT)).status == 401
        token = tokens(rack).mint(MAC)
        assert (await rack.ask(f"/nocloud/{token}/user-data", ip=STRANGER)).text == "secret-of-m1"
        assert "secret-of-m1" in (await rack.ask(f"/ipxe/script/{MAC}/auto.ipxe")).text
        assert (await rack.ask("/phone-home/m1", method="POST", data={"hostname": "h"})).status == 200


async def test_wrong_session_token_is_refused_where_none_would_do(trusting):
    signed = f"/machine/{tokens(trusting).mint(MAC)}/latest/user-data"
    foreign = (await session(trusting, OTHER_IP)).text
    for bad in ("", "x", foreign):
        assert (await trusting.ask("/latest/user-data", X_aws_ec2_metadata_token=bad)).status == 401
        assert (await trusting.ask(signed, ip=STRANGER, X_aws_ec2_metadata_token=bad)).status == 401


async def test_session_token_is_refused_as_on_ec2(machines):
    assert (await session(machines, X_Forwarded_For="10.0.0.1")).status == 403
    assert (await session(machines, STRANGER)).status == 404
    for ttl in ("", "0", "21601", "abc", "\u0661"):  # hegel's tests have more
        header = f"X-aws-ec2-metadata-token-ttl-seconds: {ttl}\r\n".encode()
        answer = await raw(machines, b"PUT /latest/api/token HTTP/1.1\r\nHost: e\r\n" + header + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
    for method, path, status in (
        ("PUT", "/latest/api/token", 400),
        ("GET", "/latest/api/token", 405),
        ("POST", "/latest/api/token", 405),
        ("PUT", "/2009-04-04/api/token", 405),
        ("PUT", USER_DATA, 405),
    ):
        headers = TTL if status == 405 else {}
        assert (await machines.ask(path, method=method, **headers)).status == status


async def test_session_token_is_had_through_a_trusted_proxy_and_with_a_signed_url(other_rack):
    async with other_rack(trusted=TRUSTED, imds_required=True) as rack:
        fill(rack)
        through = (await session(rack, PROXY, X_Forwarded_For=IP)).text
        assert (await rack.ask("/latest/user-data", X_aws_ec2_metadata_token=through)).text == "secret-of-m1"
        token = tokens(rack).mint(MAC)
        signed = (await session(rack, STRANGER, path=f"/machine/{token}/latest/api/token")).text
        reply = await rack.ask(f"/machine/{token}/latest/user-data", ip=STRANGER, X_aws_ec2_metadata_token=signed)
        assert reply.text == "secret-of-m1"


async def test_no_answer_may_be_kept_by_a_proxy_for_the_next_machine(machines):
    for path in ("/latest/user-data", "/latest/none", "/nocloud/m1/meta-data", "/metadata", "/nocloud/m2/user-data"):
        for headers in ({}, {"X_Anything": "slow"}):
            assert (await machines.ask(path, **headers)).headers["Cache-Control"] == "no-store", path
    assert (await machines.ask("/latest/user-data", ip=STRANGER)).headers["Cache-Control"] == "no-store"
    assert (await session(machines)).headers["Cache-Control"] == "no-store"
