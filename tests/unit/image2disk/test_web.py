"""Which servers get a password, and by which way: logins in URLs, redirects, proxies."""

import base64

import pytest
from image2disk.errors import ActionError
from image2disk.web import AnswerError, Web

from tests.support.proxy import http_proxy
from tink.net.proxies import Proxies

SIGNED = "X-Amz-Signature=secret&sig=secret"


def basic(login):
    return "Basic " + base64.b64encode(login.encode()).decode()


@pytest.fixture
def content(site):
    site.content = b"disk" * 1000
    return site.content


def test_login_in_the_url_is_sent_and_neither_it_nor_the_query_is_shown(site, target, content):
    url = site.url.replace("http://", "http://me:p%40%C3%A4secret@") + f"/x.img?{SIGNED}#f"
    site.cuts, site.etag = [2000], '"one"'
    assert target.copy(url)[0] == len(content)
    assert [asked["Authorization"] for asked in site.asked] == [basic("me:p@äsecret")] * 2
    site.before = [403]
    with pytest.raises(ActionError) as caught:
        target.copy(url)
    assert str(caught.value) == f"{site.url}/x.img?…: 403 Forbidden"
    for asked, said in ((url, "does not accept the user and password of IMG_URL"), (site.url, "USER:PASSWORD@HOST")):
        site.before = [401]
        with pytest.raises(ActionError, match=f"401 Unauthorized: .*{said}"):
            target.copy(asked)
    assert "secret" not in f"{target.said}{caught.value.__cause__}"


@pytest.mark.parametrize(
    "env",
    [
        {"IMG_URL": f"ftp://me:secret@host/x?{SIGNED}"},
        {"COMPRESSED": "true"},
        {"IMG_RETRIES": "0"},
        {"IMG_URL": f"oci://me:secret@host/x?{SIGNED}"},
        {"IMG_URL": f"http://me:secret/@host/x?{SIGNED}", "IMG_RETRIES": "0"},
        {"IMG_URL": f"http://me:secret@host/a b?{SIGNED}", "IMG_RETRIES": "0"},
        {"IMG_URL": f"http://me:secret@[::1/x?{SIGNED}", "IMG_RETRIES": "0"},
    ],
)
def test_no_message_has_a_secret_of_the_url(site, target, content, env):
    site.redirect = f"s3://me:secret@bucket/x?{SIGNED}"
    with pytest.raises(ActionError) as caught:
        target.copy(**{"url": site.url.replace("//", "//me:secret@") + f"/x.img?{SIGNED}", **_named(env)})
    assert "secret" not in f"{caught.value}{target.said}"


def _named(env):
    return {"url" if name == "IMG_URL" else name: value for name, value in env.items()}


@pytest.mark.parametrize(
    ("host", "login", "sent"),
    [("127.0.0.1", "", basic("me:secret")), ("localhost", "", None), ("localhost", "you:too@", basic("you:too"))],
)
def test_login_goes_along_a_redirect_to_the_same_origin_alone(site, target, content, host, login, sent):
    port = site.url.rpartition(":")[2]
    site.redirect_once = f"http://{login}{host}:{port}/there"
    target.copy(site.url.replace("//", "//me:secret@") + "/x.img")
    assert [asked.get("Authorization") for asked in site.asked] == [basic("me:secret"), sent]


def test_image_comes_through_the_proxy_unless_no_proxy_excepts_it(site, target, content):
    near = site.url.replace("127.0.0.1", "images.invalid")
    with http_proxy() as proxy:
        proxy.hosts = {near.removeprefix("http://"): ("127.0.0.1", int(site.url.rpartition(":")[2]))}
        proxy.login = basic("p:q@")
        env = {"HTTP_PROXY": proxy.url.replace("//", "//p:q%40@"), "NO_PROXY": "10.0.0.0/8"}
        site.redirect_once = f"{site.url}/direct"
        assert target.copy(f"{near.replace('//', '//me:secret@')}/x.img", **env)[0] == len(content)
        assert proxy.asked == [f"GET {near}/x.img"]
        assert [asked.get("Proxy-Authorization") for asked in site.asked] == [None, None]
        assert proxy.headers[0]["Authorization"] == basic("me:secret")
        proxy.login = "another"
        with pytest.raises(ActionError, match=r"407 Proxy Authentication Required$"):
            target.copy(f"{near}/x.img", **env)
    assert target.pauses == []


def test_https_is_asked_for_by_connect_and_a_refusal_of_the_proxy_is_named(site):
    with http_proxy() as proxy:
        web = Web(check_certificates=True, proxies=Proxies(https=proxy.url.replace("//", "//p:q@")))
        with pytest.raises(AnswerError, match=r"^the proxy refuses to connect: 407 Proxy Auth") as caught:
            web.get("https://far.invalid/x", {})
        assert not caught.value.may_pass
        proxy.login = basic("p:q")
        proxy.hosts = {"far.invalid:443": ("127.0.0.1", int(site.url.rpartition(":")[2]))}
        with pytest.raises(AnswerError, match=f"through the proxy {proxy.url}"):  # this port does not speak TLS
            web.get("https://far.invalid/x", {})
        assert proxy.asked == ["CONNECT far.invalid:443"] * 2
    for value in ("socks5://s", "https://s"):
        with pytest.raises(AnswerError, match="not supported; write http://HOST:PORT of an HTTP proxy") as caught:
            Web(check_certificates=True, proxies=Proxies(http=value)).get("http://far.invalid/x", {})
        assert not caught.value.may_pass
