"""Whether the edge of another site is there that files are fetched through (`--upstream-edge`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from edge.doctor.checks.findings import Finding, warning


def upstream_edge(authority: str, keys: Path | None) -> Iterator[Finding]:
    """Ask it, signed with the keys of the file `keys`. Nothing where there is none (`authority` is empty).

    One that is away is a warning: files come from their origins then.
    """
    if not authority:
        return
    # `tinkedge doctor --help` loads nothing of the servers.
    from edge.peers import CallError, probe
    from tink.files.key_file import KeyFile, KeyFileError

    name = f"--upstream-edge {authority}"
    if keys is None:
        yield Finding(name, ok=False, seen="no --metadata-token-key", remedy="give both edges the same file by it")
        return
    try:
        asyncio.run(probe(authority, KeyFile(keys, "metadata token key"), time.time))
    except KeyFileError as error:
        yield Finding(name, ok=False, seen=str(error), remedy="give both edges the same file by --metadata-token-key")
    except CallError as error:
        yield warning(name, str(error), "until then files come from their origins; see docs/edges.md, Branches")
    else:
        yield Finding(name, ok=True, seen="fetches for this edge")
