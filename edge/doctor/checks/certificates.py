"""Until when the certificates are good that agents are served with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from edge.doctor.checks.findings import Finding, warning


def agents_certificates(files: Mapping[str, Path | None], *, now: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Yield until when each file's certificates are good. `files` are by the options that name them (`--grpc-tls-cert`,
    `--registry-ca REGISTRY`); None: the option was not given."""
    named = {option: path for option, path in files.items() if path is not None}
    if not named:
        return
    # `tinkedge doctor --help` loads nothing of the servers.
    from tink.server import TlsError, endings, what_ends

    for option, path in named.items():
        name = f"{option} {path}"
        try:
            ((_, end),) = endings({option: path})
        except TlsError as error:
            yield Finding(name, ok=False, seen=str(error).removeprefix(f"{name}: "), remedy="see that it can be used")
            continue
        lost = "pull images" if option.startswith("--registry-ca") else "connect"
        said, remedy = what_ends(end, now()), f"renew it: agents can't {lost} from then on"
        if not said:
            yield Finding(name, ok=True, seen=f"good until {end:%Y-%m-%d}")
        elif end.timestamp() > now():
            yield warning(name, said, remedy)
        else:
            yield Finding(name, ok=False, seen=said, remedy=remedy)
