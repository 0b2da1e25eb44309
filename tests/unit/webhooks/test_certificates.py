"""Whom the API server is told to trust, without a server and without a network."""

import contextlib
import ssl
from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.webhooks.fake_api import FakeApi
from tink.kube.certificates import show
from tink.kube.client import ApiError
from tink.webhooks import certificates
from tink.webhooks.certificates import CertificateError, MemoryKeeper, SecretKeeper

NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)
DAY = timedelta(days=1)


def handshake(bundle, server, name):
    """A TLS handshake in memory. Raises ssl.SSLError."""
    client_context = ssl.create_default_context(cadata=bundle.decode())
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT  # Python's own way from 3.13 on
    a_in, a_out, b_in, b_out = (ssl.MemoryBIO() for _ in range(4))
    client = client_context.wrap_bio(a_in, a_out, server_hostname=name)
    served = server.wrap_bio(b_in, b_out, server_side=True)
    for _ in range(4):
        for side, out, into in ((client, a_out, b_in), (served, b_out, a_in)):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            into.write(out.read())


def served_by(authority, now):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    show(context, certificates.serving(authority, ["127.0.0.1", "w.ns.svc"], now).pem)
    return context


def test_certificate_is_trusted_for_its_names_only_and_by_its_bundle_only():
    now = datetime.now(UTC)
    authority, other = certificates.renewed(None, now), certificates.renewed(None, now)
    context = served_by(authority, now)
    handshake(authority.bundle(), context, "127.0.0.1")
    handshake(authority.bundle(), context, "w.ns.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(authority.bundle(), context, "10.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(other.bundle(), context, "127.0.0.1")


def test_server_goes_on_with_a_new_certificate_without_a_restart():
    now = datetime.now(UTC)
    context = served_by(certificates.renewed(None, now - 100 * DAY), now - 100 * DAY)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(certificates.renewed(None, now).bundle(), context, "127.0.0.1")
    authority = certificates.renewed(None, now)
    show(context, certificates.serving(authority, ["127.0.0.1"], now).pem)
    handshake(authority.bundle(), context, "127.0.0.1")


def test_serving_certificate_is_renewed_a_month_before_it_ends():
    made = certificates.serving(certificates.renewed(None, NOW), ["x"], NOW)
    assert made.renew_at == NOW + 60 * DAY


async def test_authority_is_renewed_in_its_last_third_and_the_old_one_stays_trusted():
    keeper = MemoryKeeper()
    first = await keeper.authority(NOW)
    assert await keeper.authority(NOW + 2000 * DAY) is first
    second = await keeper.authority(NOW + 2500 * DAY)
    assert second.certificates == (second.certificates[0], first.certificates[0])
    assert second.key != first.key
    assert (await keeper.authority(NOW + 6000 * DAY)).certificates[1:] == (second.certificates[0],), "ended: no trust"


async def test_replicas_share_one_authority_whoever_made_it():
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


@pytest.mark.parametrize("data", [None, {}])
async def test_empty_secret_such_as_the_chart_s_is_filled_by_the_first_replica(data):
    api = FakeApi()
    api.objects["ca"] = {"metadata": {"name": "ca", "resourceVersion": "1"}, "data": data}
    mine, theirs = SecretKeeper(api, "ns", "ca"), SecretKeeper(api, "ns", "ca")  # type: ignore[arg-type]
    assert (await mine.authority(NOW)).bundle() == (await theirs.authority(NOW)).bundle()
    assert api.writes == 1


async def test_secret_that_may_not_be_created_is_named_with_the_remedy():
    api = FakeApi()

    async def create(*_):
        raise ApiError(403, "Forbidden", "no")

    api.create = create  # type: ignore[method-assign]
    with pytest.raises(CertificateError, match=r"Secret ns/ca does not exist, and .*kubectl create secret generic -n"):
        await SecretKeeper(api, "ns", "ca").authority(NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [{"ca.crt": "eA==", "ca.key": "eA=="}, {"ca.crt": 7, "ca.key": "!"}])
async def test_secret_that_holds_no_authority_is_named_with_what_to_do(data):
    api = FakeApi()
    api.objects["ca"] = {"metadata": {"name": "ca"}, "data": data}
    with pytest.raises(CertificateError, match=r"Secret ns/ca: no certificate authority: .*Empty it"):
        await SecretKeeper(api, "ns", "ca").authority(NOW)  # type: ignore[arg-type]


async def test_key_of_another_authority_is_noticed():
    one, other = certificates.renewed(None, NOW), certificates.renewed(None, NOW)
    with pytest.raises(ValueError, match="not that of the first"):
        certificates.Authority.read(one.bundle(), other.private())
