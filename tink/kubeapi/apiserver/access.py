"""Users of the API, their tokens, and what they may do.

    DATA_DIR/users.json       the users: a role, namespaces, and the hash of each token
    tinkedge.<id>.<secret>    a token: 256 random bits, and the id of its entry in users.json

A user has one role, in all namespaces or in some, and any number of tokens, each with its own expiry. So a new token
can be issued before the old one is revoked. The API uses tokens, not client certificates, because a revoked token stops
to work at once. Roles are the default ClusterRoles of Kubernetes.

Decisions and messages are those of Kubernetes' RBAC authorizer (k8s.io/kubernetes, plugin/pkg/auth/authorizer/rbac and
pkg/apis/rbac/v1/evaluation_helpers.go; k8s.io/apiserver, pkg/endpoints/handlers/responsewriters/errors.go).
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

from multidict import MultiMapping
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from tink.errors import TinkedgeError
from tink.files import private_files
from tink.files.rereading import ChangingFile
from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.schema.field_errors import quote
from tink.kubeapi.schema.shapes import Raw

AUTHENTICATED = "system:authenticated"
MASTERS = "system:masters"


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated user of a request.

    `role` is one of ROLES; "" allows only questions about oneself. `namespaces` limits the role; empty means all.
    `credential` is the id of the token; "" for the administrator's. `by` is the real user if this one is impersonated.
    """

    name: str
    groups: tuple[str, ...] = (AUTHENTICATED,)
    role: str = ""
    namespaces: tuple[str, ...] = ()
    credential: str = ""
    by: str = ""

    def user_info(self) -> Raw:
        """Return the UserInfo for reviews and webhooks (authentication.k8s.io/v1)."""
        return {"username": self.name, "groups": list(self.groups)}


ADMIN = Caller("admin", (MASTERS, AUTHENTICATED), "cluster-admin")
"""The holder of the administrator's token: the operator, and the server's own components."""


ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class RoleRule:
    """Verbs on resources of groups (`hardware`, `hardware/status`), or on paths outside resources (`/api/*`)."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")

_TINKERBELL: Final = ("hardware", "osies", "templates", "workflows")
_BMC: Final = ("machines", "jobs", "tasks")
_METAL3: Final = ("baremetalhosts", "hardwaredata")


def _with_status(resources: Sequence[str]) -> tuple[str, ...]:
    return tuple(each for name in resources for each in (name, f"{name}/status"))


_VIEW: Final = (
    RoleRule(_READ, ("",), ("configmaps", "namespaces", "namespaces/status")),
    RoleRule(_READ, ("", "events.k8s.io"), ("events",)),
    RoleRule(_READ, ("tinkerbell.org",), _with_status(_TINKERBELL)),
    RoleRule(_READ, ("bmc.tinkerbell.org",), _with_status(_BMC)),
    RoleRule(_READ, ("metal3.io",), _with_status(_METAL3)),
)
_EDIT: Final = (
    RoleRule(_READ, ("",), ("secrets",)),
    RoleRule(_WRITE, ("",), ("configmaps", "secrets")),
    RoleRule(_WRITE, ("", "events.k8s.io"), ("events",)),
    RoleRule((*_READ, *_WRITE), ("coordination.k8s.io",), ("leases",)),
    RoleRule(_WRITE, ("tinkerbell.org",), _TINKERBELL),
    RoleRule(_WRITE, ("bmc.tinkerbell.org",), _BMC),
    RoleRule(_WRITE, ("metal3.io",), _METAL3),
)
_ADMIN: Final = (RoleRule(("create",), ("authorization.k8s.io",), ("localsubjectaccessreviews",)),)
_SERVER: Final = (
    RoleRule(("list", "watch"), ("tinkerbell.org",), ("hardware", "workflows")),
    RoleRule(("get",), ("tinkerbell.org",), ("workflows",)),
    RoleRule(("patch",), ("tinkerbell.org",), ("workflows/status",)),
    RoleRule(("patch",), ("tinkerbell.org",), ("hardware/status",)),
    RoleRule(("create",), ("",), ("events",)),
)
_EDGE: Final = (
    RoleRule(("list", "watch"), ("tinkerbell.org",), ("hardware", "osies", "workflows")),
    RoleRule(("get",), ("tinkerbell.org",), ("hardware",)),
    RoleRule(("patch",), ("tinkerbell.org",), ("hardware/status",)),
    RoleRule(("create",), ("",), ("events",)),
    RoleRule(("get",), ("",), ("secrets",)),
)
"""The calls of the edge component, as deploy/rbac.yaml allows them in clusters. User-data may be in any Secret."""

_EDGE_DISCOVERY: Final = (
    *_EDGE,
    RoleRule(("create", "delete"), ("tinkerbell.org",), ("hardware",)),
    RoleRule(("list", "watch"), ("",), ("configmaps",)),
)
"""Those of an edge that admits unknown machines (--discover), as deploy/rbac-edge-discovery.yaml adds them."""

ROLES: Final[Mapping[str, tuple[RoleRule, ...]]] = {
    "cluster-admin": (RoleRule((ALL,), (ALL,), (ALL,)), RoleRule((ALL,), paths=(ALL,))),
    "admin": (*_VIEW, *_EDIT, *_ADMIN),
    "edit": (*_VIEW, *_EDIT),
    "view": _VIEW,
    "tinkedge-edge": _EDGE,
    "tinkedge-edge-discovery": _EDGE_DISCOVERY,
    "tinkedge-server": _SERVER,
}
"""The roles: for people, from most rights to fewest, then for components on other hosts.

They are Kubernetes' default ClusterRoles for users, for the resources of this server (k8s.io/kubernetes,
plugin/pkg/auth/authorizer/rbac/bootstrappolicy; "User-facing roles" in the documentation of RBAC). Tinkerbell's and
Metal3's resources are in them as `rbac.authorization.k8s.io/aggregate-to-*` would add them: `view` reads them, `edit`
writes them, and controllers write the status. `edit` includes Secrets, `view` does not. Only `cluster-admin` changes
definitions, namespaces and webhooks. A role that may patch or update a resource may also create it, because server-side
apply creates missing objects.
"""

EVERYBODY: Final = (
    RoleRule(("create",), ("authorization.k8s.io",), ("selfsubjectaccessreviews", "selfsubjectrulesreviews")),
    RoleRule(("create",), ("authentication.k8s.io",), ("selfsubjectreviews",)),
    # Not in Kubernetes' roles. Terraform's provider reads definitions, whose content /openapi shows to every user.
    RoleRule(_READ, ("apiextensions.k8s.io",), ("customresourcedefinitions",)),
    RoleRule(
        ("get",),
        paths=(
            *("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz"),
            *("/version", "/version/"),
        ),
    ),
)
"""The rights of every user: discovery, and questions about oneself (system:discovery, system:basic-user)."""


MAX_USERS: Final = 1000
MAX_CREDENTIALS: Final = 50
"""Maximum number of tokens of one user."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9._@]{0,61}[a-z0-9])?")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RESERVED: Final = frozenset({"admin"})
_TOKEN: Final = re.compile(r"tinkedge\.([a-z0-9]{8})\.([A-Za-z0-9_-]{43})")
_ID_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"
"""Letters of token ids, without those that look alike: people type ids."""


class UserError(TinkedgeError):
    """The change of a user is not possible. The message says why and what to do."""


_FROZEN = ConfigDict(frozen=True, extra="forbid")


class Credential(BaseModel):
    """A token: its hash and its lifetime. `expires` None means never."""

    model_config = _FROZEN
    id: Annotated[str, Field(pattern="^[a-z0-9]{8}$")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created: AwareDatetime
    expires: AwareDatetime | None = None

    def expired(self, now: datetime) -> bool:
        """Return True if the token has expired."""
        return self.expires is not None and now >= self.expires


class User(BaseModel):
    """The role of a user and the user's tokens. `namespaces` empty means all."""

    model_config = _FROZEN
    role: str
    namespaces: tuple[str, ...] = ()
    credentials: tuple[Credential, ...] = ()


class Users(BaseModel):
    """All users by name, as the file holds them."""

    model_config = _FROZEN

    version: Annotated[int, Field(ge=1, le=1)] = 1
    users: dict[str, User] = {}

    def check(self) -> None:
        """Check what the types cannot express. Raises UserError."""
        ids: set[str] = set()
        for name, user in self.users.items():
            check_name(name)
            check_grant(user.role, user.namespaces)
            for credential in user.credentials:
                if credential.id in ids:
                    raise UserError(f"{credential.id} occurs twice")
                ids.add(credential.id)

    def caller(self, name: str, credential: str = "") -> Caller:
        """Return the caller of this name. An unknown user has no rights."""
        user = self.users.get(name)
        if user is None:
            return Caller(name)
        return Caller(name, (AUTHENTICATED,), user.role, user.namespaces, credential)

    def expiring(self, now: datetime, within: timedelta) -> list[tuple[str, Credential]]:
        """Return the tokens that expire within this time, with the names of their users."""
        return [
            (name, credential)
            for name, user in sorted(self.users.items())
            for credential in user.credentials
            if credential.expires is not None and now < credential.expires <= now + within
        ]

    def known(self, name: str) -> User:
        """Return a user. Raises UserError if there is no such user."""
        user = self.users.get(name)
        if user is None:
            there = f"there is {', '.join(sorted(self.users))}" if self.users else "there are no users"
            raise UserError(f"there is no user {name}; {there} ('tinkedge kubeconfig --user {name}' makes one)")
        return user


def check_name(name: str) -> None:
    """Check the name of a user. Raises UserError."""
    if name in _RESERVED:
        raise UserError(f"{name} is the holder of DATA_DIR/token; choose another name")
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is not a valid user name: use up to 63 of a-z, 0-9 and -._@, such as alice or alice@example.org"
        )


def check_grant(role: str, namespaces: tuple[str, ...]) -> None:
    """Check a role and its namespaces. Raises UserError."""
    if role not in ROLES:
        raise UserError(f"there is no role {role!r}: {', '.join(ROLES)}")
    for namespace in namespaces:
        if not _NAMESPACE.fullmatch(namespace):
            raise UserError(f"{namespace!r} is not a valid namespace")


def _hash(token: str) -> str:
    """Return the stored hash of a token. A fast hash suffices, because a token is random."""
    return hashlib.sha256(token.encode()).hexdigest()


USERS_FILE: Final = "users.json"  # Name of the file in the data directory
MAX_FILE_BYTES: Final = 16 << 20


class UserFileError(TinkedgeError):
    """The file of users cannot be used. The message names the file and says what to do."""


def read_users(path: Path) -> Users:
    """Read the file of users; without a file there are no users. Raises UserFileError, OSError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Users()
    advice = "restore it, or remove it to have no users"
    if len(content) > MAX_FILE_BYTES or not content.endswith(b"\n"):
        raise UserFileError(f"{path}: the file is cut off; {advice}")
    try:
        users = Users.model_validate_json(content)
        users.check()
    except (ValidationError, UserError) as error:
        # Without the input: after an edit by hand, it may be a token.
        why = error.errors(include_input=False, include_url=False)[0] if isinstance(error, ValidationError) else None
        reason = f"{'.'.join(map(str, why['loc']))}: {why['msg']}" if why else str(error)
        raise UserFileError(f"{path}: {reason}; {advice}") from None
    return users


def issue_token(
    data_dir: Path, name: str, role: str, namespaces: tuple[str, ...], now: datetime, expires: datetime | None
) -> tuple[Credential, str]:
    """Issue a token for a user, who is created if missing. Return the token's entry and the token, which is stored
    nowhere. `role` "" keeps the user's role. Raises UserError, UserFileError, OSError."""
    check_name(name)
    with _changing(data_dir) as users:
        user = users.users.get(name)
        if user is None:
            if not role:
                raise UserError(f"there is no user {name} yet: choose a role with --role {'|'.join(ROLES)}")
            check_grant(role, namespaces)
            if len(users.users) >= MAX_USERS:
                raise UserError(f"there are {MAX_USERS} users already")
            user = User(role=role, namespaces=namespaces)
        granted = user.role + (f" in {', '.join(user.namespaces)}" if user.namespaces else "")
        if role and (role, namespaces) != (user.role, user.namespaces):
            raise UserError(
                f"{name} is {granted} already; change the role with: tinkedge users role {name} {role}"
                + "".join(f" -n {each}" for each in namespaces)
            )
        if namespaces and namespaces != user.namespaces:
            raise UserError(f"{name} is {granted} already: leave --namespace out, or change it with users role")
        left = tuple(each for each in user.credentials if not each.expired(now))
        if len(left) >= MAX_CREDENTIALS:
            raise UserError(f"{name} has {len(left)} tokens: revoke those that are not used (tinkedge users list)")
        token_id, secret = "".join(secrets.choice(_ID_LETTERS) for _ in range(8)), secrets.token_urlsafe(32)
        token = f"tinkedge.{token_id}.{secret}"
        made = Credential(id=token_id, sha256=_hash(token), created=now, expires=expires)
        changed = {**users.users, name: user.model_copy(update={"credentials": (*left, made)})}
        Users(users=changed).check()
        _write(data_dir, changed)
    return made, token


def change_role(data_dir: Path, name: str, role: str, namespaces: tuple[str, ...]) -> None:
    """Change the role of a user; the tokens stay. Raises UserError, UserFileError, OSError."""
    with _changing(data_dir) as users:
        check_grant(role, namespaces)
        changed = users.known(name).model_copy(update={"role": role, "namespaces": namespaces})
        _write(data_dir, {**users.users, name: changed})


def revoke_token(data_dir: Path, name: str, token_id: str = "") -> None:
    """Revoke a token, or remove the user with all tokens if `token_id` is "". Raises UserError, UserFileError,
    OSError."""
    with _changing(data_dir) as users:
        user = users.known(name)
        left = tuple(each for each in user.credentials if token_id and each.id != token_id)
        if token_id and len(left) == len(user.credentials):
            known = ", ".join(each.id for each in user.credentials) or "none"
            raise UserError(f"{name} has no token {token_id}; there is {known}")
        others = {other: each for other, each in users.users.items() if other != name}
        _write(data_dir, users.users | {name: user.model_copy(update={"credentials": left})} if token_id else others)


@contextmanager
def _changing(data_dir: Path) -> Iterator[Users]:
    """Lock the data directory and read the users, so that two commands do not overwrite each other's change."""
    handle = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        private_files.sweep(data_dir, USERS_FILE)
        yield read_users(data_dir / USERS_FILE)
    finally:
        os.close(handle)


def _write(data_dir: Path, users: dict[str, User]) -> None:
    content = Users(users=users).model_dump_json(indent=1).encode() + b"\n"
    private_files.write(data_dir / USERS_FILE, content, owner_of=data_dir)


@dataclass(frozen=True, slots=True)
class ResourceAction:
    """A verb on a resource. `namespace` is "" for all namespaces, and for resources without namespaces."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def combined(self) -> str:
        """The resource with its subresource: `workflows`, `workflows/status`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True, slots=True)
class PathAction:
    """A verb (the HTTP method in lower case) on a path outside resources."""

    verb: str
    path: str


def allowed(caller: Caller, wanted: ResourceAction | PathAction) -> bool:
    """Return True if the caller may do this. Anything that no rule allows is forbidden."""
    for rule in rules_in(caller, wanted.namespace if isinstance(wanted, ResourceAction) else ""):
        if wanted.verb not in rule.verbs and ALL not in rule.verbs:
            continue
        if isinstance(wanted, PathAction):
            for path in rule.paths:
                if path in (ALL, wanted.path) or (path.endswith(ALL) and wanted.path.startswith(path[:-1])):
                    return True
        elif (wanted.group in rule.groups or ALL in rule.groups) and (
            wanted.combined in rule.resources or ALL in rule.resources
        ):
            return True
    return False


def rules_in(caller: Caller, namespace: str) -> Iterator[RoleRule]:
    """Yield the rules of a caller in a namespace; "" stands for cluster scope and for all namespaces at once."""
    if not caller.namespaces or namespace in caller.namespaces:
        yield from ROLES.get(caller.role, ())
        if caller.role == "cluster-admin":
            return
    yield from EVERYBODY


def forbidden(caller: Caller, wanted: ResourceAction | PathAction) -> StatusError:
    """Return the refusal (403) of an action that the caller may not do, in Kubernetes' words."""
    user = _quoted(caller.name)
    if isinstance(wanted, PathAction):
        return errors.not_allowed("", "", "", f"User {user} cannot {wanted.verb} path {_quoted(wanted.path)}")
    what = f"{wanted.verb} resource {_quoted(wanted.combined)} in API group {_quoted(wanted.group)}"
    where = f"in the namespace {_quoted(wanted.namespace)}" if wanted.namespace else "at the cluster scope"
    return errors.not_allowed(wanted.group, wanted.resource, wanted.name, f"User {user} cannot {what} {where}")


def _quoted(text: str) -> str:
    """Quote a text like Go's %q, and escape HTML characters, as Kubernetes does."""
    return quote(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def impersonate(caller: Caller, headers: MultiMapping[str], user: Callable[[str], Caller]) -> Caller:
    """Return the caller whom the headers name (`kubectl --as`), or `caller` without such headers. `user` finds a user.

    Unknown impersonation headers are an error: a caller must not act with the own rights by mistake (k8s.io/apiserver,
    pkg/endpoints/filters/impersonation.go). Raises StatusError (400, 403).
    """
    given = {name.lower() for name in headers if name.lower().startswith("impersonate-")}
    if not given:
        return caller
    name, groups = headers.get("Impersonate-User", ""), headers.getall("Impersonate-Group", [])
    wanted_groups = (ResourceAction("impersonate", "", "groups", name=each) for each in groups)
    for wanted in (ResourceAction("impersonate", "", "users", name=name), *wanted_groups):
        if not allowed(caller, wanted):
            raise forbidden(caller, wanted)
    if given - {"impersonate-user", "impersonate-group"}:
        raise errors.bad_request("only Impersonate-User and Impersonate-Group are known here")
    if not name:
        raise errors.bad_request("requested groups without impersonating a user")
    known = user(name)
    return Caller(
        name,
        tuple(dict.fromkeys((*groups, AUTHENTICATED))),
        "cluster-admin" if MASTERS in groups else known.role,
        () if MASTERS in groups else known.namespaces,
        caller.credential,
        caller.name,
    )


log = logging.getLogger(__name__)

WARN_BEFORE: Final = timedelta(days=7)


class Authenticator(ChangingFile):
    """Finds the caller of a token: the administrator by `is_admin(token)`, and the users of a file.

    `now` returns the time in UTC, `monotonic` seconds.
    """

    _KEPT = "the users of the API stay unchanged"

    def __init__(
        self,
        is_admin: Callable[[str], bool],
        users: Path,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file. If it is invalid, only the administrator is known until it is repaired."""
        super().__init__(users, monotonic)
        self._is_admin = is_admin
        self._now = now
        self._use(Users())
        self._read_first("only the administrator is known")

    def caller(self, shown: bytes) -> Caller:
        """Return the caller who has this token. Raises StatusError (401)."""
        if self._is_admin(shown.decode("utf-8", "surrogateescape")):
            return ADMIN
        self.recheck()
        token = shown.decode("ascii", "replace")
        match = _TOKEN.fullmatch(token)
        found = match[1] if match else ""
        if found and found not in self._by_id:
            self._compare()  # the token may have been issued a moment ago
        name, credential = self._by_id.get(found, ("", None))
        if credential is None or not hmac.compare_digest(_hash(token), credential.sha256):
            raise errors.unauthorized()
        if credential.expired(self._now()):
            raise errors.unauthorized(
                f"Unauthorized: this token of {name} has expired on {credential.expires:%Y-%m-%d %H:%M} UTC; ask for a "
                "new kubeconfig"
            )
        return self._users.caller(name, credential.id)

    def user(self, name: str) -> Caller:
        """Return the user of this name without a token. An unknown user has no rights."""
        return self._users.caller(name)

    def holds(self, caller: Caller) -> bool:
        """Return True if a known caller still has the same rights."""
        if not caller.credential:
            return True
        name, credential = self._by_id.get(caller.credential, ("", None))
        if credential is None or credential.expired(self._now()):
            return False
        return self._users.caller(name, credential.id) == caller

    def warn_of_expiry(self) -> None:
        """Log each token that expires within a week. The server calls this once a day."""
        for name, each in self._users.expiring(self._now(), WARN_BEFORE):
            log.warning(
                "the token %s of %s expires on %s UTC: `tinkedge kubeconfig --user %s` makes another",
                *(each.id, name, f"{each.expires:%Y-%m-%d %H:%M}", name),
            )

    def _read(self) -> None:
        self._use(read_users(self._path))

    def _after_change(self) -> None:
        log.info("%s read again: users %s", self._path, ", ".join(sorted(self._users.users)[:20]) or "none")

    def _use(self, users: Users) -> None:
        self._users = users
        self._by_id: dict[str, tuple[str, Credential]] = {
            credential.id: (name, credential) for name, user in users.users.items() for credential in user.credentials
        }

    def _stat(self) -> tuple[int, ...]:
        try:
            return super()._stat()
        except FileNotFoundError:
            return ()
