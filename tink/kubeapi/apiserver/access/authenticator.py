"""From what a request shows to who makes it: a token of the administrator's, or one of a user's.

The file of users is read again when it has changed, within a second; one that can't be used changes nothing, and the
log says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from tink.files import rereading
from tink.kubeapi.apiserver.access.callers import ADMIN, Caller
from tink.kubeapi.apiserver.access.user_file import UserFileError, read_users
from tink.kubeapi.apiserver.access.users import Credential, Users, is_token_of, token_id

log = logging.getLogger(__name__)

RECHECK_SECONDS: Final = 1.0
"""For which the file is taken to be as it was."""
SOON: Final = timedelta(days=7)


class WrongTokenError(Exception):
    """No token, or none that is known."""


class TokenExpiredError(WrongTokenError):
    """A token that was good, of whom and until when the message says."""


class Authenticator:
    """Knows the administrator by `is_admin(token)`, and the users of a file. `now` gives the time in UTC, `monotonic`
    seconds."""

    def __init__(
        self,
        is_admin: Callable[[str], bool],
        users: Path,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A file that can't be used is logged: nobody but the administrator is known until it is good."""
        self._is_admin = is_admin
        self._path = users
        self._now = now
        self._monotonic = monotonic
        self._state: tuple[int, ...] | None = None
        self._looked = monotonic()
        self._reported = ""
        self._use(Users())
        self._begin()
        rereading.register(self)

    def _begin(self) -> None:
        try:
            state = self._stat()
            self._use(read_users(self._path))
            self._state = state
        except (UserFileError, OSError) as error:
            log.error("%s. Until it is good, nobody but the administrator is known: it is read again by itself", error)
            self._reported = str(error)

    def caller(self, shown: bytes) -> Caller:
        """Who shows this token. Raises WrongTokenError, TokenExpiredError."""
        if self._is_admin(shown.decode("utf-8", "surrogateescape")):
            return ADMIN
        self.look()
        token = shown.decode("ascii", "replace")
        found = token_id(token)
        if found and found not in self._by_id:
            self._compare()  # it may have been handed out a moment ago
        name, credential = self._by_id.get(found, ("", None))
        if credential is None or not is_token_of(credential, token):
            raise WrongTokenError("Unauthorized")
        if credential.expired(self._now()):
            raise TokenExpiredError(
                f"Unauthorized: this token of {name} has expired on {credential.expires:%Y-%m-%d %H:%M} UTC; ask for a "
                "new kubeconfig"
            )
        return self._users.caller(name, credential.id)

    def user(self, name: str) -> Caller:
        """The user of a name, whether there is such a one or not; without a token."""
        return self._users.caller(name)

    def holds(self, caller: Caller) -> bool:
        """Whether a caller who was known still is, and may do what he might."""
        if not caller.credential:
            return True
        name, credential = self._by_id.get(caller.credential, ("", None))
        if credential is None or credential.expired(self._now()):
            return False
        return self._users.caller(name, credential.id) == caller

    def look(self) -> None:
        """Read the file again if it has changed."""
        now = self._monotonic()
        if not 0 <= now - self._looked < RECHECK_SECONDS:
            self._looked = now
            self._compare()

    def say_what_expires(self) -> None:
        """A line in the log for each token that ends within a week. To be called once a day."""
        for name, credential in self._users.expiring(self._now(), SOON):
            log.warning(
                "the token %s of %s expires on %s UTC: `tinkedge kubeconfig --user %s` makes another",
                credential.id,
                name,
                f"{credential.expires:%Y-%m-%d %H:%M}",
                name,
            )

    def reread(self) -> bool:
        """Look at the file now. False: it can't be used, the users stay as they were, and the log says why."""
        self._reported = ""
        return self._compare()

    def _compare(self) -> bool:
        try:
            state = self._stat()
            if state == self._state:
                return True
            users = read_users(self._path)
        except (UserFileError, OSError) as error:
            if str(error) != self._reported:
                log.error("the users of the API stay as they were: %s", error)
            self._reported = str(error)
            return False
        self._use(users)
        self._state, self._reported = state, ""
        log.info("%s read again: users %s", self._path, ", ".join(sorted(users.users)[:20]) or "none")
        return True

    def _use(self, users: Users) -> None:
        self._users = users
        self._by_id: dict[str, tuple[str, Credential]] = {
            credential.id: (name, credential) for name, user in users.users.items() for credential in user.credentials
        }

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino
