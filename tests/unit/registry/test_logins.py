"""Logins at registries: which challenges are read, and which Authorization values answer them."""

import json

import pytest

from tink.registry.login import Challenge, Credentials, Login, credentials_for, parse_challenges, read_config
from tink.registry.names import RegistryError, parse

X = {"realm": "x"}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ([], []),
        (["", " , ,", "=x", '"x"', "\x01, \x01"], []),
        (['Basic realm="x"'], [Challenge("basic", X)]),
        (['BASIC Realm="x"'], [Challenge("basic", X)]),
        (['basic realm = "x"', "Basic\trealm\t=\tx"], [Challenge("basic", X), Challenge("basic", X)]),
        (["Negotiate", 'Basic realm="x"'], [Challenge("negotiate"), Challenge("basic", X)]),
        (['Negotiate, Basic realm="x"'], [Challenge("negotiate"), Challenge("basic", X)]),
        (['Basic realm="x", Negotiate'], [Challenge("basic", X), Challenge("negotiate")]),
        (
            ['Bearer realm="b",service="s" , Basic realm="x", NTLM TlRM=='],
            [
                Challenge("bearer", {"realm": "b", "service": "s"}),
                Challenge("basic", X),
                Challenge("ntlm", {}, "TlRM=="),
            ],
        ),
        (["Negotiate YII=, Basic realm=x"], [Challenge("negotiate", {}, "YII="), Challenge("basic", X)]),
        ([r'Basic realm="a \"b\", Bearer realm=c\\"'], [Challenge("basic", {"realm": 'a "b", Bearer realm=c\\'})]),
        (['Basic realm="x", realm="y"'], [Challenge("basic", X)]),
        (['Basic realm=""'], [Challenge("basic", {"realm": ""})]),
        (
            ["Bearer realm=https://h/t?a=b,service=s"],
            [Challenge("bearer", {"realm": "https://h/t?a=b", "service": "s"})],
        ),
        (['Bearer realm="x" scope="a:b:pull,push"'], [Challenge("bearer", {"realm": "x", "scope": "a:b:pull,push"})]),
        (['Basic realm="open, Bearer realm=x'], [Challenge("basic", {}), Challenge("bearer", X)]),
    ],
)
def test_challenges_are_read_as_rfc_9110_has_them(fields, found):
    assert parse_challenges(fields) == found


@pytest.mark.parametrize("text", ["a=" * 30_000, ',\x01"' * 20_000, 'a="' + "\\" * 60_000, "Basic," * 10_000])
def test_long_nonsense_has_an_end(text):
    assert len(parse_challenges([text])) <= 16


TOKEN = json.dumps({"access_token": "t"}).encode()
USER = Credentials("reg.example", "user", "pass")
BASIC = USER.basic
REALM = "https://auth.example/token"
BEARER = f'Bearer realm="{REALM}",service="s"'


def answers(*fields, credentials=USER, given=TOKEN, insecure=False):
    """All answers to a 401, and the requests to the token service."""
    asked = []

    def fetch(url, headers):
        asked.append((url, headers.get("Authorization", "")))
        if isinstance(given, Exception):
            raise given
        return given

    login = Login(parse("reg.example/a/b:1"), credentials, insecure=insecure, remedy="log in")
    return list(login.answers(fields, fetch)), asked


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["Negotiate", 'Basic realm = "x"'], [BASIC]),
        ([f'Negotiate, Basic realm="x", {BEARER}'], ["Bearer t", BASIC]),
        ([BEARER, 'Basic realm="x"'], ["Bearer t", BASIC]),
        (['Basic realm="Sonatype Nexus"', BEARER], ["Bearer t", BASIC]),
        ([], [BASIC]),
    ],
    ids=["Kerberos", "three in one field", "Artifactory", "Nexus", "no challenge"],
)
def test_answer_is_that_to_a_scheme_that_can_be_done_and_a_token_comes_first(fields, expected):
    assert answers(*fields)[0] == expected


def test_without_credentials_a_token_is_asked_for_and_basic_is_passed_over():
    login = Login(parse("reg.example/a:1"), None)
    assert next(login.answers([f'Basic realm="x", {BEARER}'], lambda url, headers: TOKEN)) == "Bearer t"


def test_password_answers_when_no_token_can_be_had_and_the_last_error_is_why():
    login = Login(parse("reg.example/a:1"), USER)

    def fetch(url, headers):
        raise RegistryError("token: HTTP 403")

    found = login.answers([BEARER, "Basic realm=x"], fetch)
    assert next(found) == login.authorization == BASIC
    with pytest.raises(RegistryError, match="HTTP 403"):
        next(found)
    assert login.authorization == ""


@pytest.mark.parametrize(
    ("parameters", "query"),
    [
        ("", "?scope=repository%3Aa%2Fb%3Apull"),
        (',service="reg one"', "?service=reg+one&scope=repository%3Aa%2Fb%3Apull"),
        (',scope="repository:mirror/b:pull"', "?scope=repository%3Amirror%2Fb%3Apull"),
        (',scope="x:y:pull z:w:pull"', "?scope=x%3Ay%3Apull&scope=z%3Aw%3Apull"),
    ],
    ids=["neither", "service", "another scope", "two scopes"],
)
def test_token_is_asked_for_with_the_challenges_service_and_scope_or_our_scope(parameters, query):
    _, asked = answers(f'Bearer realm="{REALM}"{parameters}')
    assert asked == [(REALM + query, BASIC)]
    _, asked = answers(f'Bearer realm="{REALM}?account=me"{parameters}', credentials=None)
    assert asked == [(f"{REALM}?account=me&{query[1:]}", "")]


@pytest.mark.parametrize(
    ("field", "more", "message"),
    [
        ("Basic realm=x", {"credentials": None}, "it requires a user and password; log in"),
        ("Negotiate, NTLM", {}, r"unknown here \(Negotiate, Ntlm\); log in"),
        ("", {"credentials": None}, r"does not say how \(HTTP 401\); log in"),
        ("Bearer service=x", {}, "its token service without a realm is no http or https URL"),
        ("Bearer realm=/token", {}, "'/token' is no http or https URL"),
        ("Bearer realm=http://auth.example/token", {}, "is not https"),
        ("Bearer realm=file:///etc/passwd", {"insecure": True}, "is no http or https URL"),
        (BEARER, {"given": b"[]"}, "its token answer is not a JSON object"),
        (BEARER, {"given": b'{"token": "a\\r\\nX: y"}'}, "its token service sent no token"),
        (BEARER, {"given": b'{"token": 7}'}, "its token service sent no token"),
    ],
)
def test_impossible_login_is_reported_with_reason_and_remedy(field, more, message):
    with pytest.raises(RegistryError, match=message):
        answers(field, **more)


def config(auths, **more):
    return json.dumps({"auths": auths, **more}).encode()


def test_credentials_are_read_from_dockers_and_podmans_files():
    auths = {
        "https://index.docker.io/v1/": {"auth": "aHViOmE6Yg=="},
        "reg.example/team": {"username": "u", "password": "p"},
        "helper.example": {},
        "acr.example": {"auth": "MDAwOg==", "identitytoken": "x"},
        "odd.example": 7,
    }
    found = [(each.scope, each.username, each.password) for each in read_config(config(auths, credsStore="desktop"))]
    assert found == [("https://index.docker.io/v1/", "hub", "a:b"), ("reg.example/team", "u", "p")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "not a JSON object"),
        (b"{}", "it has no auths; write them with: podman login"),
        (config({"x": {}}, credsStore="desktop"), r"in a helper \(credsStore\) can't be read"),
        (config({"x": {"auth": "?"}}), "its auth of 'x' is not base64"),
    ],
)
def test_file_without_credentials_is_refused(content, message):
    with pytest.raises(RegistryError, match=message):
        read_config(content)


KNOWN = [
    Credentials(scope, scope, "")
    for scope in ("https://index.docker.io/v1/", "reg.example", "reg.example/team", "http://reg.example/team/one/")
] + [Credentials("OTHER.example:443", "other", "")]


@pytest.mark.parametrize(
    ("image", "user"),
    [
        ("busybox", "https://index.docker.io/v1/"),
        ("registry-1.docker.io/acme/x", "https://index.docker.io/v1/"),
        ("reg.example/x", "reg.example"),
        ("Reg.Example:443/x", "reg.example"),
        ("reg.example:5000/x", None),
        ("reg.example/team/x", "reg.example/team"),
        ("reg.example/team", "reg.example/team"),
        ("reg.example/teammate/x", "reg.example"),
        ("reg.example/team/one", "http://reg.example/team/one/"),
        ("other.example/x", "other"),
        ("evil.example/reg.example/x", None),
    ],
)
def test_credentials_are_those_with_the_longest_scope_that_has_the_repository(image, user):
    found = credentials_for(parse(image), KNOWN)
    assert (found.username if found else None) == user
