"""Who is asking, by a token: those in signed URLs, for machines behind NAT, and those of sessions (IMDSv2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from edge.callers import MetadataTokens, token_keys
from edge.machines import DhcpMode
from hegel import imds
from tests.unit.http.machines_with_secrets import (
    IP,
    MAC,
    MODES,
    NAT,
    OTHER_IP,
    OTHER_MAC,
    PROXY,
    SPARE_MAC,
    STRANGER,
    TRUSTED,
    OtherRack,
    fill,
    hardware,
    raw,
    tokens,
)


@pytest.fixture
def machines(rack: Any) -> Any:
    return fill(rack)


# --- in the path, behind NAT ------------------------------------------------------------------------------------------


async def test_token_in_the_path_says_who_asks_from_anywhere(machines: Any) -> None:
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


def bad_tokens(rack: Any, tmp_path: Any) -> Iterator[str]:
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


async def test_bad_token_opens_nothing_and_is_never_shown(
    machines: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
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
async def test_tokens_are_not_in_the_log_however_bad_the_request(
    machines: Any, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    token = tokens(machines).mint(MAC)
    await raw(machines, line.format(token).encode() + b"\r\nHost: e\r\n\r\n")
    await machines.ask(f"/nocloud/{token}/user-data", ip=OTHER_IP)
    await machines.ask(f"/nocloud/{token}/user-data?x", ip=OTHER_IP, X_aws_ec2_metadata_token="bad")
    await machines.ask(f"/nocloud/{token[1:]}/user-data", ip=OTHER_IP)
    assert token[20:] not in caplog.text + str(machines.lines())


async def test_token_outlives_neither_its_time_nor_its_key(machines: Any, tmp_path: Any) -> None:
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


async def session(rack: Any, ip: str = IP, path: str = "/latest/api/token", **headers: str) -> Any:
    return await rack.ask(path, ip=ip, method="PUT", **(TTL | headers))


async def test_session_token_is_made_and_taken(machines: Any) -> None:
    reply = await session(machines)
    assert (reply.status, reply.headers["X-aws-ec2-metadata-token-ttl-seconds"]) == (200, "60")
    for path in ("/latest/user-data", "/2009-04-04/user-data", "/nocloud/m1/user-data", "/metadata"):
        assert (await machines.ask(path, X_aws_ec2_metadata_token=reply.text)).status == 200


async def test_session_token_is_good_on_all_interfaces_of_its_machine(machines: Any) -> None:
    two = {MAC: {"dhcp": {"ip": IP}}, SPARE_MAC: {"dhcp": {"ip": STRANGER}}}
    machines.inventory.remove(hardware("spare", SPARE_MAC, None))
    machines.inventory.apply(hardware("m1", MAC, IP) | {"spec": {"networkInterfaces": two}})
    token = (await session(machines)).text
    for ip, status in ((STRANGER, 200), (OTHER_IP, 401)):
        assert (await machines.ask("/latest/meta-data/", ip=ip, X_aws_ec2_metadata_token=token)).status == status


@pytest.mark.parametrize("mode", MODES)
async def test_session_token_of_another_machine_is_worth_nothing(other_rack: OtherRack, mode: DhcpMode) -> None:
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


async def test_where_session_tokens_are_required_nothing_is_served_without(other_rack: OtherRack) -> None:
    async with other_rack(imds_required=True, trusted=TRUSTED) as rack:
        fill(rack)
        for path in ("/latest/user-data", "/latest/", "/metadata", "/nocloud/m1/user-data", f"/machine/{MAC}/metadata"):
            assert (await rack.ask(path)).status == 401
        assert (await rack.ask(f"/nocloud/{SPARE_MAC}/user-data", ip=NAT)).status == 401
        token = tokens(rack).mint(MAC)
        assert (await rack.ask(f"/nocloud/{token}/user-data", ip=STRANGER)).text == "secret-of-m1"
        assert "secret-of-m1" in (await rack.ask(f"/ipxe/script/{MAC}/auto.ipxe")).text
        assert (await rack.ask("/phone-home/m1", method="POST", data={"hostname": "h"})).status == 200


async def test_wrong_session_token_is_refused_where_none_would_do(other_rack: OtherRack) -> None:
    async with other_rack(trusted=TRUSTED) as rack:
        fill(rack)
        signed = f"/machine/{tokens(rack).mint(MAC)}/latest/user-data"
        foreign = (await session(rack, OTHER_IP)).text
        for bad in ("", "x", foreign):
            assert (await rack.ask("/latest/user-data", X_aws_ec2_metadata_token=bad)).status == 401
            assert (await rack.ask(signed, ip=STRANGER, X_aws_ec2_metadata_token=bad)).status == 401


@pytest.mark.parametrize("ttl", ["", "0", "-1", "21601", "1.5", "abc", "99999999999999999999", "\u0661", "1 1"])
async def test_lifetime_that_is_none_is_refused(machines: Any, ttl: str) -> None:
    header = f"X-aws-ec2-metadata-token-ttl-seconds: {ttl}\r\n".encode()
    answer = await raw(machines, b"PUT /latest/api/token HTTP/1.1\r\nHost: e\r\n" + header + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400")


async def test_session_token_is_refused_as_on_ec2(machines: Any) -> None:
    assert (await machines.ask("/latest/api/token", method="PUT")).status == 400
    assert (await session(machines, X_Forwarded_For="10.0.0.1")).status == 403
    assert (await session(machines, STRANGER)).status == 404
    assert (await machines.ask("/latest/api/token")).status == 405
    assert (await machines.ask("/latest/api/token", method="POST")).status == 405
    assert (await session(machines, path="/2009-04-04/api/token")).status == 405
    assert (await session(machines, path="/latest/user-data")).status == 405


async def test_session_token_is_had_through_a_trusted_proxy_and_with_a_signed_url(other_rack: OtherRack) -> None:
    async with other_rack(trusted=TRUSTED, imds_required=True) as rack:
        fill(rack)
        through = (await session(rack, PROXY, X_Forwarded_For=IP)).text
        assert (await rack.ask("/latest/user-data", X_aws_ec2_metadata_token=through)).text == "secret-of-m1"
        token = tokens(rack).mint(MAC)
        signed = (await session(rack, STRANGER, path=f"/machine/{token}/latest/api/token")).text
        reply = await rack.ask(f"/machine/{token}/latest/user-data", ip=STRANGER, X_aws_ec2_metadata_token=signed)
        assert reply.text == "secret-of-m1"


async def test_no_answer_may_be_kept_by_a_proxy_for_the_next_machine(machines: Any) -> None:
    for path in ("/latest/user-data", "/latest/none", "/nocloud/m1/meta-data", "/metadata", "/nocloud/m2/user-data"):
        for headers in ({}, {"X_Anything": "slow"}):
            assert (await machines.ask(path, **headers)).headers["Cache-Control"] == "no-store", path
    assert (await machines.ask("/latest/user-data", ip=STRANGER)).headers["Cache-Control"] == "no-store"
    assert (await session(machines)).headers["Cache-Control"] == "no-store"
