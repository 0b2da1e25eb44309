"""The API from other hosts: whether this one has the addresses where it is to be there, and whose tokens end."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from edge.doctor.checks.findings import Finding, warning

_SOON: Final = timedelta(days=7)


def api_addresses(addresses: Sequence[str]) -> Iterator[Finding]:
    """Whether this host has each of them."""
    for address in addresses:
        name = f"--api-address {address}"
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as asked:
                asked.bind((address, 0))
        except OSError as error:
            remedy = "see which addresses there are: ip -brief address. The API is there as soon as this one is"
            yield warning(name, error.strerror or str(error), remedy)
        else:
            yield Finding(name, ok=True, seen="this host has it")


def api_users(data_dir: Path, now: datetime) -> Iterator[Finding]:
    """Whether the file of users is good, and which tokens end within a week. Nothing where there are no users."""
    # `tinkedge doctor --help` loads nothing of the servers.
    from tink.kubeapi import USERS_FILE, UserFileError, read_users

    path = data_dir / USERS_FILE
    try:
        users = read_users(path)
    except UserFileError as error:
        yield Finding("users of the API", ok=False, seen=str(error), remedy="see docs/api.md, Colleagues")
        return
    except OSError as error:
        yield warning("users of the API", f"{path}: {error.strerror}", "run it as root, or as tinkedge's user")
        return
    if not users.users:
        return
    soon = users.expiring(now, _SOON)
    if not soon:
        yield Finding("users of the API", ok=True, seen=f"{len(users.users)}, no token ends within a week")
    for name, credential in soon:
        seen = f"token {credential.id} ends on {credential.expires:%Y-%m-%d %H:%M} UTC"
        yield warning(f"user {name} of the API", seen, f"`tinkedge kubeconfig --user {name}` makes another")
