"""Logins at registries: reads the challenges of a 401, and yields the Authorization values that answer them.

A registry may offer several schemes, in one WWW-Authenticate field or in several (RFC 9110 section 11.6.1). `Bearer`
comes first, with a token that the registry's token service gives; then `Basic`, if there are credentials. Nexus and
Artifactory offer both, sites with Kerberos offer `Negotiate` besides.

Sources: RFC 9110 sections 11.2 to 11.6.1; RFC 7617 (Basic); distribution's token authentication (Bearer).
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tink.registry.manifests import json_object
from tink.registry.names import Reference, RegistryError, scope_of

MAX_CHALLENGES = 16
"""Maximum number of challenges of one answer that are read."""
MAX_ANSWERS = 4
"""Maximum number of answers to one 401."""
MAX_SCOPES = 8

_OWS = r"[ \t]*"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - RFC 9110 section 5.6.2
# The unquoted value is wider than a token: some registries write `realm=https://...` without quotes.
_PARAMETER = re.compile(rf'({_TOKEN}){_OWS}={_OWS}(?:"((?:[^"\\]|\\.)*)"|([^\s,"=][^\s,"]*))', re.DOTALL)
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]+|(?=,)|$)")
_TOKEN68 = re.compile(rf"([A-Za-z0-9._~+/-]+=*){_OWS}(?=,|$)")
_VISIBLE = re.compile(r"[\x21-\x7e]+")

Fetch = Callable[[str, Mapping[str, str]], bytes]
"""Gets the body of a URL with these headers. Raises RegistryError for a refusal."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way to log in. `scheme` and the names of `parameters` are in lower case. `token68`: instead of parameters."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    token68: str = ""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of a registry, or of its repositories below a path. `scope`: `host[:port][/path]`, or a URL of these."""

    scope: str
    username: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header (RFC 7617)."""
        pair = f"{self.username}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode()


def read_config(content: bytes) -> tuple[Credentials, ...]:
    """Return the credentials in Docker's config.json or Podman's auth.json (containers-auth.json(5)).

    Passwords in a credential helper and identity tokens are left out. Raises RegistryError if that leaves nothing.
    """
    config = json_object(content, "its configuration")
    entries = config.get("auths")
    found = []
    for scope, entry in entries.items() if isinstance(entries, dict) else ():
        fields = entry if isinstance(entry, dict) else {}
        username, password = fields.get("username"), fields.get("password")
        if isinstance(fields.get("auth"), str) and fields["auth"]:
            try:
                username, _, password = base64.b64decode(fields["auth"], validate=True).decode().partition(":")
            except ValueError:
                raise RegistryError(f"its auth of {scope!r} is not base64 of USER:PASSWORD") from None
        if isinstance(username, str) and isinstance(password, str) and username and password:
            found.append(Credentials(scope, username, password))
    if not found:
        helper = next((name for name in ("credsStore", "credHelpers") if config.get(name)), "")
        why = f"passwords in a helper ({helper}) can't be read" if helper else "it has no auths"
        raise RegistryError(f"{why}; write them with: podman login --authfile FILE REGISTRY")
    return tuple(found)


def credentials_for(reference: Reference, known: Iterable[Credentials]) -> Credentials | None:
    """Return the credentials for a repository: those with the longest scope that contains it."""
    # Over https, `reg.example` and `reg.example:443` are the same server.
    repository = f"{reference.host.removesuffix(':443')}/{reference.path}/"
    found: tuple[int, Credentials] | None = None
    for each in known:
        host, slash, path = scope_of(each.scope).partition("/")
        scope = f"{host.removesuffix(':443')}{slash}{path}/"
        if repository.startswith(scope) and (found is None or len(scope) > found[0]):
            found = len(scope), each
    return found[1] if found else None


def parse_challenges(fields: Iterable[str]) -> list[Challenge]:
    """Parse the WWW-Authenticate fields of one answer. Text that is no challenge is skipped.

    The comma separates parameters as well as challenges: a name before `=` is a parameter, any other word a scheme.
    """
    found: list[Challenge] = []
    for text in fields:
        parameters: dict[str, str] | None = None
        position = 0
        while position < len(text) and len(found) <= MAX_CHALLENGES:
            if text[position] in " \t,":
                position += 1
            elif match := _PARAMETER.match(text, position):
                name, quoted, bare = match.groups()
                if parameters is not None:
                    value = re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) if quoted is not None else bare
                    parameters.setdefault(name.lower(), value)
                position = match.end()
            elif match := _SCHEME.match(text, position):
                position = match.end()
                bare68 = None if _PARAMETER.match(text, position) else _TOKEN68.match(text, position)
                parameters = {}
                found.append(Challenge(match[1].lower(), parameters, bare68[1] if bare68 else ""))
                position = bare68.end() if bare68 else position
            else:
                comma = text.find(",", position)  # neither: go on behind the next comma
                position = comma if comma >= 0 else len(text)
    return found[:MAX_CHALLENGES]


class Login:
    """The login of one session with the registry of `reference`. `authorization` is the header's value; empty: none."""

    def __init__(
        self, reference: Reference, credentials: Credentials | None, *, insecure: bool = False, remedy: str = ""
    ) -> None:
        """`insecure`: the token service may speak plain HTTP. `remedy`: tells people how to give credentials."""
        self.authorization = ""
        self._reference = reference
        self._credentials = credentials
        self._insecure = insecure
        self._remedy = f"; {remedy}" if remedy else ""

    def answers(self, fields: Iterable[str], fetch: Fetch) -> Iterator[str]:
        """Yield the Authorization values that answer a 401 with these WWW-Authenticate `fields`, the best first.

        The caller takes the next one if the registry refuses the last. Raises RegistryError if no other is left and
        a token could not be had, or if there was none at all. `fetch` reads the token service.
        """
        challenges = parse_challenges(fields)
        failure: RegistryError | None = None
        yielded = False
        # Bearer first: a token is for this repository alone, a password for all of them.
        order = [each for each in challenges if each.scheme == "bearer"]
        order += [each for each in challenges if each.scheme == "basic"][:1]
        if not challenges and self._credentials:
            order = [Challenge("basic")]  # a registry that breaks RFC 9110 section 15.5.2
        for challenge in order[:MAX_ANSWERS]:
            try:
                self.authorization = self._answer(challenge, fetch)
            except RegistryError as error:
                failure = failure or error
                continue
            yielded = True
            yield self.authorization
        self.authorization = ""
        if failure is not None:
            raise failure
        if not yielded:
            schemes = ", ".join(dict.fromkeys(each.scheme.capitalize() for each in challenges))
            how = f"in a way that is unknown here ({schemes[:100]})" if schemes else "and does not say how (HTTP 401)"
            raise RegistryError(f"it requires a login {how}{self._remedy}")

    def _answer(self, challenge: Challenge, fetch: Fetch) -> str:
        if challenge.scheme == "basic":
            if self._credentials is None:
                raise RegistryError(f"it requires a user and password{self._remedy}")
            return self._credentials.basic
        headers = {"Authorization": self._credentials.basic} if self._credentials else {}
        answer = json_object(fetch(self._token_url(challenge.parameters), headers), "its token answer")
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not _VISIBLE.fullmatch(token):
            raise RegistryError("its token service sent no token")
        return f"Bearer {token}"

    def _token_url(self, parameters: Mapping[str, str]) -> str:
        realm = parameters.get("realm", "")
        schemes = ("https://", "http://") if self._insecure else ("https://",)
        if not realm.lower().startswith(schemes):
            kind = "no http or https URL" if self._insecure or not realm.lower().startswith("http://") else "not https"
            raise RegistryError(f"its token service {_shown(realm)} is {kind}")
        query = [("service", parameters["service"])] if parameters.get("service") else []
        # A mirror names the repository otherwise than we do, so the registry's own scope wins.
        scopes = parameters.get("scope", "").split()[:MAX_SCOPES] or [f"repository:{self._reference.path}:pull"]
        query += [("scope", scope) for scope in scopes]
        return f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(query)}"


def _shown(text: str) -> str:
    return repr(text[:200]) if text else "without a realm"
