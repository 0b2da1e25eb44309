"""The passphrase of a backup, from a file: never from an argument, which every user of the host can read."""

from __future__ import annotations

from pathlib import Path

import click

from edge.settings import FilePath

_MAX_BYTES = 1024
_LEAST_CHARACTERS = 12

passphrase_option = click.option(
    "--passphrase-file",
    type=FilePath(dir_okay=False),
    default=None,
    help="A file whose first line is the passphrase that encrypts the backup (scrypt and ChaCha20-Poly1305, as age "
    "does it).",
)


def read_passphrase(file: Path | None) -> bytes | None:
    """The first line of the file. Raises ClickException."""
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            line = opened.read(_MAX_BYTES + 1).partition(b"\n")[0].rstrip(b"\r")
    except OSError as error:
        raise click.ClickException(f"--passphrase-file {file}: {error.strerror}") from error
    if not _LEAST_CHARACTERS <= len(line) <= _MAX_BYTES:
        raise click.ClickException(
            f"--passphrase-file {file}: its first line has {len(line)} bytes; a passphrase has {_LEAST_CHARACTERS} to "
            f"{_MAX_BYTES} ('openssl rand -base64 32' makes one)"
        )
    return line
