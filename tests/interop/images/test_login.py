"""Where a registry may send the agent, and who sees its credentials."""

import base64
import socketserver

import pytest

from tests.interop.images.fake_registry import FakeRegistry, pull, refusal
from tink.agent.images.registry import Credentials, Registries
from tink.net import special_addresses
from tink.net.special_addresses import special

# --- where it may send us -----------------------------------------------------------------------------------------


@pytest.fixture
def far(fake, monkeypatch):
    """The registry is somewhere else: its address is no special one. 127.0.0.2 is this machine's as before."""

    def of_others(address):
        return "" if str(address) == "127.0.0.1" else special(address)

    monkeypatch.setattr(special_addresses, "special", of_others)
    with socketserver.TCPServer(("127.0.0.2", 0), socketserver.BaseRequestHandler) as server:
        server.socket.setblocking(False)
        yield f"127.0.0.2:{server.server_address[1]}"
        with pytest.raises(BlockingIOError):
            server.get_request()  # nobody has even connected


@pytest.mark.parametrize("host", ["127.0.0.2:{port}", "[::ffff:127.0.0.2]:{port}", "169.254.169.254"])
async def test_registry_elsewhere_sends_nobody_to_the_machine_itself_or_its_cloud(fake, store, far, host):
    _, _, path, _ = fake.image()
    where = host.format(port=far.rpartition(":")[2])
    fake.paths[path] = (307, {"Location": f"http://{where}/latest/meta-data"}, b"")
    said = await refusal(store, f"{fake.host}/x:1")
    assert "it sends us to " in said
    assert "address, which registries may not" in said


async def test_token_service_is_not_the_machine_itself(fake, make_store, far):
    """What it answered would be shown to the registry as a token, and it would be shown the password."""
    fake.image()
    demand(fake, f'Bearer realm="http://{far}/token"', "Bearer t")
    assert "it sends us to 127.0.0.2" in await refusal(logged_in(fake, make_store), f"{fake.host}/x:1")


# --- authentication ---------------------------------------------------------------------------------------------

BASIC = "Basic " + base64.b64encode(b"user:pass").decode()


def logged_in(fake, make_store, **more):
    credentials = Credentials(fake.host, "user", "pass")
    return make_store(Registries((), credentials), architecture="amd64", sleep=lambda seconds: None, **more)


def demand(fake, challenge, wanted):
    """Make every path under /v2/ answer 401 with `challenge` unless the Authorization header is `wanted`."""

    def check(handler):
        if handler.headers.get("Authorization") == wanted:
            return False
        handler.reply(401, {"WWW-Authenticate": challenge}, b"{}")
        return True

    fake.hooks.update({path: check for path in fake.paths if path.startswith("/v2/")})


async def test_basic_authentication(fake, make_store):
    fake.image()
    demand(fake, 'Basic realm="r"', BASIC)
    await pull(logged_in(fake, make_store), f"{fake.host}/x:1")


async def test_private_registry_without_credentials_says_how_to_give_them(fake, store):
    fake.image()
    demand(fake, 'Basic realm="r"', BASIC)
    message = await refusal(store, f"{fake.host}/x:1")
    assert "registry_username=" in message


async def test_wrong_password_is_said_and_not_shown(fake, make_store):
    fake.image()
    demand(fake, 'Basic realm="r"', "Basic other")
    message = await refusal(logged_in(fake, make_store), f"{fake.host}/x:1")
    assert "401" in message
    assert "pass" not in message


@pytest.mark.parametrize("known", [True, False])
async def test_token_is_fetched_from_the_realm_with_the_users_credentials_if_there_are_any(
    fake, make_store, store, known
):
    fake.image()
    demand(fake, f'Bearer realm="http://{fake.host}/token",service="reg",scope="ignored"', "Bearer t0ken")
    fake.paths["/token"] = (200, {}, b'{"token": "t0ken"}')
    await pull(logged_in(fake, make_store) if known else store, f"{fake.host}/x:1")
    [(path, headers)] = [request for request in fake.requests if request[0].startswith("/token")]
    assert path == "/token?scope=repository%3Ax%3Apull&service=reg"
    assert headers.get("Authorization") == (BASIC if known else None)


@pytest.mark.parametrize(
    ("challenge", "token", "said"),
    [
        (
            'Bearer realm="http://HOST/token"',
            (403, {}, b'{"errors": [{"message": "denied by policy"}]}'),
            "denied by policy",
        ),
        ('Bearer realm="http://HOST/token"', (200, {}, b"{}"), "no token"),
        ('Bearer realm="http://HOST/token"', (200, {}, b'{"token": "a\\r\\nX: y"}'), "no token"),
        ('Bearer realm="file:///etc/passwd"', (200, {}, b""), "no http"),
        ("Negotiate", (200, {}, b""), "Negotiate"),
        ("", (200, {}, b""), "unknown"),
    ],
)
async def test_authentication_that_cannot_work_is_explained(fake, store, challenge, token, said):
    fake.image()
    demand(fake, challenge.replace("HOST", fake.host), "Bearer t0ken")
    fake.paths["/token"] = token
    assert said in await refusal(store, f"{fake.host}/x:1")


async def test_credentials_do_not_follow_a_redirect_to_another_host(fake, make_store):
    elsewhere = FakeRegistry()
    try:
        _, _, path, _ = fake.image()
        demand(fake, 'Basic realm="r"', BASIC)
        elsewhere.paths["/storage"] = fake.paths[path]
        fake.paths[path] = (307, {"Location": f"http://{elsewhere.host}/storage?sig=1"}, b"")
        await pull(logged_in(fake, make_store), f"{fake.host}/x:1")
        [(requested, headers)] = elsewhere.requests
        assert requested == "/storage?sig=1"
        assert "Authorization" not in headers
    finally:
        elsewhere.close()


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
async def test_password_does_not_go_to_the_realm_that_the_target_of_a_redirect_names(fake, make_store, scheme):
    """Only the registry itself may say who checks the users of the registry."""
    elsewhere = FakeRegistry()
    try:
        _, _, path, _ = fake.image()
        demand(fake, 'Basic realm="r"', BASIC)
        challenge = {"WWW-Authenticate": f'{scheme} realm="http://{elsewhere.host}/token"'}
        elsewhere.paths["/storage"] = (401, challenge, b"{}")
        elsewhere.paths["/token"] = (200, {}, b'{"token": "t"}')
        fake.paths[path] = (307, {"Location": f"http://{elsewhere.host}/storage"}, b"")
        said = await refusal(logged_in(fake, make_store), f"{fake.host}/x:1")
        assert f"it redirects to {elsewhere.host}, which wants a login of its own" in said
        assert elsewhere.requests
        assert all("Authorization" not in headers for _, headers in elsewhere.requests)
    finally:
        elsewhere.close()


@pytest.mark.parametrize(
    "where", ["http://[bad", "ftp://h/x", "http://h:99999/x", "http://h:0/", "http://", "//[:/", ""]
)
async def test_redirect_or_realm_that_is_no_url_is_the_registrys_fault(fake, store, where):
    """And not a fault of this program, with a traceback in the log."""
    path, *_ = fake.image()
    fake.paths[path] = (307, {"Location": where}, b"")
    await refusal(store, f"{fake.host}/x:1")
    fake.paths[path] = (401, {"WWW-Authenticate": f'Bearer realm="{where}"'}, b"")
    await refusal(store, f"{fake.host}/x:1")


@pytest.mark.parametrize(
    ("told", "longest"), [("7", 7.0), ("86400", 60.0), ("0", 4.0), ("-5", 4.0), ("Sun, 06 Nov 1994 08:49:37 GMT", 4.0)]
)
async def test_registry_that_says_when_to_come_again_is_obeyed(fake, make_store, told, longest):
    """A rack that boots at once meets a limit of requests a minute: five attempts in eight seconds are not enough."""
    manifest, _, layer, _ = fake.image()
    answers = [(manifest, 429), (manifest, 429), (manifest, 503), (layer, 429), (layer, 503), (layer, 429)]

    def busy(handler):
        path = handler.path.partition("?")[0]
        for number, (busy_path, status) in enumerate(answers):
            if busy_path == path:
                del answers[number]
                handler.reply(status, {"Retry-After": told}, b"slowly")
                return True
        return False

    fake.hooks |= {manifest: busy, layer: busy}
    pauses = []
    store = make_store(architecture="amd64", sleep=pauses.append)
    await pull(store, f"{fake.host}/x:1")
    assert answers == []
    assert len(pauses) == 6
    assert max(pauses) == longest


async def test_redirect_in_a_circle_ends(fake, store):
    path, *_ = fake.image()
    fake.paths[path] = (302, {"Location": path}, b"")
    assert "redirects" in await refusal(store, f"{fake.host}/x:1")


async def test_credentials_are_not_for_other_registries(fake, make_store):
    fake.image()
    demand(fake, 'Basic realm="r"', BASIC)
    store = make_store(Registries((), Credentials("other.example", "user", "pass")))
    await refusal(store, f"{fake.host}/x:1")
    assert all("Authorization" not in headers for _, headers in fake.requests)


async def test_credentials_for_another_registry_are_named_where_they_do_not_help(fake, make_store):
    """Somebody wrote a path, or a scheme, into docker_registry= and wonders why nothing is shown."""
    fake.image()
    demand(fake, 'Basic realm="r"', BASIC)
    store = make_store(Registries((), Credentials(f"https://{fake.host}", "user", "pass")))
    said = await refusal(store, f"{fake.host}/x:1")
    assert f"docker_registry={fake.host}," in said
    assert f"the credentials given are for https://{fake.host}" in said
    assert "pass)" not in said
