"""`tinkedge restore`: restore a data directory from a backup, or from a damaged data directory."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from edge.building.screen import ProgressLine
from edge.commands.backup import passphrase_option, read_passphrase
from edge.commands.options import data_dir as data_dir_option
from edge.settings import FilePath

if TYPE_CHECKING:
    from tink.backup.restoration import Restored

_MAX_NAMES = 20  # the most names that are printed of what may be thousands
_HEAD_BYTES = 32  # the beginning of a file, which shows whether it is encrypted


@click.command()
@click.argument("file", type=FilePath(allow_dash=True))
@data_dir_option("Data directory to create: it must be empty or missing.")
@passphrase_option
@click.option("--force", is_flag=True, help="Move the current content of the data directory to DATA_DIR/replaced-TIME.")
@click.option(
    "--resume",
    is_flag=True,
    help="Hold no Workflow, and fail no Job of a BMC. Only if none has run since the backup: it would run again, wipe "
    "disks and switch machines off.",
)
@click.option("--salvage", is_flag=True, help="FILE is a damaged data directory: restore what can still be read.")
@click.option(
    "--also",
    multiple=True,
    metavar="NAME",
    help="File or directory of your own that was backed up with --also. Repeatable.",
)
def restore(
    file: Path,
    data_dir: Path,
    passphrase_file: Path | None,
    force: bool,
    resume: bool,
    salvage: bool,
    also: tuple[str, ...],
) -> None:
    """Restore a data directory from the backup FILE, or from standard input (-).

    Every byte is checked before any file is put into its place, and there must be space for all of it. A backup with a
    file that no data directory has is rejected. The stack must not run there. Workflows that had not begun at the time
    of the backup are held (annotation tinkerbell.org/hold), because they may have run since. Jobs and Tasks of BMCs
    that had not ended are failed for the same reason. Exits with 2 if --salvage has lost something.

    Root works as the owner of the data directory. A missing /var/lib/tinkedge is created for the user tinkedge of the
    package, and any other directory for root: give that to the user of the service (chown -R).
    """
    from tink.backup.archive import ArchiveError
    from tink.backup.restoration import restore as restore_backup
    from tink.backup.restoration import salvage as salvage_directory
    from tink.files.data_directory import as_owner

    passphrase = read_passphrase(passphrase_file)
    progress, now = ProgressLine(), datetime.now(UTC)
    try:
        if salvage:
            if not file.is_dir():
                raise click.UsageError("--salvage takes the damaged data directory as FILE")
            with as_owner(data_dir, make=True):
                restored = salvage_directory(file, data_dir, now=now, force=force, resume=resume)
        else:
            # The backup belongs to the caller: root opens it as root.
            with sys.stdin.buffer if str(file) == "-" else file.open("rb") as opened, as_owner(data_dir, make=True):
                source = _plain(opened, passphrase)
                restored = restore_backup(
                    source, data_dir, now=now, progress=progress, force=force, resume=resume, also=also
                )
    except ArchiveError as error:
        raise click.ClickException(f"{file}: {error}. Nothing was restored") from error
    except OSError as error:
        raise click.ClickException(_refused(error, file, data_dir)) from error
    finally:
        progress.clear()
    click.echo("\n".join(_report(restored, data_dir, now)))
    if restored.lost or restored.uncertain:
        sys.exit(2)


def _refused(error: OSError, file: Path, data_dir: Path) -> str:
    """Return the message for a file that can't be read or written."""
    from tink.files.data_directory import give, owner_of

    place = error.filename or file
    refused = f"{place}: {error.strerror or error}"
    owner = owner_of(data_dir)
    if not isinstance(error, PermissionError) or owner is None:
        return refused
    advice = f"this works as {owner}, to whom {data_dir} belongs: let that user read it"
    return f"{refused}; {advice}, such as by '{give(Path(place), owner.user)}'"


def _plain(file: io.BufferedReader | BinaryIO, passphrase: bytes | None) -> BinaryIO:
    """Return the backup, decrypted if it is encrypted. Raises ClickException, EncryptionError."""
    from tink.backup.encryption import decrypted, is_encrypted

    head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES] if isinstance(file, io.BufferedReader) else b""
    if not is_encrypted(head):
        return file
    if passphrase is None:
        raise click.ClickException("the backup is encrypted: give --passphrase-file")
    return decrypted(file, passphrase)


def _report(restored: Restored, data_dir: Path, now: datetime) -> list[str]:
    manifest = restored.manifest
    counts = ", ".join(f"{count} {name.partition('/')[2]}" for name, count in restored.objects.items())
    lines = [f"{data_dir}: {sum(restored.objects.values())} objects ({counts})"]
    if manifest is not None:
        age = _duration((now - manifest.created).total_seconds())
        lines.append(f"backup of {manifest.created:%Y-%m-%d %H:%M:%S} UTC ({age} ago), by tinkedge {manifest.tinkedge}")
    lines.append(f"files: {', '.join(restored.files[:_MAX_NAMES])}{' ...' if len(restored.files) > _MAX_NAMES else ''}")
    lines.append(f"resourceVersions continue at {restored.version}: clients list all objects again")
    lines += _owner_note(data_dir)
    if restored.aside is not None:
        lines.append(f"the previous content is in {restored.aside}, with its keys: remove it when you are sure")
    lines += _names("lost, because they can't be read", restored.lost)
    lines += _names("restored in an older version, because the newest can't be read", restored.older)
    if restored.uncertain:
        lines.append("there may have been more: the list of all objects is damaged, too")
    if restored.held:
        held = [f"{each.name} ({each.state or 'not prepared'})" for each in restored.held]
        lines += _names("Workflows that are held, because they may have run since", held)
        lines.append("let one run:  kubectl annotate -n NAMESPACE workflow NAME tinkerbell.org/hold-")
        lines.append("or give it up:  kubectl delete -n NAMESPACE workflow NAME")
    lines += _names("Jobs and Tasks of BMCs that are failed, because they may have run since", restored.failed)
    lines += _names(
        "Workflows after which BMC control ejects no medium and executes no postActions", restored.without_clean_up
    )
    return lines


def _owner_note(data_dir: Path) -> list[str]:
    """Return a line about a directory of root that the service of the package can't use."""
    from tink.files.data_directory import give, service_user

    service = service_user()
    if service is None or data_dir.stat().st_uid:
        return []
    return [f"it belongs to root: for the service, which runs as {service}: '{give(data_dir, service.user)}'"]


def _names(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = [f"  and {len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
    return [f"{len(names)} {what}:", *(f"  {name}" for name in names[:_MAX_NAMES]), *more]


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(0, seconds):.0f} seconds"
