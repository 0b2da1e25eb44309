"""The proxy of a URL, by the cases of Go's httpproxy and curl; and the form of a URL for logs."""

import pytest

from tink.net.proxies import Proxies, ProxyError
from tink.net.urls import redacted, shown, without_login

LISTED = (
    "foobar.com, .barbaz.net, *.wildcard.io, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, 10.0.0.0/30, "
    "2001:db8::52:0:1, [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, 2002:db8:a::45/64, [fd00::1], 172.16.0.0/33, :1, "
    "example.org:8080"
)


@pytest.mark.parametrize(
    ("hosts", "is_proxied"),
    [
        ("localhost 127.0.0.1 127.0.0.2:8080 [::1] LOCALHOST", False),
        ("[::2] localhost.net local.localhost", True),
        ("192.168.1.1 192.168.1.3 10.0.0.2 10.0.0.3:8443 [::ffff:10.0.0.2]", False),
        ("192.168.1.2 192.168.1.4 192.168.1.3:81 10.0.0.4 172.16.0.1", True),
        ("[2001:db8::52:0:1] [2001:db8::52:0:3] [2002:db8:a::123] [fd00::1]", False),
        ("[2001:db8::52:0:2] [fe80::424b:c8be:1643:a1b6] [fe80::1%25.barbaz.net]", True),
        ("www.barbaz.net foobar.com FooBar.com foobar.com. www.foobar.com nested.wildcard.io example.org:8080", False),
        ("barbaz.net foofoobar.com baz.com barbarbaz.net wildcard.io awildcard.io example.org", True),
    ],
)
def test_no_proxy_excepts_what_go_excepts(hosts: str, is_proxied: bool) -> None:
    proxies = Proxies(http="proxy:3128", no_proxy=LISTED)
    for host in hosts.split():
        assert (proxies.proxy_of(f"http://{host}/x") is not None) == is_proxied, host
        assert Proxies(http="proxy", no_proxy="a.example *").proxy_of(f"http://{host}/") is None, host


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({"HTTP_PROXY": "127.0.0.1:8080"}, "http://a.example/", "http://127.0.0.1:8080"),
        ({"HTTP_PROXY": "localhost"}, "http://a.example/", "http://localhost:80"),
        ({"HTTP_PROXY": "https://cache.example"}, "http://a.example/", "https://cache.example:443"),
        ({"http_proxy": "http://[fd00::1]:3128/"}, "http://a.example/", "http://[fd00::1]:3128"),
        ({"http_proxy": "lower", "HTTP_PROXY": "upper"}, "http://a.example/", "http://lower:80"),
        ({"HTTP_PROXY": "a", "HTTPS_PROXY": "b:1"}, "https://a.example/", "http://b:1"),
        ({"HTTP_PROXY": "a"}, "https://a.example/", ""),
        ({"HTTP_PROXY": "a", "HTTPS_PROXY": "a"}, "file:///x", ""),
        ({"HTTP_PROXY": "a", "NO_PROXY": ".示例.com"}, "http://www.xn--fsq092h.com", ""),
        ({"HTTP_PROXY": "a", "no_proxy": "10.0.0.0/8 b.example", "NO_PROXY": "c.example"}, "http://b.example", ""),
        ({}, "http://a.example/", ""),
    ],
)
def test_variables_name_the_proxy_of_each_scheme(environment: dict[str, str], url: str, proxy: str) -> None:
    found = Proxies.of(environment).proxy_of(url)
    assert (found.url if found is not None else "") == proxy


def test_login_of_a_proxy_is_decoded_and_shown_nowhere() -> None:
    proxies = Proxies.of({"HTTP_PROXY": "http://me:p%40s%C3%A4@proxy:3128"})
    found = proxies.proxy_of("http://a.example/")
    assert found is not None
    assert found.authorization == "Basic bWU6cEBzw6Q="
    assert not [secret for secret in ("bWU6", "p%40s") if secret in repr((found, proxies))]


@pytest.mark.parametrize("value", ["socks5://me:secret@s:1080", "ftp://me:secret@s", "http://me:secret@", "http://s:x"])
def test_proxy_that_cannot_be_used_is_an_error_that_says_what_to_write(value: str) -> None:
    with pytest.raises(ProxyError, match=r"HTTPS_PROXY .*write http://HOST:PORT") as caught:
        Proxies(https=value).proxy_of("https://a.example/")
    assert "secret" not in str(caught.value)


def test_program_gets_variables_in_both_cases_unless_it_has_its_own() -> None:
    proxies = Proxies("http://p", "", "10.0.0.0/8")
    given = proxies.added_to({"A": "b", "no_proxy": ""})
    assert given == {"HTTP_PROXY": "http://p", "http_proxy": "http://p", "A": "b", "no_proxy": ""}
    assert Proxies(no_proxy="a").added_to({}) == {}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://user:pa%40ss@host:8443/a/b?X-Amz-Signature=1&b#f", "https://host:8443/a/b?…"),
        ("http://user@host/image@sha256:1", "http://host/image@sha256:1"),
        ("http://a:b@c:d@host/x", "http://host/x"),
        ("http://user:pa/ss@host/x", "http://…"),
        ("http://user:pa?ss@host/x", "http://…?…"),
        ("http://[fd00::1]:80/x", "http://[fd00::1]:80/x"),
        ("http://[u:secret@host", "http://host"),
        ("//user:secret@host/x", "//host/x"),
        ("/x?token=secret", "/x?…"),
        ("http://host/a\nb\x1b[2J", "http://host/a?b?[2J"),
        ("file:///srv/a", "file:///srv/a"),
        ("oci://host/a@sha256:1", "oci://host/a@sha256:1"),
    ],
)
def test_url_is_shown_without_its_secrets(url: str, said: str) -> None:
    assert shown(url) == said
    if not any(each in url for each in "\n#"):
        assert redacted(f"at '{url}' it") == f"at '{said}' it" or not url.startswith(("http", "oci"))


@pytest.mark.parametrize(
    ("url", "bare", "authorization"),
    [
        ("http://host/x", "http://host/x", ""),
        ("http://user:pa%3Ass@host:1/x?y", "http://host:1/x?y", "Basic dXNlcjpwYTpzcw=="),
        ("http://%E2%82%AC@[::1]/%20", "http://[::1]/%20", "Basic 4oKsOg=="),
        ("http://@host/", "http://host/", ""),
    ],
)
def test_login_in_a_url_is_what_basic_sends(url: str, bare: str, authorization: str) -> None:
    assert without_login(url) == (bare, authorization)
