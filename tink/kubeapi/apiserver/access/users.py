"""Users of the API and their tokens, as they are kept: of a token no more than its hash. Pure; time is an argument.

    tinkedge.<id>.<secret>    what a user has: 256 random bits, and by which entry they are found

A user has one role, everywhere or in some namespaces, and any number of tokens, each with an end of its own: a new one
is handed out before the old one is taken away. Tokens, and not client certificates: a token is worth nothing from the
moment that its entry is gone, while a certificate is good until it expires.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from tink.errors import TinkedgeError
from tink.kubeapi.apiserver.access.callers import AUTHENTICATED, Caller
from tink.kubeapi.apiserver.access.roles import ROLES

MAX_USERS: Final = 1000
MAX_CREDENTIALS: Final = 50
"""Of one user."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9._@]{0,61}[a-z0-9])?")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RESERVED: Final = frozenset({"admin"})
_TOKEN: Final = re.compile(r"tinkedge\.([a-z0-9]{8})\.([A-Za-z0-9_-]{43})")
_ID_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"
"""Without those that look alike: people type ids."""


class UserError(TinkedgeError):
    """That can't be done with this user; the message says why and what to do."""


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Credential(_Kept):
    """One token: its hash, and from when until when it is good (None: for ever)."""

    id: Annotated[str, Field(pattern="^[a-z0-9]{8}$")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created: AwareDatetime
    expires: AwareDatetime | None = None

    def expired(self, now: datetime) -> bool:
        """Whether its time is over."""
        return self.expires is not None and now >= self.expires


class User(_Kept):
    """What a user may do, and by which tokens he is known. `namespaces` empty: everywhere."""

    role: str
    namespaces: tuple[str, ...] = ()
    credentials: tuple[Credential, ...] = ()


class Users(_Kept):
    """All users, by name."""

    version: Annotated[int, Field(ge=1, le=1)] = 1
    users: dict[str, User] = {}

    def check(self) -> None:
        """Check what types can't. Raises UserError."""
        ids: set[str] = set()
        for name, user in self.users.items():
            check_name(name)
            check_grant(user.role, user.namespaces)
            for credential in user.credentials:
                if credential.id in ids:
                    raise UserError(f"{credential.id} stands there twice")
                ids.add(credential.id)

    def caller(self, name: str, credential: str = "") -> Caller:
        """The user of a name; one that is not known may do nothing."""
        user = self.users.get(name)
        if user is None:
            return Caller(name)
        return Caller(name, (AUTHENTICATED,), user.role, user.namespaces, credential)

    def expiring(self, now: datetime, within: timedelta) -> list[tuple[str, Credential]]:
        """The tokens that end soon, and whose they are."""
        return [
            (name, credential)
            for name, user in sorted(self.users.items())
            for credential in user.credentials
            if credential.expires is not None and now < credential.expires <= now + within
        ]

    def issue(
        self, name: str, role: str, namespaces: tuple[str, ...], now: datetime, expires: datetime | None
    ) -> tuple[Users, Credential, str]:
        """Give a user a new token: all users then, its entry, and the token itself, which is kept nowhere.

        `role` "": the one that the user has. Raises UserError.
        """
        check_name(name)
        user = self.users.get(name)
        if user is None:
            if not role:
                raise UserError(f"there is no user {name} yet: say what {name} may do, --role {'|'.join(ROLES)}")
            check_grant(role, namespaces)
            user = User(role=role, namespaces=namespaces)
        elif role and (role, namespaces) != (user.role, user.namespaces):
            raise UserError(
                f"{name} is {described(user)} already; what {name} may do is changed by: tinkedge users role {name} "
                f"{role}" + "".join(f" -n {each}" for each in namespaces)
            )
        elif namespaces and namespaces != user.namespaces:
            raise UserError(f"{name} is {described(user)} already: leave --namespace out, or change it with users role")
        left = tuple(each for each in user.credentials if not each.expired(now))
        if len(left) >= MAX_CREDENTIALS:
            raise UserError(f"{name} has {len(left)} tokens: revoke those that are not used (tinkedge users list)")
        token_id, secret = "".join(secrets.choice(_ID_LETTERS) for _ in range(8)), secrets.token_urlsafe(32)
        token = f"tinkedge.{token_id}.{secret}"
        made = Credential(id=token_id, sha256=hashed(token), created=now, expires=expires)
        changed = self._with(name, user.model_copy(update={"credentials": (*left, made)}))
        if len(changed.users) > MAX_USERS:
            raise UserError(f"there are {MAX_USERS} users already")
        changed.check()
        return changed, made, token

    def with_role(self, name: str, role: str, namespaces: tuple[str, ...]) -> Users:
        """Change what a user may do, with the tokens that he has. Raises UserError."""
        check_grant(role, namespaces)
        return self._with(name, self._known(name).model_copy(update={"role": role, "namespaces": namespaces}))

    def revoke(self, name: str, token_id: str = "") -> Users:
        """Take one of a user's tokens away, or all of them and the user too. Raises UserError."""
        user = self._known(name)
        if not token_id:
            return Users(users={other: each for other, each in self.users.items() if other != name})
        left = tuple(each for each in user.credentials if each.id != token_id)
        if len(left) == len(user.credentials):
            known = ", ".join(each.id for each in user.credentials) or "none"
            raise UserError(f"{name} has no token {token_id}; there is {known}")
        return self._with(name, user.model_copy(update={"credentials": left}))

    def _known(self, name: str) -> User:
        user = self.users.get(name)
        if user is None:
            there = f"there is {', '.join(sorted(self.users))}" if self.users else "there are no users"
            raise UserError(f"there is no user {name}; {there} ('tinkedge kubeconfig --user {name}' makes one)")
        return user

    def _with(self, name: str, user: User) -> Users:
        return Users(users={**self.users, name: user})


def check_name(name: str) -> None:
    """Raises UserError."""
    if name in _RESERVED:
        raise UserError(f"{name} is who holds DATA_DIR/token; take another name")
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name of a user: up to 63 of a-z, 0-9 and -._@, such as alice or alice@example.org"
        )


def check_grant(role: str, namespaces: tuple[str, ...]) -> None:
    """Raises UserError."""
    if role not in ROLES:
        raise UserError(f"there is no role {role!r}: {', '.join(ROLES)}")
    for namespace in namespaces:
        if not _NAMESPACE.fullmatch(namespace):
            raise UserError(f"{namespace!r} is no name of a namespace")


def described(user: User) -> str:
    """`edit`, `edit in lab, rack-2`."""
    return user.role + (f" in {', '.join(user.namespaces)}" if user.namespaces else "")


def hashed(token: str) -> str:
    """What is kept of a token. It is random, so a fast hash is enough: there is nothing to guess."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_id(token: str) -> str:
    """By which entry a token is found; "" when it is none of ours."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else ""


def is_token_of(credential: Credential, token: str) -> bool:
    """Whether this is the token, in constant time."""
    return hmac.compare_digest(hashed(token), credential.sha256)
