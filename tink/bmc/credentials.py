"""Credentials of BMCs: users, passwords and certificate authorities from Secrets, and the memory of refused ones.

A Secret is read when its BMC is about to be contacted, and never watched. A copy is used for some seconds, because
many Machines often share one Secret.

Real BMCs lock an account, or block an address, after a few failed logins. So a refused version of a Secret is not sent
to the same BMC again (`LoginMemory`). The status of the Machine keeps that over a restart: the first login with a
version of a Secret is noted there before it begins. A changed Secret, or a new value of the annotation
`tinkerbell.org/retry-login`, permits one more login.

A Secret of another namespace is used only if its annotation `tinkerbell.org/bmc-namespaces` permits that. Otherwise a
user who may write Machines in one namespace could send the passwords of all namespaces to a host of their own.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tink.api.annotations import (
    BMC_NAMESPACES_ANNOTATION,
    CREDENTIALS_REFUSED_ANNOTATION,
    RETRY_LOGIN_ANNOTATION,
)
from tink.api.v1alpha2 import Raw, as_mapping
from tink.bmc.model import BmcCredentials, BmcError, Cause
from tink.kube.cache import Index
from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import SECRET
from tink.limits import Newest

CACHE_SECONDS = 10.0
"""Time for which a Secret that was read is used again."""
_MAX_CACHED = 4096
_FORBIDDEN = 403
_MAX_REFUSED = 65_536
_MAX_CHARACTERS = 1024
"""Maximum length of a user's name and of a password. IPMI permits 20 characters, Redfish servers some 100."""
_MAX_AUTHORITY_BYTES = 1 << 18
PROTOCOLS = ("redfish", "ipmi")
"""The protocols whose logins are noted: fields of `status.login`."""


class LoginResult(StrEnum):
    """The result of the login with a version of a Secret, by one protocol. The later ones are more certain."""

    BEGUN = "Begun"
    """The password may have been sent. No process has noted the result."""
    ACCEPTED = "Accepted"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class LoginNote:
    """The note about a login in the status of a Machine or Task (`status.login`): its results, by protocol.

    `login` is the BMC and the version of the Secret (`login_of`), and `retry` the last request to log in again that was
    granted (RETRY_LOGIN_ANNOTATION).
    """

    login: str = ""
    results: Mapping[str, LoginResult] = field(default_factory=dict)
    retry: str = ""

    def patch(self) -> Raw:
        """Return the merge patch of the status that writes this note."""
        results = {each: self.results.get(each) for each in PROTOCOLS}
        return {"login": {"version": self.login, "retry": self.retry or None, **results}}

    def is_in(self, holder: Raw) -> bool:
        """Return True if the status of a Machine or Task has this note."""
        return _status_note(holder) == self


def login_note(holder: Raw) -> LoginNote:
    """Return the note of a Machine or Task; an empty one if it has none."""
    note, refused = _status_note(holder), _annotation(holder, CREDENTIALS_REFUSED_ANNOTATION)
    # Releases without status.login noted a refusal in this annotation.
    return note if note.login or not refused else LoginNote(refused, {PROTOCOLS[0]: LoginResult.REFUSED})


def _status_note(holder: Raw) -> LoginNote:
    status = as_mapping(as_mapping(holder.get("status")).get("login"))
    results = {each: LoginResult(status[each]) for each in PROTOCOLS if status.get(each) in set(LoginResult)}
    return LoginNote(str(status.get("version") or ""), results, str(status.get("retry") or ""))


def requested_retry(holder: Raw) -> str:
    """Return the value of the annotation by which a user asks for one more login; empty if there is none."""
    return _annotation(holder, RETRY_LOGIN_ANNOTATION)[:_MAX_CHARACTERS]


class LoginMemory:
    """The results of logins, by the BMC (`bmc_of`) and the version of the Secret.

    The status of Machines and Tasks keeps them over a restart (`LoginNote`). A login is noted as Begun before the
    password is sent for the first time. So after a restart, Begun means that the result is unknown: it counts as
    refused, because a second failed login may lock the account.

    A refusal by one protocol concerns all, unless the BMC has accepted the same login by another one.
    """

    def __init__(self) -> None:
        self._results: Newest[tuple[str, str], dict[str, LoginResult]] = Newest(_MAX_REFUSED)
        """By BMC and version of the Secret. Begun: by an earlier process."""
        self._reasons: Newest[tuple[str, str, str], str] = Newest(_MAX_REFUSED)
        """The sentence that says what a BMC has refused, by BMC, version of the Secret, and protocol."""
        self._retries: Newest[tuple[str, NamespacedName], str] = Newest(_MAX_REFUSED)
        """The last request for one more login that was granted, by kind and name of the object."""
        self._unwritten: Newest[tuple[str, str], None] = Newest(_MAX_REFUSED)
        """Refused logins that are not in the status of an object yet, by BMC and version of the Secret."""
        self._begun: Newest[tuple[str, str, str], None] = Newest(_MAX_REFUSED)
        """Logins that this process has noted as Begun, by BMC, version of the Secret, and protocol."""
        self._notes: dict[NamespacedName, LoginNote] = {}
        """The notes of all Machines."""
        self._by_login: Index[NamespacedName, tuple[str, str]] = Index()
        """Machines, by namespace and login."""
        self.count = 0
        """Number of refused logins since the start."""

    def check(self, bmc: str, credentials: BmcCredentials, protocol: str = "") -> None:
        """Raise BmcError if the BMC has refused this version of the Secret, or if the result is unknown.

        `protocol`: also if that concerns this protocol alone. The cause is CREDENTIALS_REFUSED or LOGIN_UNCLEAR.
        """
        results = self._results.get((bmc, credentials.version), {})
        doubtful = [each for each, result in results.items() if result is not LoginResult.ACCEPTED]
        if protocol not in doubtful and (not doubtful or len(doubtful) < len(results)):
            return
        name = protocol if protocol in doubtful else doubtful[0]
        # Another protocol works if it has accepted the login.
        raise self._error(bmc, credentials, name, is_alone=len(doubtful) < len(results))

    def is_permitted(self, bmc: str, credentials: BmcCredentials) -> bool:
        """Return True if `check` raises nothing."""
        try:
            self.check(bmc, credentials)
        except BmcError:
            return False
        return True

    def is_accepted(self, bmc: str, credentials: BmcCredentials, protocol: str) -> bool:
        """Return True if the BMC has accepted this version of the Secret by a protocol."""
        return self._results.get((bmc, credentials.version), {}).get(protocol) is LoginResult.ACCEPTED

    def accept(self, bmc: str, credentials: BmcCredentials, protocol: str) -> None:
        """Remember that the BMC has accepted a login."""
        self._results[bmc, credentials.version] = self.results(bmc, credentials) | {protocol: LoginResult.ACCEPTED}

    def refuse(
        self, bmc: str, credentials: BmcCredentials, reason: str, protocol: str, *, is_alone: bool = False
    ) -> BmcError:
        """Remember a refused login, and return its error. `reason` is a sentence without a full stop.

        `is_alone`: the session goes on by another protocol, which has accepted the login.
        """
        self.count += 1
        others = self.results(bmc, credentials) if is_alone else {}
        self._results[bmc, credentials.version] = others | {protocol: LoginResult.REFUSED}
        self._reasons[bmc, credentials.version, protocol] = reason
        self._unwritten[bmc, credentials.version] = None
        return self._error(bmc, credentials, protocol, is_alone=is_alone)

    def is_refused(self, bmc: str, credentials: BmcCredentials) -> bool:
        """Return True if the BMC has refused this version of the Secret by any protocol."""
        return LoginResult.REFUSED in self.results(bmc, credentials).values()

    def results(self, bmc: str, credentials: BmcCredentials) -> dict[str, LoginResult]:
        """Return the results of a login that are known, by protocol."""
        return dict(self._results.get((bmc, credentials.version), {}))

    def note(self, kind: str, holder: Raw, bmc: str, credentials: BmcCredentials, **begun: LoginResult) -> LoginNote:
        """Return the note for a Machine or Task about a login, with the results in `begun` besides the known ones."""
        retry = self._retries.get((kind, NamespacedName.of(holder)), login_note(holder).retry)
        return LoginNote(login_of(bmc, credentials), self.results(bmc, credentials) | begun, retry)

    def begin(self, kind: str, holder: Raw, bmc: str, credentials: BmcCredentials, protocol: str) -> LoginNote | None:
        """Return the note to write to a Machine or Task before the first login; None if it was accepted before.

        `holder` is as the API has it now, maybe with a result that another replica has noted. Raises BmcError.
        """
        key, note = (bmc, credentials.version, protocol), login_note(holder)
        new = self.note(kind, holder, bmc, credentials, **{protocol: LoginResult.BEGUN})
        result = note.results.get(protocol) if (note.login, note.retry) == (new.login, new.retry) else None
        if result is not None and key not in self._begun:
            self._results[bmc, credentials.version] = self.results(bmc, credentials) | {protocol: result}
            self.check(bmc, credentials, protocol)
            return None
        self._begun[key] = None
        return new

    def written(self, bmc: str, credentials: BmcCredentials) -> None:
        """Note that the status of an object has the results of a login."""
        self._unwritten.pop((bmc, credentials.version), None)

    # --- notes of earlier processes -----------------------------------------------------------------------------------

    def restore(self, kind: str, holder: Raw, bmc: str, credentials: BmcCredentials) -> None:
        """Take over what earlier processes have noted about a login in a Machine or Task, and in its neighbours.

        Neighbours are the Machines of the same namespace. The caller has read `credentials` for `holder`. So a user
        can't suppress the login of another Machine by a note with the version of its Secret. A new request for one more
        login drops a refusal.
        """
        key, name, note = (bmc, credentials.version), (kind, NamespacedName.of(holder)), login_note(holder)
        login = login_of(bmc, credentials)
        if note.retry and name not in self._retries:
            self._retries[name] = note.retry
        if (requested := requested_retry(holder)) and requested not in (note.retry, self._retries.get(name)):
            self._retries[name] = requested
            known = self._results[key] if key in self._results else self._noted(holder, login)
            self._results[key] = {each: result for each, result in known.items() if result is LoginResult.ACCEPTED}
        elif key not in self._results:
            self._results[key] = self._noted(holder, login)

    def machine_changed(self, new: Raw, _old: Raw | None) -> None:
        """Take the note of a Machine that an informer reports."""
        key, note = NamespacedName.of(new), login_note(new)
        self._by_login.set(key, ((key.namespace, note.login),) if note.login else ())
        self._notes[key] = note

    def machine_gone(self, old: Raw) -> None:
        """Drop the note of a deleted Machine."""
        key = NamespacedName.of(old)
        self._by_login.set(key, ())
        self._notes.pop(key, None)

    def lead(self) -> None:
        """Forget what another replica may have changed since this one led. Refusals that are not written stay."""
        for key in self._results.keys() - self._unwritten.keys():
            del self._results[key]
        self._retries.clear()
        self._begun.clear()

    def _noted(self, holder: Raw, login: str) -> dict[str, LoginResult]:
        """Return the results of a login in the notes of a Machine or Task and its neighbours."""
        found: dict[str, LoginResult] = {}
        namespace = NamespacedName.of(holder).namespace
        neighbours = [self._notes[each] for each in self._by_login.keys((namespace, login))]
        for note in (*neighbours, login_note(holder)):
            for protocol, result in note.results.items() if note.login == login else ():
                # A refusal is certain. A login that another Machine has completed explains one that was begun.
                found[protocol] = max(result, found.get(protocol, LoginResult.BEGUN), key=list(LoginResult).index)
        return found

    def _error(self, bmc: str, credentials: BmcCredentials, protocol: str, *, is_alone: bool) -> BmcError:
        secret = credentials.version.partition("@")[0]
        by = f" by {protocol.upper()}" if is_alone else ""
        remedy = (
            f"The next login{by} is tried when Secret {secret} changes, or the Machine's annotation "
            f"{RETRY_LOGIN_ANNOTATION} gets a new value"
        )
        host = bmc.rsplit(":", 2)[0]
        if self._results.get((bmc, credentials.version), {}).get(protocol) is LoginResult.BEGUN:
            text = f"tinkedge stopped while it logged in to the BMC {host}{by}, so it does not know the result"
            return BmcError(Cause.LOGIN_UNCLEAR, f"{text}. {remedy}")
        reason = self._reasons.get((bmc, credentials.version, protocol))
        reason = reason or f"the BMC {host} has refused the user or the password"
        return BmcError(Cause.CREDENTIALS_REFUSED, f"{reason}. {remedy}")


def login_of(bmc: str, credentials: BmcCredentials) -> str:
    """Return what identifies a login in a note: the BMC, and the Secret with its version."""
    return f"{bmc} {credentials.version}"


def _annotation(holder: Raw, name: str) -> str:
    annotations = as_mapping(as_mapping(holder.get("metadata")).get("annotations"))
    return str(annotations.get(name, ""))


class CredentialsReader:
    """Reads the credentials of BMCs from the API."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a reader. `clock` (seconds) limits the age of copies."""
        self._client = client
        self._clock = clock
        self._cached: Newest[NamespacedName, tuple[float, Raw]] = Newest(_MAX_CACHED)

    async def credentials(self, connection: Raw, namespace: str) -> BmcCredentials:
        """Return the user and the password of a Machine's `spec.connection`. `namespace` is the Machine's.

        Raises BmcError (CREDENTIALS_MISSING), ApiError.
        """
        reference = as_mapping(connection.get("authSecretRef"))
        if not reference.get("name"):
            raise _missing("spec.connection.authSecretRef names no Secret with the BMC's user and password")
        name, secret = await self._secret(reference, namespace)
        username, password = (_text(name, secret, key) for key in ("username", "password"))
        if not username:
            raise _missing(f"Secret {name} has no username")
        version = f"{name}@{secret['metadata'].get('resourceVersion', '')}"
        return BmcCredentials(username, password, version)

    async def authority(self, connection: Raw, namespace: str) -> str:
        """Return the certificate authority (PEM) of a Machine's `spec.connection`; empty if it names none.

        Raises BmcError (CREDENTIALS_MISSING), ApiError.
        """
        reference = as_mapping(connection.get("caSecretRef"))
        if not reference.get("name"):
            return ""
        name, secret = await self._secret(reference, namespace)
        return _text(name, secret, "ca.crt", _MAX_AUTHORITY_BYTES, one_line=False)

    async def _secret(self, reference: Raw, namespace: str) -> tuple[NamespacedName, Raw]:
        name = NamespacedName(str(reference.get("namespace") or namespace), str(reference["name"]))
        read_at, secret = self._cached.get(name, (0.0, {}))
        if not secret or not 0 <= self._clock() - read_at < CACHE_SECONDS:
            try:
                secret = await self._client.get(SECRET, name.name, name.namespace)
            except NotFoundError:
                self._cached.pop(name, None)
                if name.namespace == namespace:
                    raise _missing(f"Secret {name} does not exist: create it") from None
                raise _not_permitted(name, namespace) from None
            except ApiError as error:
                if error.status != _FORBIDDEN:
                    raise
                text = (
                    f"Secret {name} can't be read: tinkedge needs the verb get on secrets in namespace {name.namespace}"
                )
                raise _missing(text) from error
            self._cached[name] = self._clock(), secret
        if name.namespace != namespace and not _permits(secret, namespace):
            raise _not_permitted(name, namespace)
        return name, secret


def _permits(secret: Raw, namespace: str) -> bool:
    annotations = as_mapping(secret["metadata"].get("annotations"))
    permitted = str(annotations.get(BMC_NAMESPACES_ANNOTATION, ""))
    return bool({namespace, "*"} & {each.strip() for each in permitted.split(",")})


def _text(name: NamespacedName, secret: Raw, key: str, maximum: int = _MAX_CHARACTERS, *, one_line: bool = True) -> str:
    """Return the text of a key of a Secret. Raises BmcError; its message has nothing of the text."""
    value = as_mapping(secret.get("data")).get(key)
    if value is None:
        raise _missing(f"Secret {name} has no key {key}")
    try:
        text = base64.b64decode(str(value), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _missing(f"Secret {name}: {key} is not UTF-8 text") from None
    if len(text) > maximum:
        raise _missing(f"Secret {name}: {key} is longer than {maximum} characters")
    # `echo password | base64` encodes a line break, too. No BMC has such a password, and each try may lock the account.
    if one_line and not text.isprintable():
        raise _missing(f"Secret {name}: {key} has a line break or another control character (`echo -n` adds none)")
    return text


def _missing(message: str) -> BmcError:
    return BmcError(Cause.CREDENTIALS_MISSING, message)


def _not_permitted(name: NamespacedName, namespace: str) -> BmcError:
    return _missing(
        f"Secret {name} is in another namespace, and does not exist or does not permit its use: use a Secret in "
        f"{namespace}, or annotate it with {BMC_NAMESPACES_ANNOTATION}: {namespace}"
    )
