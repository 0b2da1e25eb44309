"""Which older agent of which machine is there: they open no stream that says so, only calls, and connections for them.

An agent is there while its connection is, and while an action of its machine runs: a long one outlasts a connection
that nobody uses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tink.kube.objects import NamespacedName
from tink.printable import printable
from tink.server.activity import ActivityKind, ActivityObserver, AgentActivity
from tink.server.older.messages import Dialect
from tink.server.peer import peer_address

log = logging.getLogger(__name__)

_MAX_USER_AGENT = 100


@dataclass(slots=True)
class _Session:
    dialect: Dialect
    agent_id: str
    peer: str
    """gRPC's name of the connection that the last call came on."""
    described: int = 0
    """What it said of its machine, as a hash; 0: nothing."""


class Sessions:
    """The agents that have called. `is_open` tells whether a connection is, by gRPC's name of the peer; `at_work`,
    whether an action of a machine runs."""

    def __init__(
        self,
        is_open: Callable[[str], bool],
        at_work: Callable[[NamespacedName], bool],
        observe: ActivityObserver,
    ) -> None:
        self._is_open = is_open
        self._at_work = at_work
        self._observe = observe
        self._sessions: dict[NamespacedName, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def connected(self, key: NamespacedName) -> bool:
        """Whether the machine's agent has a connection."""
        session = self._sessions.get(key)
        return session is not None and self._is_open(session.peer)

    def agent_id(self, key: NamespacedName) -> str:
        """The id that the machine's agent gives itself; empty if it has not called."""
        session = self._sessions.get(key)
        return session.agent_id if session is not None else ""

    def called(
        self, key: NamespacedName, dialect: Dialect, agent_id: str, peer: str, user_agent: str, described: str = ""
    ) -> None:
        """The machine's agent has called on the connection `peer`; `described` is what it says of its machine."""
        session = self._sessions.get(key)
        if session is not None and (session.dialect, peer_address(session.peer)) == (dialect, peer_address(peer)):
            session.peer = peer
            if not described or session.described == hash(described):
                return
            session.described = hash(described)
        else:
            session = self._sessions[key] = _Session(dialect, agent_id, peer, hash(described) if described else 0)
        library = printable(user_agent, "")[:_MAX_USER_AGENT]
        story = f"{dialect} connected from {peer_address(peer)}" + (f" ({library})" if library else "")
        self._tell(key, session, ActivityKind.CONNECTED, f"{story}: {described}" if described else story)

    def sweep(self) -> None:
        """Forget who is gone."""
        for key, session in [*self._sessions.items()]:
            if not self._is_open(session.peer) and not self._at_work(key):
                del self._sessions[key]
                story = f"{session.dialect} at {peer_address(session.peer)} disconnected"
                self._tell(key, session, ActivityKind.DISCONNECTED, story)

    def _tell(self, key: NamespacedName, session: _Session, kind: ActivityKind, story: str) -> None:
        log.info("agent %s of Hardware %s: %s", session.agent_id, key, story)
        self._observe(AgentActivity(session.agent_id, peer_address(session.peer), kind, story, str(key)))
