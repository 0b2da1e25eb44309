"""Credentials of BMCs: users, passwords and certificate authorities from Secrets, and the memory of refused ones.

A Secret is read when its BMC is about to be contacted, and never watched. A copy is used for some seconds, because
many Machines often share one Secret.

Real BMCs lock an account, or block an address, after a few failed logins. So a refused version of a Secret is not sent
to the same BMC again (`RefusedLogins`). An annotation on the Machine keeps that over a restart. A changed Secret, or
the removal of the annotation, permits one more login.

A Secret of another namespace is used only if its annotation `tinkerbell.org/bmc-namespaces` permits that. Otherwise a
user who may write Machines in one namespace could send the passwords of all namespaces to a host of their own.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable

from tink.api.annotations import BMC_NAMESPACES_ANNOTATION, CREDENTIALS_REFUSED_ANNOTATION
from tink.api.v1alpha2 import Raw, as_mapping
from tink.bmc.model import BmcCredentials, BmcError, Cause
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


class RefusedLogins:
    """The logins that BMCs have refused: the BMC's address (`bmc_of`) and the version of the Secret."""

    def __init__(self) -> None:
        self._reasons: Newest[tuple[str, str, str], str] = Newest(_MAX_REFUSED)
        """By BMC, version of the Secret, and protocol; the protocol is empty for a refusal that concerns all."""
        self.count = 0
        """Number of refused logins since the start."""

    def check(self, bmc: str, credentials: BmcCredentials, protocol: str = "") -> None:
        """Raise BmcError (CREDENTIALS_REFUSED) if the BMC has refused this version of the Secret.

        `protocol`: by this protocol alone (see `add`).
        """
        reason = self._reasons.get((bmc, credentials.version, protocol))
        if reason is not None:
            raise _refused(reason, credentials, protocol)

    def add(self, bmc: str, credentials: BmcCredentials, reason: str, protocol: str = "") -> BmcError:
        """Remember a refused login, and return its error. `reason` is a sentence without a full stop.

        `protocol`: the BMC has refused the login by this protocol, and accepted it by another one.
        """
        self.count += 1
        self._reasons[bmc, credentials.version, protocol] = reason
        return _refused(reason, credentials, protocol)

    def restore(self, machine: Raw, bmc: str, credentials: BmcCredentials) -> None:
        """Remember a login that was refused before the start of this process, if the Machine's annotation says so.

        The caller has read `credentials` for this Machine. So a user can't suppress the login of another Machine by an
        annotation with the version of its Secret.
        """
        key = bmc, credentials.version, ""
        if key not in self._reasons and refused_login(machine) == login_of(bmc, credentials):
            self._reasons[key] = f"the BMC {bmc.rsplit(':', 2)[0]} has refused the user or the password"

    def forget(self, bmc: str, credentials: BmcCredentials) -> None:
        """Permit one more login with the same version."""
        self._reasons.pop((bmc, credentials.version, ""), None)

    def is_refused(self, bmc: str, credentials: BmcCredentials) -> bool:
        """Return True if the BMC has refused this version of the Secret, whatever the protocol."""
        return (bmc, credentials.version, "") in self._reasons


def login_of(bmc: str, credentials: BmcCredentials) -> str:
    """Return the value of the annotation about a refused login."""
    return f"{bmc} {credentials.version}"


def refused_login(machine: Raw) -> str:
    """Return the value of a Machine's annotation about a refused login; empty if it has none."""
    annotations = as_mapping(as_mapping(machine.get("metadata")).get("annotations"))
    return str(annotations.get(CREDENTIALS_REFUSED_ANNOTATION, ""))


def _refused(reason: str, credentials: BmcCredentials, protocol: str) -> BmcError:
    secret = credentials.version.partition("@")[0]
    if protocol:  # the other protocol works, so the Machine has no annotation
        text = f"{reason}. The next login by {protocol.upper()} is tried when Secret {secret} changes"
        return BmcError(Cause.CREDENTIALS_REFUSED, text)
    return BmcError(
        Cause.CREDENTIALS_REFUSED,
        f"{reason}. The next login is tried when Secret {secret} changes, or the annotation "
        f"{CREDENTIALS_REFUSED_ANNOTATION} is removed from the Machine",
    )


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
