"""The webhooks' decisions, and whom the API server is told to trust: without a server and without a network."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tink.api.v1alpha2 import Raw
from tink.controller.settings import WebhookSettings
from tink.controller.webhooks import certificates
from tink.controller.webhooks.admission import respond
from tink.controller.webhooks.certificates import CertificateError, MemoryKeeper, SecretKeeper
from tink.controller.webhooks.claims import MOST_REMEMBERED, REMEMBERED_SECONDS, Claims, Kind, claims_of
from tink.controller.webhooks.references import References
from tink.controller.webhooks.registration import Address, configuration, register, remove
from tink.controller.webhooks.reviewer import Request, Reviewer, Verdict
from tink.kube.client import ConflictError, NotFoundError, UnreachableError

NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)
DAY = timedelta(days=1)


def hardware(name: str, *nics: tuple[str, str], namespace: str = "d", osie: str = "", **metadata: Any) -> Raw:
    interfaces = {mac: {"dhcp": {"ip": ip}} if ip else {} for mac, ip in nics}
    spec: Raw = {"networkInterfaces": interfaces, **({"osie": {"name": osie}} if osie else {})}
    return {"kind": "Hardware", "metadata": {"name": name, "namespace": namespace, **metadata}, "spec": spec}


def workflow(name: str, machine: str, template: str, state: str = "") -> Raw:
    spec = {"hardwareRef": {"name": machine}, "templateRef": {"name": template}}
    status = {"status": {"state": state}} if state else {}
    return {"kind": "Workflow", "metadata": {"name": name, "namespace": "d"}, "spec": spec, **status}


class World:
    """What the informers know, and what the API has: the same, unless a test says otherwise."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stored: dict[tuple[str, str, str], Raw] = {}
        self.fault: Exception | None = None
        self.asked = 0
        self.known = False
        self.reviewer = Reviewer(self._look_up, self._cached, lambda: self.now)

    async def _look_up(self, kind: str, namespace: str, name: str) -> Raw | None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        return self.stored.get((kind, namespace, name))

    def _cached(self, kind: str, namespace: str, name: str) -> bool:
        return self.known

    def store(self, obj: Raw, *, informed: bool = True) -> Raw:
        self.stored[(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])] = obj
        if informed:
            self.inform(obj)
        return obj

    def inform(self, obj: Raw) -> None:
        self.reviewer.references.apply(obj)
        if obj["kind"] == "Hardware":
            self.reviewer.claims.apply(obj)

    async def review(self, operation: str, new: Any, old: Any = None, **more: Any) -> Verdict:
        some = new or old
        metadata = some["metadata"]
        request = {"kind": {"kind": some["kind"]}, "operation": operation, "namespace": metadata["namespace"]}
        return await self.reviewer.review(
            Request.read({**request, "name": metadata["name"], "object": new, "oldObject": old, **more})
        )


@pytest.fixture
def world() -> World:
    return World()


def said(verdict: Verdict) -> list[str]:
    return [f"{cause.field}: {cause.message}" for cause in verdict.causes]


# --- addresses --------------------------------------------------------------------------------------------------------


async def test_address_of_another_machine_is_refused_and_the_machine_and_its_field_are_named(world: World) -> None:
    world.store(hardware("a", ("m1", "1.1.1.1")))
    verdict = await world.review("CREATE", hardware("b", ("m2", "1.1.1.1"), ("m1", ""), namespace="e"))
    assert said(verdict) == [
        "spec.networkInterfaces[m2].dhcp.ip: IP address 1.1.1.1 is that of Hardware d/a already "
        "(spec.networkInterfaces[m1].dhcp.ip)",
        "spec.networkInterfaces[m1]: MAC address m1 is that of Hardware d/a already (spec.networkInterfaces[m1])",
    ]


async def test_mac_in_capitals_of_an_older_object_is_the_same_mac(world: World) -> None:
    world.store(hardware("a", ("AA:BB", "")))
    assert said(await world.review("CREATE", hardware("b", ("aa:bb", ""))))


async def test_machine_with_a_conflict_can_be_labelled_mended_and_deleted(world: World) -> None:
    world.store(hardware("a", ("m1", "1.1.1.1")))
    old = world.store(hardware("b", ("m1", "1.1.1.1"), ("m2", "")))
    assert not said(await world.review("UPDATE", hardware("b", ("m1", "1.1.1.1"), ("m2", ""), labels={"x": "y"}), old))
    assert not said(await world.review("UPDATE", hardware("b", ("m1", "1.1.1.1")), old))
    assert said(await world.review("UPDATE", hardware("b", ("m1", "1.1.1.1"), ("m2", ""), ("m3", "")), old)) == []
    leaving = hardware("b", ("m1", "1.1.1.1"), deletionTimestamp="2027-01-15T08:00:00Z")
    assert not said(await world.review("UPDATE", leaving, hardware("b")))


async def test_machine_that_is_being_deleted_keeps_its_address_until_it_is_gone(world: World) -> None:
    leaving = world.store(hardware("a", ("m1", ""), deletionTimestamp="2027-01-15T08:00:00Z"))
    new = hardware("b", ("m1", ""))
    assert "which is being deleted: wait until it is gone" in said(await world.review("CREATE", new))[0]
    world.reviewer.claims.remove(leaving)
    assert not said(await world.review("CREATE", new))


async def test_second_of_two_creates_at_once_is_refused_until_the_first_can_not_come_any_more(world: World) -> None:
    first, second = hardware("a", ("m1", "")), hardware("b", ("m1", ""))
    verdicts = await asyncio.gather(world.review("CREATE", first), world.review("CREATE", second))
    assert [len(said(verdict)) for verdict in verdicts] == [0, 1]
    assert "Hardware d/a, which is written at this moment" in said(verdicts[1])[0]
    assert not said(await world.review("CREATE", first)), "an object never conflicts with itself"
    world.now += REMEMBERED_SECONDS + 0.1
    assert not said(await world.review("CREATE", second)), "the first was never stored"


async def test_create_that_was_stored_is_named_as_such_before_the_informer_knows(world: World) -> None:
    await world.review("CREATE", hardware("a", ("m1", "")))
    world.store(hardware("a", ("m1", "")), informed=False)
    assert "is that of Hardware d/a already" in said(await world.review("CREATE", hardware("b", ("m1", ""))))[0]


async def test_dry_run_and_refused_requests_claim_nothing(world: World) -> None:
    await world.review("CREATE", hardware("dry", ("m1", "")), dryRun=True)
    assert not said(await world.review("CREATE", hardware("a", ("m1", ""))))
    assert said(await world.review("CREATE", hardware("b", ("m1", ""), ("m2", ""))))
    assert not said(await world.review("CREATE", hardware("c", ("m2", ""))))


async def test_address_that_was_let_go_a_moment_ago_is_free(world: World) -> None:
    world.store(hardware("a", ("m1", "1.1.1.1")))
    world.store(hardware("a", ("m1", "1.1.1.2")), informed=False)
    assert not said(await world.review("CREATE", hardware("b", ("m2", "1.1.1.1"))))
    world.stored.clear()
    assert not said(await world.review("CREATE", hardware("c", ("m1", ""))))


async def test_what_the_informers_know_counts_while_the_api_can_not_be_asked(world: World) -> None:
    world.store(hardware("a", ("m1", "")))
    world.fault = UnreachableError("away")
    assert said(await world.review("CREATE", hardware("b", ("m1", ""))))


async def test_machine_that_is_made_anew_does_not_conflict_with_what_it_was(world: World) -> None:
    world.store(hardware("a", ("m1", ""), deletionTimestamp="2027-01-15T08:00:00Z"))
    assert not said(await world.review("CREATE", hardware("a", ("m1", ""))))
    assert world.asked == 0
    assert not world.reviewer.claims._arrivals, "the informer knows of it; there is nothing to remember"
    world.store(hardware("a", ("m1", "")))
    assert said(await world.review("CREATE", hardware("b", ("m1", ""))))[0].endswith(
        "already (spec.networkInterfaces[m1])"
    )


async def test_machine_that_came_and_went_leaves_its_address_at_once(world: World) -> None:
    machine = hardware("a", ("m1", ""))
    await world.review("CREATE", machine)
    world.inform(machine)
    world.reviewer.claims.remove(machine)
    assert not said(await world.review("CREATE", hardware("b", ("m1", ""))))


async def test_write_without_a_conflict_costs_no_call_however_many_machines_there_are(world: World) -> None:
    for number in range(1000):
        world.store(hardware(f"h{number}", (f"m{number}", f"1.1.{number}")))
    assert not said(await world.review("CREATE", hardware("b", ("new", "9.9.9.9"))))
    assert world.asked == 0


def test_admitted_but_never_stored_addresses_do_not_fill_the_memory() -> None:
    claims = Claims()
    for number in range(MOST_REMEMBERED + 10):
        claims.admitted(("d", "h"), {(Kind.MAC, str(number)): "f"}, 0.0)
    assert len(claims._arrivals) == MOST_REMEMBERED
    claims.conflicts(("d", "x"), {}, REMEMBERED_SECONDS + 1)
    assert not claims._arrivals


def test_nothing_is_left_of_machines_that_are_gone() -> None:
    claims, references = Claims(), References()
    for machine in (hardware("a", ("m1", "1.1.1.1"), osie="o"), hardware("a", ("m2", "1.1.1.1"), osie="p")):
        claims.apply(machine)
        references.apply(machine)
    assert set(claims._holders) == {(Kind.MAC, "m2"), (Kind.IP, "1.1.1.1")}
    assert references.referrers(("OSIE", "d", "o"), 3) == ([], 0)
    claims.remove(machine)
    references.remove(machine)
    assert not claims._holders
    assert not claims._of
    assert not references._referrers


@pytest.mark.parametrize("odd", [None, 1, [], {}, {"spec": 1}, {"spec": {"networkInterfaces": []}}])
def test_odd_hardware_claims_nothing(odd: Any) -> None:
    assert claims_of(odd) == {}


ODD: list[Any] = [None, [], "x", 7, {}, {"spec": None}, {"spec": []}, {"spec": {"networkInterfaces": ["x"]}}]
ODD += [{"spec": {"networkInterfaces": {"m": value}}} for value in (None, 1, {"dhcp": []}, {"dhcp": {"ip": 7}})]
ODD += [{"spec": {"actions": value}} for value in (None, 7, {}, [None], [{"image": 7}], [{"volumes": "x"}])]
ODD += [{"metadata": value, "spec": {"hardwareRef": 1, "templateRef": {}}} for value in (None, [], {"name": 1})]
ODD += [{"spec": {"ipxe": 7}, "status": 7}, {"spec": {"templateRef": {"name": 3}}, "status": {"state": []}}]


def osie(kernel: Any, initrd: Any = "http://192.0.2.1/initrd") -> Raw:
    return {
        "kind": "OSIE",
        "metadata": {"name": "o", "namespace": "d"},
        "spec": {"kernelUrl": kernel, "initrdUrl": initrd},
    }


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:8080/kernel", "127.0.0.1 is a loopback address"),
        ("http://LOCALHOST/kernel", "localhost is a loopback address"),
        ("https://user:secret@[::ffff:127.0.0.1]/kernel?sig=secret", "::ffff:127.0.0.1 is a loopback address"),
        ("http://169.254.169.254/latest/user-data", "169.254.169.254 is a link-local address"),
        ("http://kernels.example/kernel", ""),
        ("http://192.0.2.1/kernel", ""),
        ("file:///var/lib/tinkedge/osie/kernel", ""),
        ("http://[::1/kernel", ""),
        (7, ""),
    ],
)
async def test_osie_with_a_url_that_no_edge_follows_is_let_in_with_a_warning(world: World, url: Any, said: str) -> None:
    expected = ()
    if said:
        address = said.split(" ")[0].replace("localhost", "127.0.0.1").replace("::ffff:", "")
        expected = (
            f"spec.kernelUrl: {said}: an edge fetches nothing from there, unless it was started with --allow-upstream "
            f"{address}",
        )
    assert await world.review("CREATE", osie(url)) == Verdict(warnings=expected)
    # Nobody is told again of what was there before.
    assert await world.review("UPDATE", osie(url), osie(url)) == Verdict()
    assert await world.review("UPDATE", osie("http://192.0.2.1/k"), osie(url)) == Verdict()
    for odd in ({}, {"spec": []}, {"spec": None}):
        assert await world.review("UPDATE", {**osie(url), **odd}, odd or None) is not None


@pytest.mark.parametrize("odd", ODD)
async def test_odd_objects_are_left_to_the_schema_and_never_fail_a_review(
    world: World, odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in ("Hardware", "OSIE", "Template", "Workflow", "Nonsense", None):
        for operation in ("CREATE", "UPDATE", "DELETE", "CONNECT", None):
            for new, old in ((odd, None), (odd, odd), (None, odd)):
                asked = {"kind": {"kind": kind}, "operation": operation, "object": new, "oldObject": old}
                verdict = await world.reviewer.review(Request.read(asked))
                assert verdict.causes == ()
    assert caplog.text == "", "not even a mistake that was caught"


# --- references -------------------------------------------------------------------------------------------------------


async def test_deletion_of_what_is_needed_is_warned_about_with_the_first_few_names(world: World) -> None:
    for number in range(5):
        world.store(hardware(f"h{number}", osie="o"))
    verdict = await world.review("DELETE", None, {"kind": "OSIE", "metadata": {"name": "o", "namespace": "d"}})
    assert verdict.warnings == (
        "OSIE d/o is still referred to by Hardware d/h0, Hardware d/h1, Hardware d/h2 and 2 more",
    )
    other = {"kind": "OSIE", "metadata": {"name": "o", "namespace": "elsewhere"}}
    assert (await world.review("DELETE", None, other)).warnings == ()


async def test_workflow_that_has_ended_needs_nothing(world: World) -> None:
    world.store(workflow("w", "h", "t", "Running"))
    template = {"kind": "Template", "metadata": {"name": "t", "namespace": "d"}}
    assert (await world.review("DELETE", None, template)).warnings == (
        "Template d/t is still referred to by Workflow d/w (not ended)",
    )
    world.store(workflow("w", "h", "t", "Succeeded"))
    assert (await world.review("DELETE", None, template)).warnings == ()


async def test_workflow_is_let_in_with_a_warning_for_each_part_that_is_missing(world: World) -> None:
    world.store(hardware("h"))
    new = workflow("w", "h", "t")
    assert (await world.review("CREATE", new)).warnings == (
        "spec.templateRef.name: there is no Template d/t yet; the Workflow waits for it",
    )
    assert (await world.review("UPDATE", new, new)).warnings == (), "once is enough"
    world.known, world.asked = True, 0
    assert (await world.review("CREATE", new)).warnings == ()
    assert world.asked == 0, "what the informers know is not asked for"
    world.known = False
    world.fault = UnreachableError("away")
    assert (await world.review("CREATE", new)).warnings == (), "what can't be known is not claimed"


# --- templates --------------------------------------------------------------------------------------------------------


def template(**fields: Any) -> Raw:
    spec = {"actions": [{"name": "a", "image": "i", **fields}]}
    return {"kind": "Template", "metadata": {"name": "t", "namespace": "d"}, "spec": spec}


async def test_every_field_that_does_not_parse_is_named_with_line_and_column(world: World) -> None:
    verdict = await world.review("CREATE", template(image="{{ .X", args=["ok", "a\nb {{ nosuch }}"], cmd="{{ .Y }}"))
    assert said(verdict) == [
        "spec.actions[0].image: is no Go template: line 1, column 5: unclosed action",
        'spec.actions[0].args[1]: is no Go template: line 2, column 5: function "nosuch" not defined',
    ]


async def test_template_that_did_not_parse_before_can_be_labelled(world: World) -> None:
    bad = template(image="{{")
    assert not said(await world.review("UPDATE", bad | {"metadata": bad["metadata"] | {"labels": {"a": "b"}}}, bad))
    assert said(await world.review("UPDATE", template(image="{{ x"), bad))


async def test_large_template_is_parsed_beside_the_loop_with_the_same_result(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[Any] = []
    original = asyncio.to_thread

    async def counted(work: Any, *args: Any) -> Any:
        threads.append(work)
        return await original(work, *args)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    assert not said(await world.review("CREATE", template()))
    assert not threads
    verdict = await world.review("CREATE", template(args=["{{ .A }}" * 10_000, "{{ end }}"]))
    assert len(threads) == 1
    assert [cause.field for cause in verdict.causes] == ["spec.actions[0].args[1]"]


async def test_mistake_of_ours_lets_the_write_through(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claims, "conflicts", lambda *_: 1 / 0)
    assert await world.review("CREATE", hardware("a", ("m", ""))) == Verdict()


def test_response_of_an_admitted_write_says_no_more_than_that() -> None:
    assert respond(Verdict(), {}) == {"allowed": True}
    assert respond(Verdict(warnings=("w",)), {}) == {"allowed": True, "warnings": ["w"]}


# --- certificates -----------------------------------------------------------------------------------------------------


def handshake(bundle: bytes, server: ssl.SSLContext, name: str) -> None:
    """A TLS handshake in memory. Raises ssl.SSLError."""
    client_context = ssl.create_default_context(cadata=bundle.decode())
    a_in, a_out, b_in, b_out = (ssl.MemoryBIO() for _ in range(4))
    client = client_context.wrap_bio(a_in, a_out, server_hostname=name)
    served = server.wrap_bio(b_in, b_out, server_side=True)
    for _ in range(4):
        for side, out, into in ((client, a_out, b_in), (served, b_out, a_in)):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            into.write(out.read())


def served_by(authority: certificates.Authority, now: datetime) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificates.show(context, certificates.serving(authority, ["127.0.0.1", "w.ns.svc"], now))
    return context


def test_certificate_is_trusted_for_its_names_only_and_by_its_bundle_only() -> None:
    now = datetime.now(UTC)
    authority, other = certificates.renewed(None, now), certificates.renewed(None, now)
    context = served_by(authority, now)
    handshake(authority.bundle(), context, "127.0.0.1")
    handshake(authority.bundle(), context, "w.ns.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(authority.bundle(), context, "10.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(other.bundle(), context, "127.0.0.1")


def test_server_goes_on_with_a_new_certificate_without_a_restart() -> None:
    now = datetime.now(UTC)
    context = served_by(certificates.renewed(None, now - 100 * DAY), now - 100 * DAY)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(certificates.renewed(None, now).bundle(), context, "127.0.0.1")
    authority = certificates.renewed(None, now)
    certificates.show(context, certificates.serving(authority, ["127.0.0.1"], now))
    handshake(authority.bundle(), context, "127.0.0.1")


def test_serving_certificate_is_renewed_a_month_before_it_ends() -> None:
    made = certificates.serving(certificates.renewed(None, NOW), ["x"], NOW)
    assert made.renew_at == NOW + 60 * DAY


async def test_authority_is_renewed_in_its_last_third_and_the_old_one_stays_trusted() -> None:
    keeper = MemoryKeeper()
    first = await keeper.authority(NOW)
    assert await keeper.authority(NOW + 2000 * DAY) is first
    second = await keeper.authority(NOW + 2500 * DAY)
    assert second.certificates == (second.certificates[0], first.certificates[0])
    assert second.key != first.key
    assert (await keeper.authority(NOW + 6000 * DAY)).certificates[1:] == (second.certificates[0],), "ended: no trust"


class FakeApi:
    """The calls that keepers and the registration make, over a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, Raw] = {}
        self.writes = 0
        self.rival: Raw | None = None

    async def get(self, resource: Any, name: str, namespace: str | None) -> Raw:
        if name not in self.objects:
            raise NotFoundError(404, "NotFound", name)
        return self.objects[name]

    async def create(self, resource: Any, obj: Raw, namespace: str | None = None) -> Raw:
        name = obj["metadata"]["name"]
        if self.rival is not None:
            self.objects[name], self.rival = self.rival, None
        if name in self.objects:
            raise ConflictError(409, "AlreadyExists", name)
        return self._put(name, obj)

    async def patch(self, resource: Any, name: str, namespace: str | None, patch: Raw) -> Raw:
        return self._put(name, {**self.objects[name], **patch})

    async def delete(self, resource: Any, name: str, namespace: str | None) -> Raw:
        if self.objects.pop(name, None) is None:
            raise NotFoundError(404, "NotFound", name)
        return {}

    def _put(self, name: str, obj: Raw) -> Raw:
        self.writes += 1
        metadata = {**obj["metadata"], "name": name, "resourceVersion": str(self.writes)}
        self.objects[name] = copy.deepcopy({**obj, "metadata": metadata})
        return self.objects[name]


async def test_replicas_share_one_authority_whoever_made_it() -> None:
    api = FakeApi()
    mine = SecretKeeper(api, "ns", "ca")  # type: ignore[arg-type]
    theirs = SecretKeeper(api, "ns", "ca")  # type: ignore[arg-type]
    assert (await mine.authority(NOW)).bundle() == (await theirs.authority(NOW)).bundle()
    assert api.writes == 1
    late = FakeApi()
    late.rival = api.objects["ca"]
    third = SecretKeeper(late, "ns", "ca")  # type: ignore[arg-type]
    assert (await third.authority(NOW)).bundle() == (await mine.authority(NOW)).bundle()
    renewed = await theirs.authority(NOW + 3000 * DAY)
    assert len(renewed.certificates) == 2
    assert (await mine.authority(NOW + 3000 * DAY)).bundle() == renewed.bundle()


@pytest.mark.parametrize("data", [None, {}, {"ca.crt": "eA==", "ca.key": "eA=="}, {"ca.crt": 7, "ca.key": "!"}])
async def test_secret_that_holds_no_authority_is_named_with_what_to_do(data: Any) -> None:
    api = FakeApi()
    api.objects["ca"] = {"metadata": {"name": "ca"}, "data": data}
    with pytest.raises(CertificateError, match=r"Secret ns/ca: no certificate authority: .*Delete it"):
        await SecretKeeper(api, "ns", "ca").authority(NOW)  # type: ignore[arg-type]


async def test_key_of_another_authority_is_noticed() -> None:
    one, other = certificates.renewed(None, NOW), certificates.renewed(None, NOW)
    with pytest.raises(ValueError, match="not that of the first"):
        certificates.Authority.read(one.bundle(), other.private())


# --- registration and settings ----------------------------------------------------------------------------------------


async def test_registration_writes_only_what_differs_and_bears_defaults_of_the_server() -> None:
    api: Any = FakeApi()
    wanted = configuration(Address("/p", url="https://127.0.0.1:1"), b"CA", "Ignore")
    assert await register(api, wanted)
    for webhook in api.objects["tinkedge"]["webhooks"]:
        webhook["namespaceSelector"] = {}
    assert not await register(api, wanted)
    assert await register(api, configuration(Address("/p", url="https://127.0.0.1:1"), b"CB", "Ignore"))
    api.objects["tinkedge"]["webhooks"].append({"name": "somebody.else.s"})
    assert await register(api, wanted)
    assert not await register(api, wanted)
    api.objects["tinkedge"]["webhooks"].pop()
    assert await register(api, wanted)
    assert api.objects["tinkedge"]["webhooks"] == wanted["webhooks"]
    await remove(api)
    await remove(api)
    assert not api.objects


def test_api_server_is_told_of_a_service_or_a_url_with_the_bundle() -> None:
    service = Address("/admission", namespace="ns", name="w", port=8443).client_config(b"CA")
    assert service["service"] == {"namespace": "ns", "name": "w", "port": 8443, "path": "/admission"}
    assert base64.b64decode(service["caBundle"]) == b"CA"
    assert Address("/x", url="https://h:1").client_config(b"")["url"] == "https://h:1/x"


def test_service_is_read_from_its_flag() -> None:
    settings = WebhookSettings(service="ns/name:8443")
    assert (settings.namespace, settings.name, settings.service_port) == ("ns", "name", 8443)
    assert WebhookSettings(service="ns/name").service_port == 443


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://h"},
        {"url": "https://"},
        {"service": "name"},
        {"service": "NS/name"},
        {"service": "a/b:0"},
        {"url": "https://h", "service": "a/b"},
        {"failure_policy": "Maybe"},
    ],
)
def test_settings_that_can_not_be_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="webhooks"):
        WebhookSettings(**wrong)
