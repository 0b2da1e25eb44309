"""`tinkedge image`: disk images of operating systems in DATA_DIR/files, which the edge serves to machines."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge.building.screen import ProgressLine
from edge.commands import one_machine
from edge.commands.options import data_dir
from edge.commands.progress import errors_shown
from edge.settings import types
from tink.net.addresses import join_host_port

if TYPE_CHECKING:
    from edge.disk_images.depot import StoredImage
    from edge.disk_images.reading import DiskImage, Partition

_DATA_DIR = data_dir("Data directory of the edge, which serves the files in DATA_DIR/files.")
_EDGE = click.option(
    "--public-ip",
    "--edge",
    "public_ip",
    type=types.ip_address,
    help="Address of the edge, for the printed URL. Default: that of --interface.",
)


@click.group()
def image() -> None:
    """Import, list and remove disk images of operating systems.

    The edge serves DATA_DIR/files to machines that have a Hardware, at http://EDGE:7080/files/NAME.
    """


@image.command("import")
@click.argument("source", metavar="FILE|URL")
@click.option("--name", help="Name in DATA_DIR/files. Default: the name of FILE, or the last part of URL.")
@click.option(
    "--checksum",
    "--sha256",
    "checksum",
    metavar="HEX|FILE|URL",
    help="SHA-256 or SHA-512 of the file, or the file of checksums that the distribution publishes (SHA256SUMS, "
    "SHA512SUMS, CHECKSUM), in which FILE's own name is looked up.",
)
@click.option(
    "--any", "is_any", is_flag=True, help="Import a file that is no disk image, such as an installer's ISO image."
)
@click.option("--force", is_flag=True, help="Replace a file of this name.")
@_DATA_DIR
@_EDGE
@one_machine.interface
@one_machine.http_port
def import_(
    source: str,
    name: str | None,
    checksum: str | None,
    is_any: bool,
    force: bool,
    data_dir: Path,
    public_ip: str | None,
    interface: tuple[tuple[str, str], ...],
    http_port: int,
) -> None:
    """Put the disk image FILE or URL into DATA_DIR/files, and print the lines for a Workflow.

    The image may be raw, or compressed with gzip, zstd, xz or bzip2, or qcow2: the action image2disk writes all of
    these, so the file is stored unchanged. It is read to its end as the action reads it, and stored only if it is
    complete. An interrupted download continues where it stopped.
    """
    from edge.disk_images.depot import ImageDepot
    from edge.disk_images.sources import ImageError, checksum_of, opened

    progress = ProgressLine()

    def log_line(line: str) -> None:
        progress.clear()
        click.echo(line, err=True)

    with errors_shown(progress), opened(source, say=log_line, is_proved=bool(checksum)) as found:
        chosen = name or found.name
        if not chosen:
            raise ImageError(f"{found.shown}: the URL ends with no name; give --name")
        expected = checksum_of(checksum, found.name or chosen) if checksum else None
        depot = ImageDepot(data_dir)
        stored = depot.put(found, chosen, progress, checksum=expected, is_any=is_any, replaces=force)
    address, _ = one_machine.known_address(public_ip, interface)
    url = f"http://{join_host_port(address or 'EDGE', http_port)}/files/{stored.path.name}"
    for line in _described(stored, url):
        click.echo(line)
    if not checksum and source.startswith(("http://", "https://")):
        click.echo("No checksum was compared: --sha256 takes the distribution's file of checksums.", err=True)
    if not address:
        click.echo("EDGE stands for the address of the edge, which is not known here: give it with --edge.", err=True)


@image.command("list")
@_DATA_DIR
def list_(data_dir: Path) -> None:
    """List the files that the edge serves to machines, with size and date."""
    from edge.disk_images.depot import ImageDepot

    with errors_shown():
        entries = ImageDepot(data_dir).entries()
    if not entries:
        click.echo(f"{data_dir / 'files'} has no files; `tinkedge image import` puts them there", err=True)
        return
    width = max(len(name) for name, _, _ in entries)
    for name, size, changed in entries:
        click.echo(f"{name:<{width}}  {_size(size):>9}  {time.strftime('%Y-%m-%d %H:%M', time.localtime(changed))}")


@image.command()
@click.argument("name")
@_DATA_DIR
def remove(name: str, data_dir: Path) -> None:
    """Remove the file NAME. Workflows that name it fail from then on."""
    from edge.disk_images.depot import ImageDepot

    with errors_shown():
        path = ImageDepot(data_dir).remove(name)
    click.echo(f"{path}: removed")


def _described(stored: StoredImage, url: str) -> Iterator[str]:
    """Yield lines that describe a stored file, and the lines for a Workflow."""
    image = stored.image
    there = "was there already, with this checksum; " if stored.was_there else ""
    what = "imported as it is"
    if image is not None:
        what = f"{', '.join(filter(None, (image.format, image.compression)))}, {_size(image.size)} on the disk"
    yield f"{stored.path}: {there}{_size(stored.size)}, {what}"
    yield f"URL:     {url}"
    yield f"SHA-256: {stored.sha256}"
    if image is None:
        return
    from edge.disk_images.reading import root_of

    root = root_of(image.partitions) if image.table else None
    if image.table:
        yield f"Partitions ({image.table}):"
        yield from _table(image, root)
    else:
        yield f"No partition table: one filesystem, {image.partitions[0].filesystem}"
    target = next((each for each in image.partitions if each.label == "OEM"), root)
    yield ""
    yield "For a Workflow, spec.templateParams:"
    yield f"    image: {url}"
    yield f'    sha256: "{stored.sha256}"'
    if target is not None:
        yield f'    partition: "{target.number}"'
    compressed = "true" if image.compression else "false"
    yield ""
    yield f'For a Template of your own, the settings of image2disk: COMPRESSED: "{compressed}"'
    if target is not None and target.filesystem:
        yield f"and of writefile: FS_TYPE: {target.filesystem}"
    words = ["--image", url, "--sha256", stored.sha256]
    words += ["--partition", str(target.number)] if target is not None else []
    yield f"Or: tinkedge examples NAME {shlex.join(words)} --mac MAC --ip IP ..."


def _table(image: DiskImage, root: Partition | None) -> Iterator[str]:
    rows: list[list[Any]] = []
    for each in image.partitions:
        mark = "<- root filesystem" if each == root else ""
        rows.append([each.number, _size(each.length), each.filesystem or "-", each.kind or "-", each.label, mark])
    widths = [max(len(str(row[at])) for row in rows) for at in range(5)] if rows else []
    for number, size, *texts in rows:
        padded = "  ".join(f"{text:<{width}}" for text, width in zip(texts, [*widths[2:], 0], strict=True))
        yield f"  {number:>{widths[0]}}  {size:>{widths[1]}}  {padded}".rstrip()


def _size(count: int) -> str:
    """Format a number of bytes, such as `474 MB`."""
    for unit, most in (("B", 1e3), ("kB", 1e6), ("MB", 1e9)):
        if count < most:
            return f"{count / (most / 1e3):.0f} {unit}"
    return f"{count / 1e9:.1f} GB"
