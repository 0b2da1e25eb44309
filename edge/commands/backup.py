"""`tinkedge backup`: back up a data directory to one file, while everything runs. Also the names of backups."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import click

from edge.building.screen import ProgressLine
from edge.commands.options import data_dir as data_dir_option
from edge.commands.progress import errors_shown
from edge.settings import FilePath

_MAX_PASSPHRASE_BYTES = 1024
_MIN_PASSPHRASE_BYTES = 12

passphrase_option = click.option(
    "--passphrase-file",
    type=FilePath(dir_okay=False),
    help="File whose first line is the passphrase that encrypts the backup (scrypt and ChaCha20-Poly1305, as in age).",
)


def read_passphrase(file: Path | None) -> bytes | None:
    """Return the first line of the file, or None without a file. Raises ClickException."""
    # The passphrase is no argument, because every user of the host can list those.
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            line = opened.read(_MAX_PASSPHRASE_BYTES + 1).partition(b"\n")[0].rstrip(b"\r")
    except OSError as error:
        raise click.ClickException(f"--passphrase-file {file}: {error.strerror}") from error
    if not _MIN_PASSPHRASE_BYTES <= len(line) <= _MAX_PASSPHRASE_BYTES:
        raise click.ClickException(
            f"--passphrase-file {file}: its first line has {len(line)} bytes; a passphrase has "
            f"{_MIN_PASSPHRASE_BYTES} to {_MAX_PASSPHRASE_BYTES} ('openssl rand -base64 32' makes one)"
        )
    return line


ALIKE = "tinkedge-????????T??????Z.tgz*"  # glob pattern of the names of backups
_BACKUP_NAME = re.compile(r"tinkedge-\d{8}T\d{6}Z\.tgz(\.age)?")


def name_at(now: datetime, *, encrypted: bool) -> str:
    """Return the name of a backup that is made at `now`, with the time in the basic form of ISO 8601 in UTC."""
    return f"tinkedge-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}.tgz{'.age' if encrypted else ''}"


def too_many(names: Iterable[str], made: str, keep: int) -> list[str]:
    """Return the backups among `names` to remove, so that `keep` stay; `made` is the name of the newest one."""
    # A backup with a later time than `made` comes from a wrong clock, and is removed first.
    others = {name for name in names if _BACKUP_NAME.fullmatch(name)} - {made}
    stay = sorted(others, key=lambda name: (name < made, name), reverse=True)[: max(0, keep - 1)]
    return sorted(others - {*stay})


@click.command()
@click.argument("file", metavar="FILE", type=FilePath(allow_dash=True))
@data_dir_option("Data directory to back up.")
@passphrase_option
@click.option("--with-osie", is_flag=True, help="Include DATA_DIR/osie: kernels and initrds, which are large.")
@click.option(
    "--with-files",
    is_flag=True,
    help="Include DATA_DIR/images and DATA_DIR/files: container and disk images, which are large.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="NAME",
    help="Include a file or directory of your own in the data directory. Repeatable; `tinkedge restore` needs it, too.",
)
@click.option(
    "--work-dir",
    type=FilePath(file_okay=False, exists=True),
    help="Private directory for a temporary copy of the state.  [default: the data directory]",
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    help="FILE is a directory: keep this number of backups in it, and remove older ones.",
)
def backup(
    file: Path,
    data_dir: Path,
    passphrase_file: Path | None,
    with_osie: bool,
    with_files: bool,
    also: tuple[str, ...],
    work_dir: Path | None,
    keep: int | None,
) -> None:
    """Write a backup of a data directory to FILE, or to standard output (-), while everything runs.

    The backup has a snapshot of the objects of the embedded API, with keys, tokens and certificates: everyone who has
    the file has all rights. FILE has mode 0600, and is written completely or not at all. If FILE is a directory, the
    backup in it is named by the time. Root reads the data directory as its owner. Files that tinkedge does not know are
    left out and listed. `tinkedge restore` restores the backup.
    """
    # Not at the top, because the API server takes a tenth of a second to import.
    from tink.backup.contents import foreign
    from tink.backup.creation import create
    from tink.backup.encryption import encrypted
    from tink.files import private_files
    from tink.files.data_directory import as_owner, as_root_again

    passphrase, now = read_passphrase(passphrase_file), datetime.now(UTC).replace(microsecond=0)
    to_stdout, directory, alike = str(file) == "-", file, ""
    if file.is_dir():
        alike = ALIKE
        file = file / name_at(now, encrypted=passphrase is not None)
    elif keep is not None:
        raise click.UsageError(f"--keep: {file} is no directory")
    if to_stdout and sys.stdout.isatty():
        raise click.UsageError("a backup is no text: give a FILE, or redirect standard output")
    if not to_stdout and file.exists() and not file.is_file():
        raise click.UsageError(f"{file} is no file: give - to write to something else")
    if not to_stdout and not file.parent.is_dir():
        command = f"install -d -m 700 {shlex.quote(str(file.parent))}"
        raise click.ClickException(
            f"{file}: there is no directory {file.parent}; make it ('{command}'), or name a file in another one"
        )
    progress = ProgressLine()
    with errors_shown(progress, file):
        # The output belongs to the caller: root opens and renames it as root.
        with ExitStack() as stack, as_owner(data_dir):

            def open_output() -> BinaryIO:
                with as_root_again():
                    out: BinaryIO = (
                        sys.stdout.buffer if to_stdout else stack.enter_context(private_files.stream(file, alike))
                    )
                if passphrase is None:
                    return out
                sealed = encrypted(out, passphrase)
                stack.callback(sealed.close)
                return sealed  # type: ignore[return-value] # it is only written to

            manifest = create(
                data_dir,
                open_output,
                release=version("tinkedge"),
                now=now,
                progress=progress,
                osie=with_osie,
                files=with_files,
                also=also,
                work=work_dir,
            )
            left_out = foreign(data_dir, also)
        sys.stdout.buffer.flush()
        gone = too_many((each.name for each in directory.iterdir()), file.name, keep) if keep is not None else []
        for name in gone:
            (directory / name).unlink(missing_ok=True)
    counts = ", ".join(f"{count} {name.partition('/')[2]}" for name, count in manifest.objects.items())
    click.echo(f"{file}: {sum(manifest.objects.values())} objects ({counts}) at version {manifest.version}", err=True)
    others = ", ".join(each.name for each in manifest.files[1:])
    click.echo(f"with {others or 'no other file'}{'' if passphrase is None else '; encrypted'}", err=True)
    if left_out:
        names = ", ".join(left_out)
        click.echo(f"left out, because tinkedge does not know it: {names}; --also NAME includes it", err=True)
    if passphrase is None:
        click.echo("it is not encrypted and contains every Secret and key; see --passphrase-file", err=True)
    if gone:
        click.echo(f"removed: {', '.join(gone)}", err=True)
