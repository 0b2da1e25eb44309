"""What is compiled of a machine's metadata, and kept while there is room: its documents, and the fast path's responses.

Documents are compiled when a machine first asks after its Hardware changed (`hegel.metadata`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edge.http.transport.fast_path import LiveResponse, PreparedResponse
from edge.machines import Machine
from hegel.metadata import MetadataTree, compile_tree

MAX_BYTES = 256 << 20
"""Of all that is kept. A machine whose crawl is under way takes some 10 kB, and its user-data as often as it asked."""

OVERHEAD_BYTES = 500
"""What a response, or a document, takes besides its content."""


@dataclass(slots=True, eq=False)
class Compiled:
    """The compiled metadata of one machine at one time: the documents in `tree`, and the `size_bytes` of all of it.

    `responses` are the ready responses of `edge.http.metadata.fast_path`, by target of the request line.
    `problems` holds, by document name, the reason why cloud-init ignores the Hardware's user-data or vendor-data, or ""
    if cloud-init accepts it; a document that has not been checked yet is absent.
    """

    machine: Machine
    tree: MetadataTree
    size_bytes: int
    responses: dict[bytes, PreparedResponse | LiveResponse] | None = None
    problems: dict[str, str] = field(default_factory=dict)


class MetadataCache:
    """Compiled metadata by machine; where it is full, the oldest goes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """`size_bytes` is what all that is kept takes."""
        self._max_bytes = max_bytes
        self._kept: dict[str, Compiled] = {}
        self.size_bytes = 0

    def of(self, machine: Machine) -> Compiled:
        """What is compiled of `machine`; made now if it has to be."""
        kept = self._kept.get(machine.mac)
        # Two Hardware may claim one MAC by mistake; each is still known by its own address.
        if kept is not None and kept.machine is machine:
            return kept
        self.forget(machine.mac)
        tree = compile_tree(machine.hardware)
        compiled = self._kept[machine.mac] = Compiled(machine, tree, _size_bytes(tree))
        self._take(compiled.size_bytes)
        return compiled

    def grow(self, compiled: Compiled, size_bytes: int) -> None:
        """More has been made of it."""
        if self._kept.get(compiled.machine.mac) is compiled:
            compiled.size_bytes += size_bytes
            self._take(size_bytes)

    def forget(self, mac: str) -> None:
        """The machine has changed, or is gone."""
        old = self._kept.pop(mac, None)
        if old is not None:
            self.size_bytes -= old.size_bytes

    def _take(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        while self.size_bytes > self._max_bytes and len(self._kept) > 1:
            self.forget(next(iter(self._kept)))


def _size_bytes(tree: MetadataTree) -> int:
    bodies = [*tree.ec2.values(), *tree.nocloud.values(), tree.legacy]
    return sum(len(body) + OVERHEAD_BYTES // 3 for body in bodies)
