"""`tinkedge bundle`: one signed file for a site without internet access; docs/airgap.md."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge.building.screen import ProgressLine
from edge.commands.progress import errors_shown
from edge.settings import CommandGroup, DataDirectory, FilePath

if TYPE_CHECKING:
    from edge.bundle.archive import BundleReader, Manifest

_FILE = FilePath(dir_okay=False)
_DIRECTORY = FilePath(file_okay=False, exists=True)
_KEY = click.option(
    "--key",
    type=_FILE,
    required=True,
    help="Public key (.pgp) of the bundle's maker. It is the only thing that this host has to trust.",
)


@click.group(cls=CommandGroup)
def bundle() -> None:
    """Bring all that a site without internet access needs in one signed file: from an empty Debian to booting machines.

    \b
    with internet:    tinkedge bundle key site
                      tinkedge bundle create --key site.key --deb ... --osie ... --image ... -o site.bundle
    without:          the commands that `create` prints, without tinkedge, install it
                      tinkedge bundle load site.bundle --key site.pgp
    """


@bundle.command("key")
@click.argument("prefix", type=FilePath())
@click.option("--name", default="", help="Name of the key's owner, for people. Default: the last part of PREFIX.")
def make(prefix: Path, name: str) -> None:
    """Make a key that signs bundles: PREFIX.key, the secret key, and PREFIX.pgp, the public key for the sites.

    Bring PREFIX.pgp to the site separately from the bundles, or compare its SHA-256 there with the one printed here:
    an attacker who can replace both can sign. The secret key has no passphrase: keep it where only you can read it. If
    you have an OpenPGP key of your own, perhaps on a smart card, you do not need this command: use create --gpg-user,
    and gpg --export > site.pgp.
    """
    from edge.bundle.archive import BundleError
    from edge.bundle.signature import make_key

    with errors_shown(None, None, BundleError):
        made = make_key(prefix, name or prefix.name)
        digest = hashlib.sha256(made.public.read_bytes()).hexdigest()
    click.echo(f"{made.secret}: the secret key; everyone who has it can sign for your sites")
    click.echo(f"{made.public}: the public key; SHA-256 {digest}")
    click.echo(f"fingerprint {made.fingerprint}")


@bundle.command()
@click.option("-o", "--output", type=_FILE, required=True, help="The bundle to write.")
@click.option("--key", type=_FILE, help="Secret key to sign with; `tinkedge bundle key` makes one.")
@click.option("--gpg-user", default="", help="Key of your own keyring or smart card to sign with.")
@click.option("--deb", type=_FILE, help="Debian package of tinkedge. apt downloads its dependencies.")
@click.option(
    "--package",
    "packages",
    type=_FILE,
    multiple=True,
    help="Debian package that --deb depends on; apt downloads none then. Repeatable.",
)
@click.option("--wheels", type=_DIRECTORY, help="Directory with the output of `make wheels`, for other systems.")
@click.option("--kubectl", type=_FILE, help="A kubectl to install in /usr/local/bin.")
@click.option(
    "--osie",
    "osies",
    multiple=True,
    help="NAME=DIR with kernel and initrd, or NAME=KERNEL,INITRD; paths or URLs. Repeatable.",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    help="Container image: REF of a registry, NAME:TAG=REF, or NAME:TAG=oci:DIR:TAG, a source of skopeo. Repeatable.",
)
@click.option("--platform", default="amd64", help="Processor of the machines: amd64, arm64 or all.")
@click.option("--insecure-registry", "insecure", multiple=True, help="Registry without TLS. Repeatable.")
@click.option("--file", "files", multiple=True, help="Disk image or other file, a path or URL. Repeatable.")
@click.option(
    "--objects",
    type=FilePath(exists=True),
    multiple=True,
    help="Hardware, Template and others, as YAML: a file or directory. Repeatable.",
)
@click.option("--boot-programs", type=_DIRECTORY, help="Directory with your own iPXE binaries, beside Debian's.")
@click.option("--cache", type=FilePath(file_okay=False), help="Directory that keeps downloads.")
def create(output: Path, key: Path | None, gpg_user: str, cache: Path | None, **given: Any) -> None:
    """Collect all that a site needs in a bundle, and sign it. For a host with internet access.

    Downloads are kept, so that the next run continues after an interruption. Every part is optional: a bundle may have
    a new OSIE alone.
    """
    from edge.building.builder import default_cache, recipes
    from edge.bundle.archive import BundleError
    from edge.bundle.creation import Contents, Osie, Surroundings
    from edge.bundle.creation import create as write
    from edge.bundle.signature import sign_with_file, sign_with_keyring
    from edge.bundle.sources import Wanted

    if (key is None) == (not gpg_user):
        raise click.UsageError(
            "give --key FILE, or --gpg-user ID. No key yet: `tinkedge bundle key site` makes site.key and site.pgp"
        )
    if given["packages"] and given["deb"] is None:
        raise click.UsageError("--package names dependencies of --deb: give --deb, too")
    progress = ProgressLine()
    now = datetime.now(UTC).replace(microsecond=0)

    def log_line(line: str) -> None:
        progress.clear()
        click.echo(line, err=True)

    with errors_shown(progress, None, BundleError):
        given |= {
            "packages": given["packages"] or None,
            "osies": tuple(Osie.of(text) for text in given["osies"]),
            "images": tuple(Wanted.of(text) for text in given["images"]),
        }
        around = Surroundings(
            recipes(), cache or default_cache() / "bundle", version("tinkedge"), now, progress, log_line
        )
        sign = partial(sign_with_file, key) if key is not None else partial(sign_with_keyring, gpg_user)
        made = write(Contents(**given), output, sign, around)
    click.echo("\n".join((*_summary(made, output), *_commands(made, output, key))))


@bundle.command()
@click.argument("file", type=_FILE)
@_KEY
def verify(file: Path, key: Path) -> None:
    """Check the signature of FILE and every byte in it. Exits with 1 if something is wrong."""
    from edge.bundle.archive import BundleError
    from edge.bundle.loading import check

    progress = ProgressLine()
    with errors_shown(progress, file, BundleError), _opened(file, key) as reader:
        check(reader, progress)
    click.echo(f"{file}: good, {len(reader.manifest.sizes)} files, signed by {reader.signer}")


@bundle.command()
@click.argument("file", type=_FILE)
@_KEY
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Format of the output.")
def show(file: Path, key: Path, output: str) -> None:
    """List the contents of FILE after checking its signature. The files in it are not read."""
    from edge.bundle.archive import BundleError

    with errors_shown(None, file, BundleError), _opened(file, key) as reader:
        made = reader.manifest
        if output == "json":
            click.echo(made.to_json().decode())
            return
        for line in _summary(made, file):
            click.echo(line)
        click.echo(f"signed by {reader.signer}")
        for name, size in made.sizes.items():
            click.echo(f"{reader.sha256[name]}  {size:>11}  {name}")


@bundle.command()
@click.argument("file", type=_FILE)
@_KEY
@click.option(
    "--data-dir",
    type=DataDirectory(),
    default=Path("/var/lib/tinkedge"),
    help="Data directory that receives OSIEs, images, files, boot programs and objects.",
)
@click.option(
    "--allow-older",
    is_flag=True,
    help="Load FILE although it is older than the bundle that was loaded last. Its age counts from then on.",
)
def load(file: Path, key: Path, data_dir: Path, allow_older: bool) -> None:
    """Put the files that FILE has for machines into the data directory, after checking every byte.

    Files of earlier bundles stay. A FILE that is older than the bundle loaded last is refused, because it could restore
    files that were replaced since; --allow-older loads it. The bundle's own install.sh installs the program.
    """
    from edge.bundle.archive import BundleError
    from edge.bundle.loading import load as put
    from edge.bundle.loading import next_steps

    progress = ProgressLine()
    with errors_shown(progress, file, BundleError), _opened(file, key) as reader:
        loaded = put(reader, data_dir, progress, allow_older=allow_older)
    put_there = f"{data_dir}: {len(loaded.files)} files put there, signed by {reader.signer}"
    click.echo("\n".join((*_summary(loaded.manifest, file), put_there, *next_steps(loaded, data_dir))))


@contextmanager
def _opened(file: Path, key: Path) -> Iterator[BundleReader]:
    """Open a bundle and check its signature."""
    from edge.bundle.archive import BundleReader
    from edge.bundle.signature import verify

    with file.open("rb") as opened:
        yield BundleReader(opened, lambda text, signature: verify(key, text, signature))


def _summary(made: Manifest, file: Path) -> Iterator[str]:
    size = sum(made.sizes.values()) / 1e6
    yield f"{file}: made {made.created:%Y-%m-%d %H:%M:%S} UTC by tinkedge {made.tinkedge}, {size:.1f} MB"
    if made.program is not None:
        where = f"for Debian {made.program.suite} on {made.program.architecture}" if made.program.suite else "as wheels"
        yield f"  tinkedge {made.program.version}, {where}"
    if made.osies:
        yield f"  OSIE {', '.join(made.osies)}"
    for image in made.images:
        yield f"  image {image.name}:{image.tag} for {', '.join(image.platforms)}, {image.digest}"
    for folder, what in (("files/", "file"), ("manifests/", "objects"), ("ipxe/", "boot program"), ("bin/", "program")):
        for name in made.sizes:
            if name.startswith(folder):
                yield f"  {what} {name.removeprefix(folder)}"


def _commands(made: Manifest, output: Path, key: Path | None) -> Iterator[str]:
    """Yield the commands for the site."""
    public = f"{key.stem}.pgp" if key is not None else "site.pgp"
    name = shlex.quote(output.name)
    if any(one == "install.sh" for one in made.sizes):
        heavy = " ".join(f"--exclude={folder}" for folder in ("images", "osie", "files"))
        check = "sqv" if made.program is not None and made.program.suite == "trixie" else "gpgv"
        yield "at the site, as root, in the directory with the bundle and the public key:"
        yield f"  mkdir new && tar -xf {name} -C new {heavy} && (cd new &&"
        yield f'  {check} --keyring "$PWD/../{public}" SHA256SUMS.sig SHA256SUMS &&'
        yield "  sha256sum --check --strict --quiet --ignore-missing SHA256SUMS && sh install.sh)"
    yield f"  tinkedge bundle load {name} --key {public}"
