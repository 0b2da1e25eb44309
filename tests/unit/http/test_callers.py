"""x"""

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
from tests.unit.http.conftest import (
    IP,
    MAC,
    MODES,
    NAT,
    OTHER_IP,
    OTHER_MAC,
    PROXIES,
    PROXY,
    SECOND_PROXY,
    SPARE_MAC,
    STRANGER,
    TRUSTED,
    Rack,
    fill,
    hardware,
    raw,
    tokens,
)


@pytest.fixture
def machines(rack: Rack) -> Any:
    return fill(rack)


# --- ways in: paths -------------------------------------------------------------------------------------------------

_WHO = [
    "m1",
    "M1",
    MAC,
    MAC.upper(),
    MAC.replace(":", "-"),
    MAC.replace(":", ""),
    MAC.replace(":", "%3A"),
    MAC.replace(":", "%253A"),
    "default%2Fm1",
    "default/m1",
    "m2%2F..%2Fm1",
    "m2/../m1",
    "m2/%2e%2e/m1",
    "m2/.%2e/m1",
    "m2\\..\\m1",
    "m2%5C..%5Cm1",
    "m2%00/../m1",
    "m1%00",
    "m1%20",
    "m1;m2",
    "m1%0d%0a",
    "./m1",
    "//m1",
    "m1/",
    "m1?m2",
    "m1%23",
    "*",
    "m" * 3000 + "/../m1",
    "\u0661".encode().decode("latin-1"),
]
_PATHS = [
    "/nocloud/{}/user-data",
    "/nocloud/{}/meta-data",
    "/nocloud/{}/vendor-data",
    "/nocloud/{}/network-config",
    "/machine/{}/latest/user-data",
    "/machine/{}/latest/meta-data/",
    "/machine/{}/2009-04-04/meta-data/instance-id",
    "/machine/{}/metadata",
    "/ipxe/script/{}/auto.ipxe",
    "/ipxe/script/{}/auto.ipxe?failed",
    "/ipxe/binary/{}/autoexec.ipxe",
    "/latest/../nocloud/{}/user-data",
    "/latest/%2e%2e/nocloud/{}/user-data",
    "//nocloud//{}//user-data",
]


@pytest.mark.parametrize("mode", MODES)
async def test_no_spelling_of_a_path_leads_to_another_machine(other_rack, mode):
    async with other_rack(mode=mode) as rack:
        fill(rack)
        for sender in (OTHER_IP, STRANGER):
            # A connection for each name, which ends at the first path that aiohttp can't read, and one for some paths.
            targets = [[path.format(who) for path in _PATHS] for who in _WHO]
            targets += [[path.format(who)] for path in _PATHS[::3] for who in _WHO]
            requests = [
                b"".join(f"GET {target} HTTP/1.1\r\nHost: e\r\n\r\n".encode("latin-1") for target in some)
                + b"GET /healthz HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n"
                for some in targets
            ]
            for answer in [await raw(rack, request, sender) for request in requests]:
                assert answer.startswith(b"HTTP/1.")
                assert b"secret-of-m1" not in answer
                assert b"secret-of-spare" not in answer
                assert b" 500 " not in answer


async def test_a_hardware_of_the_same_name_in_another_namespace_is_another_machine(machines):
    machines.inventory.apply(hardware("m1", "52:54:00:00:00:03", "127.0.0.7", namespace="other"))
    machines.inventory.apply(
        hardware("m1", "52:54:00:00:00:03", "127.0.0.7", namespace="other")
        | {"spec": {"networkInterfaces": {"52:54:00:00:00:03": {"dhcp": {"ip": "127.0.0.7"}}}}}
    )
    reply = await machines.ask("/nocloud/m1/user-data", ip="127.0.0.7")
    assert (reply.status, reply.body) == (200, b"")
    assert (await machines.ask(f"/nocloud/{MAC}/user-data", ip="127.0.0.7")).status == 403


async def test_own_name_and_macs_lead_to_oneself_in_every_room(machines):
    for who in ("m1", MAC, MAC.upper(), MAC.replace(":", "-"), MAC.replace(":", "%3A")):
        for path in (f"/nocloud/{who}/user-data", f"/machine/{who}/latest/user-data"):
            assert (await machines.ask(path)).text == "secret-of-m1"
        assert (await machines.ask(f"/machine/{who}/metadata")).status == 200
        assert (await machines.ask(f"/phone-home/{who}", method="POST", data={"hostname": "h"})).status == 200


async def test_macs_of_all_interfaces_are_ones_own(machines):
    second = hardware("m1", MAC, IP)
    second["spec"]["networkInterfaces"]["52:54:00:00:00:0b"] = {}
    machines.inventory.apply(second)
    for headers in ({}, {"X_Anything": "slow"}):
        assert (await machines.ask("/nocloud/52:54:00:00:00:0b/user-data", **headers)).text == "secret-of-m1"


# --- ways in: headers and request lines -----------------------------------------------------------------------------

_HEADERS = [
    [("X-Forwarded-For", IP)],
    [("X-Forwarded-For", IP), ("X-Forwarded-For", IP)],
    [("X-Forwarded-For", f"{IP}, {IP}")],
    [("x-forwarded-for", f"{IP}:80")],
    [("X-Forwarded-For", f"[::ffff:{IP}]:80")],
    [("X-Forwarded-For", f"::ffff:{IP}")],
    [("X-Forwarded-For", "garbage")],
    [("Forwarded", f"for={IP};host={IP}")],
    [("X-Real-IP", IP)],
    [("X-Client-IP", IP), ("True-Client-IP", IP), ("CF-Connecting-IP", IP)],
    [("Host", IP)],
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
        request = b"GET /latest/user-data HTTP/1.1\r\nHost: e\r\n" + framing + b"\r\n0\r\n\r\n" + inner
        assert b"secret-of-m1" not in await raw(machines, request)


async def test_log_says_whose_metadata_was_asked_for_in_vain(machines, caplog):
    for whom, ip, who in ((OTHER_MAC, IP, "m1"), ("m1", OTHER_IP, "m2")):
        assert (await machines.ask(f"/nocloud/{whom}/user-data", ip=ip)).status == 403
        assert f"asked for as {whom}, but this address is that of default/{who}" in caplog.text


async def test_connection_that_stays_open_does_not_keep_an_address_that_was_taken_away(machines):
    reader, writer = await asyncio.open_connection("127.0.0.1", machines.port, local_addr=(IP, 0))

    async def get(path: bytes, headers: bytes = b"") -> bytes:
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: e\r\n" + headers + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head + await reader.readexactly(length)

    for headers in (b"", b"X-Anything: slow\r\n"):  # on the fast path first, then by aiohttp
        machines.inventory.apply(hardware("m1", MAC, IP))
        assert b"secret-of-m1" in await get(b"/latest/user-data", headers)
        machines.inventory.apply(hardware("m1", MAC, "127.0.0.50"))
        assert b"404" in await get(b"/latest/user-data", headers)
        machines.inventory.apply(hardware("m9", "52:54:00:00:00:09", IP))
        answer = await get(b"/latest/user-data", headers)
        assert b"secret-of-m9" in answer
        machines.inventory.remove(hardware("m9", "52:54:00:00:00:09", IP))
        assert b"secret" not in await get(b"/latest/user-data", headers)
    writer.close()


async def test_another_machines_neighbour_entry_wins_over_the_reserved_address(other_rack):
    async with other_rack(mode=DhcpMode.PROXY) as rack:
        fill(rack)
        rack.callers.learn(OTHER_MAC, IP)  # m2 has got m1's address from the other DHCP server
        assert (await rack.ask("/latest/user-data", ip=IP)).text == "secret-of-m2"
        assert (await rack.ask("/nocloud/m1/user-data", ip=IP)).status == 403
        rack.callers.learn(SPARE_MAC, "127.0.0.8")
        assert (await rack.ask("/latest/user-data", ip="127.0.0.8")).text == "secret-of-spare"


class Links:
    """Who is on our links, by address; an empty MAC: the kernel does not know now."""

    def __init__(self) -> None:
        self.macs: dict[str, str] = {}

    def mac(self, ip: str, _interface: str = "") -> str | None:
        return self.macs.get(ip) or None

    def on_link(self, ip: str, _interface: str = "") -> bool:
        return ip in self.macs

    def link(self, ip: str) -> str:
        return "srv0" if ip in self.macs else ""


async def test_connection_stops_being_the_machines_when_another_has_its_address(other_rack):
    """On the fast path as in full, on a connection that stays open."""
    links = Links()
    async with other_rack(neighbours=links) as rack:
        fill(rack)
        reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))

        async def get(headers: bytes) -> bytes:
            writer.write(b"GET /latest/user-data HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            return head[:12] + await reader.readexactly(int(length.partition(b":")[2]))

        for headers in (b"", b"X-Anything: slow\r\n"):
            for mac, answer in (
                (MAC, b"HTTP/1.1 200secret-of-m1"),
                (OTHER_MAC, b"HTTP/1.1 403"),
                (MAC, b"HTTP/1.1 200secret-of-m1"),
                ("", b"HTTP/1.1 503"),
                (MAC, b"HTTP/1.1 200secret-of-m1"),
            ):
                links.macs[IP] = mac
                rack.callers.changed(IP)
                assert (await get(headers)).startswith(answer)
        writer.close()


@pytest.mark.parametrize("mac", [OTHER_MAC, "52:54:00:99:99:99"])
async def test_second_address_opens_no_way_by_nat_nor_to_a_session_token_but_a_signed_url_does(other_rack, mac):
    links = Links()
    links.macs[IP] = mac
    trusted = replace(TRUSTED, nat=(ipaddress.IPv4Network("127.0.0.0/8"),))
    async with other_rack(neighbours=links, trusted=trusted) as rack:
        fill(rack)
        for who in (MAC, OTHER_MAC, SPARE_MAC):
            assert (await rack.ask(f"/machine/{who}/latest/user-data", ip=IP)).status == 403
        assert (
            await rack.ask("/latest/api/token", ip=IP, method="PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
        ).status == 403
        token = tokens(rack).mint(MAC)
        assert (await rack.ask(f"/machine/{token}/latest/user-data", ip=IP)).text == "secret-of-m1"


async def test_what_a_proxy_says_of_an_address_on_our_link_needs_no_entry_of_the_kernel(other_rack):
    """The machine talks to the proxy, and perhaps never to us."""
    links = Links()
    links.macs[IP] = ""
    async with other_rack(neighbours=links, trusted=TRUSTED) as rack:
        fill(rack)
        assert (await rack.ask("/latest/user-data", ip=PROXY, X_Forwarded_For=IP)).text == "secret-of-m1"
        links.macs[IP] = OTHER_MAC
        assert (await rack.ask("/latest/user-data", ip=PROXY, X_Forwarded_For=IP)).status == 403
        assert (await rack.ask("/latest/user-data", ip=PROXY, X_Forwarded_For="2001:db8::1")).status == 404


async def test_two_hardware_with_one_address_are_both_named_and_neither_is_served(machines, caplog):
    machines.inventory.apply(hardware("m3", "52:54:00:00:00:03", IP))
    caplog.clear()
    for path in ("/latest/user-data", "/nocloud/m1/user-data", "/nocloud/m3/user-data", "/metadata"):
        reply = await machines.ask(path)
        assert (reply.status, reply.text) == (404, f"more than one Hardware has the address {IP}\n")
    assert "default/m1 and of default/m3" in caplog.text


async def test_two_interfaces_with_one_address_are_called_so_and_not_two_hardware(machines, caplog):
    both = hardware("m1", MAC, IP)
    both["spec"]["networkInterfaces"]["52:54:00:00:00:0b"] = {"dhcp": {"ip": IP}}
    machines.inventory.apply(both)
    reply = await machines.ask("/latest/user-data")
    assert (reply.status, reply.text) == (404, f"more than one interface of its Hardware has the address {IP}\n")
    assert "from default/m1, of which 2 interfaces have the address" in caplog.text


# --- proxies --------------------------------------------------------------------------------------------------------


async def test_trusted_proxy_says_whose_request_it_brings(other_rack):
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        for value in (IP, f"{OTHER_IP}, {IP}", f"{IP}:4711", f"::ffff:{IP}", f"{IP}, {SECOND_PROXY}", f"junk,{IP}"):
            assert (await rack.ask("/latest/user-data", ip=PROXY, X_Forwarded_For=value)).text == "secret-of-m1"
        script = await rack.ask(f"/ipxe/script/{MAC}/auto.ipxe", ip=PROXY, X_Forwarded_For=IP)
        assert "secret-of-m1" in script.text
        assert (await rack.ask("/osie/lab/kernel", ip=PROXY, X_Forwarded_For=IP)).status == 200
        assert (await rack.ask("/nocloud/m1/user-data", ip=PROXY, X_Forwarded_For=OTHER_IP)).status == 403
        assert (await rack.ask("/latest/user-data", ip=PROXY, X_Forwarded_For=STRANGER)).status == 404


async def test_every_line_of_x_forwarded_for_counts_the_last_most(other_rack):
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        lines = b"".join(b"X-Forwarded-For: %s\r\n" % each for each in (IP.encode(), OTHER_IP.encode()))
        answer = await raw(rack, b"GET /latest/user-data HTTP/1.1\r\nHost: e\r\n" + lines + b"\r\n", PROXY)
        assert b"secret-of-m2" in answer


@pytest.mark.parametrize(
    "value", ["garbage", f"{IP}, unknown", f"{IP}, ", "_hidden", "010.0.0.1", f"for={IP}", "1.2.3"]
)
async def test_proxy_that_sends_garbage_is_told_so(other_rack, value):
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        reply = await rack.ask("/latest/user-data", ip=PROXY, X_Forwarded_For=value)
        if value.endswith(", "):  # an empty element of a list is none (RFC 9110, section 5.6.1)
            assert reply.text == "secret-of-m1"
        else:
            assert reply.status == 400
            assert (await rack.ask("/osie/lab/kernel", ip=PROXY, X_Forwarded_For=value)).status == 400
            assert (await rack.ask("/healthz", ip=PROXY, X_Forwarded_For=value)).status == 200


async def test_proxy_that_names_nobody_is_not_taken_for_the_machine_it_runs_on(other_rack):
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        rack.inventory.apply(hardware("proxy", "52:54:00:00:00:0e", PROXY))
        for headers in ({}, {"X_Forwarded_For": SECOND_PROXY}, {"X_Forwarded_For": ""}):
            reply = await rack.ask("/latest/user-data", ip=PROXY, **headers)
            assert reply.status == 404
            assert PROXY in reply.text
        assert "secret" not in (await raw(rack, b"GET /latest/user-data HTTP/1.1\r\nHost: e\r\n\r\n", PROXY)).decode()


async def test_requests_on_one_connection_of_a_proxy_are_each_their_own_machines(other_rack):
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        lines = (f"X-Forwarded-For: {IP}\r\n", "", f"X-Forwarded-For: {OTHER_IP}\r\n", "", f"Forwarded: for={IP}\r\n")
        requests = [f"GET /latest/user-data HTTP/1.1\r\nHost: e\r\n{line}\r\n" for line in lines]
        answer = await raw(rack, "".join(requests).encode(), PROXY)
        bodies = [one.partition(b"\r\n\r\n")[2] for one in answer.split(b"HTTP/1.1 ")[1:]]
        nobody = f"the proxy {PROXY} does not say whom it asks for: it must send X-Forwarded-For\n".encode()
        assert bodies == [b"secret-of-m1", nobody, b"secret-of-m2", nobody, nobody]


async def test_proxies_of_many_machines_may_have_many_connections(other_rack):
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        connections = [await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(PROXY, 0)) for _ in range(100)]
        request = b"GET /latest/user-data HTTP/1.1\r\nHost: e\r\nX-Forwarded-For: 127.0.0.5\r\n\r\n"
        for _, writer in connections:
            writer.write(request)
        for reader, writer in connections:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()


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


async def test_mac_in_the_path_is_believed_from_the_named_networks_only(other_rack):
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        for spelled in (SPARE_MAC, SPARE_MAC.upper(), SPARE_MAC.replace(":", "-")):
            for path in (f"/machine/{spelled}/2009-04-04/user-data", f"/nocloud/{spelled}/user-data"):
                assert (await rack.ask(path, ip=NAT)).text == "secret-of-spare"
                assert (await rack.ask(path, ip=STRANGER)).status == 404
                assert (await rack.ask(path, ip=OTHER_IP)).status == 403
                assert (await rack.ask(path, ip=STRANGER, X_Forwarded_For=NAT)).status == 404
                assert (await rack.ask(path, ip=PROXY, X_Forwarded_For=NAT)).text == "secret-of-spare"
                assert (await rack.ask(path, ip=PROXY)).status == 404
        assert (await rack.ask("/nocloud/spare/user-data", ip=NAT)).status == 404
        assert (await rack.ask("/latest/user-data", ip=NAT)).status == 404
        assert (await rack.ask("/nocloud/52:54:00:00:00:77/user-data", ip=NAT)).status == 404
        assert (await rack.ask(f"/ipxe/script/{MAC}/auto.ipxe", ip=NAT)).status == 403
        report = await rack.ask(f"/phone-home/{SPARE_MAC}", ip=NAT, method="POST", data={"hostname": "s"})
        assert report.status == 200
        step, outcome, message = rack.lines(SPARE_MAC)[-1]
        assert (step, outcome) == (Step.METADATA, Outcome.OK)
        assert message.startswith("cloud-init finished on s")


async def test_machine_whose_address_is_known_is_no_other_one_behind_nat_either(other_rack):
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        rack.inventory.apply(hardware("inside", "52:54:00:00:00:0f", NAT))
        assert (await rack.ask(f"/nocloud/{MAC}/user-data", ip=NAT)).status == 403
        assert (await rack.ask("/latest/user-data", ip=NAT)).text == "secret-of-inside"


@pytest.mark.parametrize("mode", MODES)
async def test_address_that_two_hardware_claim_is_no_third_machine_behind_nat(other_rack, mode):
    async with other_rack(mode=mode, trusted=TRUSTED) as rack:
        fill(rack)
        for number in (7, 8):
            rack.inventory.apply(hardware(f"rival-{number}", f"52:54:00:00:00:0{number}", NAT))
        for who in (SPARE_MAC, "52:54:00:00:00:07"):
            for path in (f"/nocloud/{who}/user-data", f"/machine/{who}/latest/user-data"):
                reply = await rack.ask(path, ip=NAT)
                assert (reply.status, reply.text) == (404, f"more than one Hardware has the address {NAT}\n")
        token = tokens(rack).mint(SPARE_MAC)
        assert (await rack.ask(f"/nocloud/{token}/user-data", ip=NAT)).text == "secret-of-spare"
        rack.inventory.remove(hardware("rival-8", "52:54:00:00:00:08", NAT))
        assert (await rack.ask("/latest/user-data", ip=NAT)).text == "secret-of-rival-7"


async def test_address_of_a_mac_that_two_hardware_claim_is_no_third_machine_behind_nat(other_rack, caplog):
    async with other_rack(mode=DhcpMode.PROXY, trusted=TRUSTED) as rack:
        fill(rack)
        rack.callers.learn(MAC, NAT)
        rack.inventory.apply(hardware("thief", MAC, None))
        reply = await rack.ask(f"/nocloud/{SPARE_MAC}/user-data", ip=NAT)
        assert (reply.status, reply.text) == (404, f"more than one Hardware has the MAC {MAC}, which is at {NAT}\n")
        assert "of default/m1 and of default/thief: none is served" in caplog.text


async def test_mac_that_two_hardware_claim_is_nobodys_behind_nat(other_rack):
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        rack.inventory.apply(hardware("thief", SPARE_MAC, None))
        assert (await rack.ask(f"/nocloud/{SPARE_MAC}/user-data", ip=NAT)).status == 404
        token = tokens(rack).mint(SPARE_MAC)
        assert (await rack.ask(f"/nocloud/{token}/user-data", ip=NAT)).status == 404


@pytest.mark.parametrize(
    ("address", "whose"), [("127.0.0.77", "not its address"), (OTHER_IP, "the address of Hardware default/m2")]
)
async def test_machine_that_asks_from_a_wrong_address_is_told_so_on_its_own_journey(other_rack, address, whose):
    links = Links()
    links.macs[address] = MAC
    async with other_rack(neighbours=links) as rack:
        fill(rack)
        for _ in range(2):
            assert (await rack.ask("/latest/user-data", ip=address)).status in (403, 404)
        message = f"metadata asked for from {address}, which is {whose}: its Hardware says {IP}"
        assert rack.lines(MAC) == [(Step.METADATA, Outcome.FAILED, message)]


# --- in the path, behind NAT ------------------------------------------------------------------------------------------


async def test_token_in_the_path_says_who_asks_from_anywhere(machines):
    token = tokens(machines).mint(SPARE_MAC)
    for ip in (STRANGER, OTHER_IP, NAT):
        for version in ("2009-04-04", "latest"):
            assert (await machines.ask(f"/machine/{token}/{version}/user-data", ip=ip)).text == "secret-of-spare"
        assert (await machines.ask(f"/nocloud/{token}/user-data", ip=ip)).text == "secret-of-spare"
        listing = await machines.ask(f"/machine/{token}/latest/meta-data/", ip=ip)
        assert "instance-id" in listing.text
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
    await asyncio.sleep(1.05)
    assert (await machines.ask(f"/nocloud/{lasting}/user-data", ip=STRANGER)).status == 403


# --- session tokens -------------------------------------------------------------------------------------------------

TTL = {"X_aws_ec2_metadata_token_ttl_seconds": "60"}


async def session(rack: Rack, ip: str = IP, path: str = "/latest/api/token", **headers: str) -> Any:
    return await rack.ask(path, ip=ip, method="PUT", **(TTL | headers))


async def test_session_token_is_made_and_taken(machines):
    reply = await session(machines)
    assert (reply.status, reply.headers["X-aws-ec2-metadata-token-ttl-seconds"]) == (200, "60")
    for path in ("/latest/user-data", "/2009-04-04/user-data", "/nocloud/m1/user-data", "/metadata"):
        assert (await machines.ask(path, X_aws_ec2_metadata_token=reply.text)).status == 200


async def test_session_token_is_good_on_all_interfaces_of_its_machine(machines):
    two = {MAC: {"dhcp": {"ip": IP}}, SPARE_MAC: {"dhcp": {"ip": STRANGER}}}
    machines.inventory.remove(hardware("spare", SPARE_MAC, None))
    machines.inventory.apply(hardware("m1", MAC, IP) | {"spec": {"networkInterfaces": two}})
    token = (await session(machines)).text
    for ip, status in ((STRANGER, 200), (OTHER_IP, 401)):
        assert (await machines.ask("/latest/meta-data/", ip=ip, X_aws_ec2_metadata_token=token)).status == status


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


async def test_wrong_session_token_is_refused_where_none_would_do(other_rack):
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        signed = f"/machine/{tokens(rack).mint(MAC)}/latest/user-data"
        foreign = (await session(rack, OTHER_IP)).text
        for bad in ("", "x", foreign):
            assert (await rack.ask("/latest/user-data", X_aws_ec2_metadata_token=bad)).status == 401
            assert (await rack.ask(signed, ip=STRANGER, X_aws_ec2_metadata_token=bad)).status == 401


@pytest.mark.parametrize("ttl", ["", "0", "-1", "21601", "1.5", "abc", "99999999999999999999", "\u0661", "1 1"])
async def test_lifetime_that_is_none_is_refused(machines, ttl):
    header = f"X-aws-ec2-metadata-token-ttl-seconds: {ttl}\r\n".encode()
    answer = await raw(machines, b"PUT /latest/api/token HTTP/1.1\r\nHost: e\r\n" + header + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400")


async def test_session_token_is_refused_as_on_ec2(machines):
    assert (await machines.ask("/latest/api/token", method="PUT")).status == 400
    assert (await session(machines, X_Forwarded_For="10.0.0.1")).status == 403
    assert (await session(machines, STRANGER)).status == 404
    assert (await machines.ask("/latest/api/token")).status == 405
    assert (await machines.ask("/latest/api/token", method="POST")).status == 405
    assert (await session(machines, path="/2009-04-04/api/token")).status == 405
    assert (await session(machines, path="/latest/user-data")).status == 405


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
