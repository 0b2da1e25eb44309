"""The transfers under way: who may join them, and who gives way.

Requests with forged addresses leave half-open transfers behind, which nobody will ever acknowledge. A real client
acknowledges within milliseconds. So where it becomes crowded, the oldest that is still half-open goes; one that is
being taken stays until it ends. Registered machines and strangers are kept apart: whatever strangers do, and in however
many names, machines give way to machines only, and a stranger's transfer gives way to a machine's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from edge.tftp.session import Session
from edge.tftp.transport import Address

log = logging.getLogger(__name__)

MAX_TRANSFERS_PER_CLIENT = 16
MAX_HALF_OPEN = 512


class ActiveTransfers:
    """Sessions by their client's address and port."""

    def __init__(self, most: int, most_half_open: int, most_of_client: int) -> None:
        """`most` of all; `most_half_open` of strangers, and as many of machines; `most_of_client` of one address."""
        self._most = most
        self._most_half_open = most_half_open
        self._most_of_client = most_of_client
        self._sessions: dict[Address, Session] = {}
        self._of_client: dict[str, dict[Session, None]] = {}
        # In the order of their start. Who has been heard meanwhile is taken out when somebody looks.
        self._half_open: dict[bool, dict[Session, None]] = {False: {}, True: {}}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, client: Address) -> Session | None:
        """The session of that client."""
        return self._sessions.get(client)

    def add(self, session: Session) -> None:
        """One more; see `make_room`."""
        self._sessions[session.client] = session
        self._of_client.setdefault(session.client[0], {})[session] = None
        self._half_open[session.is_machine][session] = None

    def remove(self, session: Session) -> None:
        """It has ended."""
        del self._sessions[session.client]
        self._half_open[session.is_machine].pop(session, None)
        of_client = self._of_client[session.client[0]]
        del of_client[session]
        if not of_client:
            del self._of_client[session.client[0]]

    def make_room(self, client_ip: str, *, is_machine: bool) -> bool:
        """Whether one more transfer of that client fits, if need be in the place of another.

        `is_machine`: it is a registered one.
        """
        of_client = self._of_client.get(client_ip, {})
        if len(of_client) >= self._most_of_client:
            return self._drop_half_open(of_client)
        alike = self._half_open[is_machine]
        if len(alike) >= self._most_half_open:
            self._drop_half_open(alike)
        if len(self) < self._most:
            return True
        if self._drop_half_open(self._half_open[False]):
            return True
        return is_machine and (self._drop_stranger() or self._drop_half_open(alike))

    def _drop_half_open(self, sessions: Iterable[Session]) -> bool:
        """Whether there was one in `sessions`; the oldest goes."""
        for session in list(sessions):
            if not session.transfer.answered:
                log.debug("TFTP: gave up on %s, which never answered, for another client", session.client[0])
                session.drop()
                return True
            self._half_open[session.is_machine].pop(session, None)
        return False

    def _drop_stranger(self) -> bool:
        """Whether there was one, be it in the middle of its transfer; the oldest goes, and is told."""
        stranger = next((session for session in self._sessions.values() if not session.is_machine), None)
        if stranger is None:
            return False
        log.debug("TFTP: ended the transfer of %s, which is not registered, for a machine", stranger.client[0])
        stranger.abandon("the server is full, and machines that are registered come first")
        return True
