"""The Redfish client against answers that are broken or meant to harm, over TLS on loopback, and fuzzed."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from ipaddress import ip_network
from typing import Any

import orjson
import pytest
from aiohttp import web
from multidict import CIMultiDict

from tests.ports import free_port
from tests.support.bmc import (
    CONNECTION,
    CREDENTIALS,
    MANAGER,
    PASSWORD,
    ROOT,
    SESSIONS,
    SYSTEM,
    FakeBmc,
    Fault,
    MemoryTransport,
    Served,
    certificate,
    serve,
)
from tests.waiting import until
from tink.bmc.model import (
    BmcConnection,
    BmcCredentials,
    BmcError,
    Cause,
    EjectMedium,
    InsertMedium,
    PowerState,
    Reset,
    ResetType,
    SetBoot,
)
from tink.bmc.redfish import Answer, HttpsTransport, RedfishClient, RedfishLimits, new_session
from tink.net.outbound import Reach

LOOPBACK = "127.0.0.1"
SIGNED = "http://192.0.2.1:7080/iso/52-54-00-00-00-01/0123456789abcdef0123456789/boot.iso?signature=deadbeefcafe"


async def failure(connection: BmcConnection, credentials: BmcCredentials = CREDENTIALS, **settings: Any) -> BmcError:
    """The error of a client that logs in and observes everything."""
    with pytest.raises(BmcError) as caught:
        async with RedfishClient(connection, credentials, **settings) as client:
            await client.observe(boot=True, media=True)
    return caught.value


def everything_shown(error: BaseException) -> str:
    """All texts of an error, and of the errors behind it, that a log could show."""
    texts = traceback.format_exception(error)
    behind: BaseException | None = error
    while behind is not None:
        texts += [str(behind), repr(behind), repr(vars(behind))]
        behind = behind.__cause__ or behind.__context__
    return "\n".join(texts)


@asynccontextmanager
async def broken(fault: Fault, path: str = SYSTEM) -> AsyncIterator[Served]:
    """A served BMC whose answer at one path is broken."""
    async with serve(FakeBmc(faults={fault}, broken_path=path)) as served:
        yield served


# --- answers ----------------------------------------------------------------------------------------------------------

BAD = {
    Fault.CUT_JSON: "not JSON",
    Fault.CUT_CONNECTION: "",
    Fault.HUGE: "larger than 1048576 bytes",
    Fault.MANY_VALUES: "more than 50000 values",
    Fault.DEEP: "deeper than 32 levels",
    Fault.DEEPER: "more than 50000 values",
    Fault.ENDLESS: "larger than 1048576 bytes",
    Fault.XML: "not JSON in UTF-8 (30 bytes, Content-Type application/xml",
    Fault.HTML_LOGIN: "Content-Type text/html",
    Fault.BAD_ENCODING: "not JSON in UTF-8",
    Fault.NOT_AN_OBJECT: "not a JSON object",
    Fault.NO_BODY: "not JSON",
    Fault.GZIP_BOMB: "larger than 1048576 bytes",
    Fault.BAD_GZIP: "",
    Fault.UNKNOWN_CODING: "",
    Fault.MANY_HEADERS: "",
    Fault.LONG_HEADER: "",
    Fault.REDIRECT_OTHER: "'https://other.invalid/redfish/v1/Systems/1', which is elsewhere",
    Fault.REDIRECT_PLAIN: "which is elsewhere",
    Fault.REDIRECT_LOOP: "more than 3 redirects",
}


@pytest.mark.parametrize("fault", sorted(BAD), ids=lambda fault: fault.name)
async def test_broken_answer_is_an_error_and_ends_the_session(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with broken(fault) as served:
        error = await failure(served.connection())
        assert error.cause is Cause.BAD_ANSWER
        assert BAD[fault] in str(error)
        assert len(str(error)) < 600
        assert str(error).isprintable()
        assert (served.bmc.logins, served.bmc.failed_logins, served.bmc.open_sessions) == (1, 0, 0)
        assert PASSWORD not in everything_shown(error) + caplog.text


@pytest.mark.parametrize("fault", sorted(BAD), ids=lambda fault: fault.name)
async def test_broken_answer_to_the_login_is_an_error_and_no_second_login(fault: Fault) -> None:
    async with broken(fault, SESSIONS) as served:
        with suppress(BmcError):
            async with RedfishClient(served.connection(), CREDENTIALS) as client:
                await client.observe()
        assert served.bmc.logins <= 1
        assert served.bmc.failed_logins == 0


async def test_gzip_is_accepted() -> None:
    async with broken(Fault.GZIP) as served, RedfishClient(served.connection(), CREDENTIALS) as client:
        assert (await client.observe()).identity.model == "3500"
        assert served.bmc.last_headers["accept-encoding"] == "gzip"


async def test_values_of_wrong_types_are_absent() -> None:
    for path in (f"{ROOT}/Managers", MANAGER, SYSTEM):
        async with broken(Fault.WRONG_TYPES, path) as served, RedfishClient(served.connection(), CREDENTIALS) as client:
            seen = await client.observe(boot=True, media=True)
            assert seen.power is (PowerState.UNKNOWN if path == SYSTEM else PowerState.OFF)


async def test_silent_bmc_is_unreachable_after_its_limit() -> None:
    for path in (ROOT, SYSTEM):
        async with broken(Fault.HANG, path) as served:
            limits = RedfishLimits(answer_seconds=0.2, logout_seconds=0.2)
            error = await failure(served.connection(), limits=limits)
            assert error.cause is Cause.UNREACHABLE
            assert "no answer within 0.2 s" in str(error)


async def test_dripping_answer_ends_after_its_limit() -> None:
    async with broken(Fault.DRIP, ROOT) as served:
        # On a machine that stood still, a short limit ends before the answer begins.
        for seconds in (0.2, 1, 5, 25):
            transport = HttpsTransport(served.connection(), limits=RedfishLimits(answer_seconds=seconds))
            with pytest.raises(BmcError) as caught:
                await transport.exchange("GET", f"{ROOT}/", {}, None)
            await transport.close()
            if caught.value.cause is Cause.BAD_ANSWER:
                break
        assert caught.value.cause is Cause.BAD_ANSWER
        assert "did not end within" in str(caught.value)


async def test_kept_connection_that_breaks_is_not_kept_again() -> None:
    async with serve(FakeBmc()) as served:
        async with RedfishClient(served.connection(), CREDENTIALS) as client:
            await client.observe()
            served.bmc.faults.add(Fault.KEPT_CONNECTION_BREAKS)
            with pytest.raises(BmcError) as caught:
                await client.send(Reset(ResetType.ON))
            assert caught.value.cause is Cause.UNREACHABLE
            assert served.bmc.resets == []
            await client.send(Reset(ResetType.ON))
            await client.send(Reset(ResetType.FORCE_OFF))
        assert served.bmc.resets == ["On", "ForceOff"]
        assert served.bmc.open_sessions == 0
        async with RedfishClient(served.connection(), CREDENTIALS, close_each=True) as client:
            await client.send(Reset(ResetType.ON))


async def test_one_connection_serves_a_client_and_is_closed() -> None:
    async with serve(FakeBmc()) as served:
        async with RedfishClient(served.connection(), CREDENTIALS) as client:
            await client.observe(boot=True, media=True)
            await client.send(SetBoot("Pxe", "Once"))
            assert served.connections() == 1
        await until(lambda: served.connections() == 0)
        assert len(served.accepted) == 1


async def test_cancelled_client_leaves_neither_session_nor_connection() -> None:
    async with broken(Fault.HANG) as served:

        async def run() -> None:
            async with RedfishClient(served.connection(), CREDENTIALS) as client:
                await client.observe()

        task = asyncio.ensure_future(run())
        await until(lambda: any(path == SYSTEM for _, path, _ in served.bmc.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert served.bmc.open_sessions == 0
        await until(lambda: served.connections() == 0)


# --- secrets ----------------------------------------------------------------------------------------------------------


async def test_bmc_that_repeats_the_request_learns_us_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bmc = FakeBmc(faults={Fault.ECHO, Fault.MODE_REFUSED, Fault.MEDIA_BY_PATCH, Fault.HTTP_URI})
    wrong = BmcCredentials("root", "Summer2019!", version="1")
    async with serve(bmc) as served:
        shown = [everything_shown(await failure(served.connection(), wrong))]
        basic = served.connection(use_basic_auth=True)
        shown.append(everything_shown(await failure(basic, wrong)))
        async with RedfishClient(basic, CREDENTIALS) as client:
            with pytest.raises(BmcError) as caught:
                await client.send(SetBoot(mode="UEFI"))
            assert "PropertyNotWritable: BootSourceOverrideMode for Basic … in" in str(caught.value)
            shown.append(everything_shown(caught.value))
        async with RedfishClient(served.connection(), CREDENTIALS) as client:
            token = next(iter(bmc.sessions.values()))
            await client.observe(media=True)
            slot = bmc.slots[0].path
            for request in (
                SetBoot(token, mode=f"{PASSWORD} {token}"),
                InsertMedium(slot, SIGNED, by_patch=True),
                SetBoot("UefiHttp", mode="UEFI", http_uri="http://192.0.2.1/boot.efi?key=feedface"),
            ):
                with pytest.raises(BmcError) as caught:
                    await client.send(request)
                shown.append(everything_shown(caught.value))
            assert PASSWORD not in repr(client)
    text = "\n".join(shown) + caplog.text
    for secret in (
        "Summer2019!",
        "cm9vdDpTdW1tZXIyMDE5IQ",
        "cm9vdDpjNGx2aW4tYW5kLWgwYmJlcw",
        PASSWORD,
        token,
        "deadbeefcafe",
        "feedface",
    ):
        assert secret not in text
    assert bmc.failed_logins == 2


@pytest.mark.looptime
async def test_no_half_of_a_password_stays_at_the_end_of_a_long_message() -> None:
    password = 'q"' + "0123456789" * 30
    bmc = FakeBmc(faults={Fault.ECHO, Fault.MODE_REFUSED}, accounts={"root": password})
    async with RedfishClient(CONNECTION, BmcCredentials("root", password), transport=MemoryTransport(bmc)) as client:
        for text in (password, "x" * 150 + password):
            with pytest.raises(BmcError) as caught:
                await client.send(SetBoot(text, mode="UEFI"))
            assert "0123" not in everything_shown(caught.value)


async def test_error_behind_a_broken_connection_shows_no_token() -> None:
    async with broken(Fault.MANY_HEADERS) as served:
        async with RedfishClient(served.connection(), CREDENTIALS) as client:
            (token,) = served.bmc.sessions.values()
            with pytest.raises(BmcError) as caught:
                await client.observe()
        assert token not in everything_shown(caught.value)


# --- TLS --------------------------------------------------------------------------------------------------------------


TRUST: dict[str, Callable[[], dict[str, Any]]] = {
    "fingerprint": dict,
    "authority": lambda: {"fingerprint": "", "authority": certificate(LOOPBACK).authority},
    "certificate as authority": lambda: {"fingerprint": "", "authority": certificate(LOOPBACK).alone},
    "unverified": lambda: {"fingerprint": "", "insecure_tls": True},
}


@pytest.mark.parametrize("trust", TRUST)
async def test_certificate_is_trusted_by_fingerprint_or_authority_or_unverified(trust: str) -> None:
    async with serve(FakeBmc()) as served, RedfishClient(served.connection(**TRUST[trust]()), CREDENTIALS) as client:
        assert (await client.observe()).identity.vendor == "Contoso"


def other_authority(**changes: Any) -> dict[str, Any]:
    """A connection that trusts an authority of another certificate."""
    return {"fingerprint": "", "authority": certificate("192.0.2.7").authority} | changes


DISTRUST: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "authorities of this host": (lambda: {"fingerprint": ""}, "its certificate is not trusted ("),
    "other fingerprint": (lambda: {"fingerprint": "ab" * 32}, ", not the Machine's certificateFingerprint"),
    "fingerprint before all else": (
        lambda: {"fingerprint": "ab" * 32, "insecure_tls": True, "authority": certificate(LOOPBACK).authority},
        "its certificate has the fingerprint {}, not",
    ),
    "other authority": (other_authority, "its certificate is not trusted ("),
    "authority before insecureTLS": (lambda: other_authority(insecure_tls=True), "its certificate is not trusted ("),
    "no authority": (lambda: other_authority(authority="no PEM"), "caSecretRef is not a certificate in PEM"),
    "no fingerprint": (lambda: {"fingerprint": "xyz"}, "certificateFingerprint is not a SHA-256"),
    "short fingerprint": (lambda: {"fingerprint": "abcd"}, "certificateFingerprint is not a SHA-256"),
}


@pytest.mark.parametrize("distrust", DISTRUST)
async def test_bmc_with_another_certificate_gets_no_request(distrust: str) -> None:
    trust, text = DISTRUST[distrust]
    async with serve(FakeBmc()) as served:
        error = await failure(served.connection(**trust()))
        assert error.cause is Cause.CERTIFICATE
        assert text.format(served.certificate.fingerprint) in str(error)
        assert served.bmc.requests == []


async def test_certificate_of_the_authority_for_another_address_is_refused() -> None:
    async with serve(FakeBmc(), address="192.0.2.7") as served:
        error = await failure(served.connection(fingerprint="", authority=certificate("192.0.2.7").authority))
        assert error.cause is Cause.CERTIFICATE
        assert "127.0.0.1" in str(error)


# --- connections ------------------------------------------------------------------------------------------------------


async def test_host_without_a_listener_is_unreachable() -> None:
    port = free_port()
    error = await failure(BmcConnection("127.0.0.1", redfish_port=port))
    assert error.cause is Cause.UNREACHABLE
    assert f"127.0.0.1:{port} refuses the connection" in str(error)


async def test_session_that_the_bmc_ends_early_is_busy() -> None:
    async with broken(Fault.LATE_401) as served:
        error = await failure(served.connection())
        assert error.cause is Cause.BUSY
        assert "ended the session" in str(error)


async def test_server_without_tls_is_unreachable() -> None:
    runner = web.ServerRunner(web.Server(lambda request: web.Response()))  # type: ignore[arg-type, return-value]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    error = await failure(BmcConnection("127.0.0.1", redfish_port=runner.addresses[0][1], insecure_tls=True))
    await runner.cleanup()
    assert error.cause is Cause.UNREACHABLE
    assert "no TLS" in str(error)


@pytest.mark.parametrize(
    "host", ["", "a b", "user@192.0.2.1", "192.0.2.1/x", "192.0.2.1?x", "192.0.2.1#x", "x\r\ny", "::1]:80/", "-\x00"]
)
async def test_host_that_is_no_host_is_never_connected_to(host: str) -> None:
    error = await failure(BmcConnection(host))
    assert error.cause is Cause.UNREACHABLE
    assert "is not an address or a host name" in str(error)
    assert str(error).isprintable()


async def test_port_and_addresses_beyond_reach_are_unreachable() -> None:
    assert (await failure(BmcConnection("127.0.0.1", redfish_port=700_000))).cause is Cause.UNREACHABLE
    session = partial(new_session, Reach(allowed=(ip_network("192.0.2.0/24"),)))
    error = await failure(BmcConnection("127.0.0.1"), session=session)
    assert error.cause is Cause.UNREACHABLE
    assert "loopback" in str(error)


# --- fuzz -------------------------------------------------------------------------------------------------------------

ODD: tuple[Callable[[random.Random], Any], ...] = (
    lambda _: None,
    lambda _: {},
    lambda _: [],
    lambda _: "",
    lambda r: r.choice([0, -1, 2**63, 1.5, True]),
    lambda r: "x" * r.choice([1, 300, 5000]),
    lambda r: r.choice(
        ["\x00\x1b[31m", "../..", "//h/redfish/v1", "/redfish/v1/../..", "https://h/redfish", "On\r\n", "💥"]
    ),
    lambda r: {"@odata.id": r.choice([SYSTEM, ROOT, "/redfish/v1/None", "http://x", 7, None])},
    lambda r: [{"@odata.id": SYSTEM}] * r.choice([1, 1000]),
    lambda r: {"target": r.choice([SYSTEM, "x", 7])},
    lambda r: {"SettingsObject": {"@odata.id": r.choice([SYSTEM, 7])}},
)


LARGE = {Fault.HUGE, Fault.MANY_VALUES, Fault.DEEPER, Fault.GZIP_BOMB}


def mutated(document: Any, r: random.Random, rate: float) -> Any:
    """A document with a share of its values replaced, removed or nested."""
    if r.random() < rate / 3:
        return r.choice(ODD)(r)
    if isinstance(document, dict):
        return {name: mutated(value, r, rate) for name, value in document.items() if r.random() > rate}
    if isinstance(document, list):
        return [mutated(each, r, rate) for each in document]
    return document if r.random() > rate else r.choice(ODD)(r)


class FuzzedTransport(MemoryTransport):
    """Changes a share of the bodies, statuses and headers of a fake BMC at random."""

    def __init__(self, bmc: FakeBmc, r: random.Random, rate: float) -> None:
        super().__init__(bmc)
        self._random, self._rate = r, rate
        self.requests = 0

    async def exchange(self, method: str, path: str, headers: Any, body: bytes | None) -> Answer:
        self.requests += 1
        assert path.startswith("/redfish/")
        assert path.isascii()
        assert path.isprintable()
        answer = await super().exchange(method, path, headers, body)
        r, rate, text, status = self._random, self._rate, answer.body, answer.status
        with suppress(ValueError):
            text = json.dumps(mutated(orjson.loads(text), r, rate)).encode()
        if text and r.random() < rate:
            place = r.randrange(len(text))
            text = text[:place] + r.randbytes(r.randrange(8)) + text[place + r.randrange(8) :]
        changed = CIMultiDict(answer.headers)
        for name in ("ETag", "Location", "X-Auth-Token", "Retry-After"):
            if r.random() < rate:
                changed[name] = r.choice(["", "W/", '"', "9" * 400, "-1", "/", "https://[", "\udcff", "a\x7f", SYSTEM])
        if r.random() < rate:
            status = r.choice([200, 202, 204, 301, 303, 400, 401, 403, 404, 412, 500, 503, 700])
        return Answer(status, changed, text)


@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(20))
async def test_fuzzed_answers_lead_to_bmc_errors_alone(seed: int) -> None:
    r = random.Random(seed)
    succeeded, errors = 0, []
    for _ in range(30):
        faults = set(r.sample(sorted(set(Fault) - LARGE), 3)) if r.random() < 0.6 else set()
        transport = FuzzedTransport(FakeBmc(faults=faults), r, r.choice([0, 0.005, 0.05, 0.2]))
        try:
            async with RedfishClient(CONNECTION, CREDENTIALS, transport=transport) as client:
                for _ in range(3):
                    with suppress(BmcError):
                        seen = await client.observe(boot=True, media=True)
                        assert len(seen.slots or ()) <= 32
                        slots = [slot.path for slot in seen.slots or ()] + ["x"]
                        await client.send(SetBoot("Pxe", "Once", "UEFI", at_settings=r.random() < 0.2))
                        await client.send(Reset(ResetType.ON))
                        succeeded += 1
                        await client.send(InsertMedium(r.choice(slots), SIGNED, by_patch=r.random() < 0.3))
                        await client.send(EjectMedium(r.choice(slots), by_patch=r.random() < 0.3))
        except BmcError as error:
            errors.append(error)
        assert transport.closed == 1
        assert transport.requests < 500
    assert succeeded
    assert errors
    assert all(str(error).isprintable() and PASSWORD not in everything_shown(error) for error in errors)
