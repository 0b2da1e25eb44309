"""`tinkedge iso`: the boot medium of a machine as a file, or the signed URL from which its BMC fetches it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge.commands import one_machine
from edge.settings import FilePath
from tink.mac import from_any
from tink.net.addresses import join_host_port

if TYPE_CHECKING:
    from ipxe.scripts import EdgeOrigin, MediumKind


@click.command("iso")
@click.option("--hardware", "name", metavar="NAME", default="", help="Hardware of the machine. Not needed with --mac.")
@click.option(
    "--mac", default="", help="MAC of the interface that the machine boots with. Default: the first of its Hardware."
)
@click.option(
    "--static", is_flag=True, help="Do without DHCP: use the address that the Hardware has for this interface."
)
@click.option("-o", "--output", type=FilePath(dir_okay=False), help="File to write. Default: NAME.iso.")
@click.option(
    "--url", is_flag=True, help="Print the signed URL from which a BMC fetches the medium; no file is written."
)
@click.option("--usb", is_flag=True, help="With --url: for a BMC that presents a USB stick to its machine (.img).")
@click.option(
    "--lifetime",
    type=click.FloatRange(0, 10 * 365 * 86_400),
    default=0.0,
    help="Lifetime of the URL in seconds; 0: as long as the key is in the file.",
)
@one_machine.host
@click.option("--ipxe-dir", type=FilePath(), default=Path("/usr/lib/ipxe"), help="Directory of the iPXE binaries.")
def iso(
    name: str,
    mac: str,
    static: bool,
    output: Path | None,
    url: bool,
    usb: bool,
    lifetime: float,
    ipxe_dir: Path,
    host: one_machine.EdgeHost,
) -> None:
    """Make a boot medium for a machine: an image for a CD, a USB stick or a BMC's virtual media, for BIOS and UEFI.

    It starts iPXE, which fetches the script of the machine from the edge. The edge serves the same image at
    http://EDGE:7080/iso/MAC/boot.iso (static.iso, .img) to the machine itself, and at the URL that --url prints to
    its BMC. Copy the file to a USB stick unchanged.
    """
    from ipxe.scripts import EdgeOrigin, MediumKind

    given, mac = mac, from_any(mac) or ""
    if given and not mac:
        raise click.BadParameter(f"{given} is no MAC address", param_hint="--mac")
    if not mac and not name:
        raise click.UsageError("name the machine: --hardware NAME, or --mac MAC")
    if usb and not url:
        raise click.UsageError("--usb is for --url: a file works for both")
    found = host.hardware(name) if name else None
    if found is not None:
        if mac and mac not in (found.get("spec", {}).get("networkInterfaces") or {}):
            raise click.ClickException(f"Hardware {host.namespace}/{name}: spec.networkInterfaces has no {mac}")
        mac = mac or one_machine.first_mac(found)
    kind = MediumKind.STATIC if static else MediumKind.BOOT
    addresses = host.addresses()
    if url:
        from edge.callers import MediumTokens

        token = MediumTokens(host.keys(), lifetime).mint(mac)
        for address in addresses:
            click.echo(f"http://{join_host_port(address, host.http_port)}/iso/{token}/{kind}.{'img' if usb else 'iso'}")
        return
    if static and found is None:
        raise click.UsageError("--static needs --hardware NAME, which has the address")
    first, *others = (EdgeOrigin(address, http_port=host.http_port) for address in addresses)
    origin = EdgeOrigin(first.address, http_port=host.http_port, others=tuple(others))
    _write(output or Path(f"{name or mac.replace(':', '-')}.iso"), ipxe_dir, mac, found, origin, kind)


def _write(
    file: Path, ipxe_dir: Path, mac: str, found: dict[str, Any] | None, origin: EdgeOrigin, kind: MediumKind
) -> None:
    """Write the medium to a file. Raises click.ClickException, MediumError and ScriptError."""
    from ipxe.medium import make_medium
    from ipxe.scripts import BootSettings, Scripts
    from tink.api.v1alpha2 import Hardware
    from tink.files import private_files

    hardware = Hardware.model_validate(found) if found is not None else None
    try:
        medium = make_medium(ipxe_dir)
        written = medium.written(Scripts(BootSettings()).medium(mac, hardware, origin, kind))
        with private_files.stream(file, private=False) as out:
            out.writelines(written.pieces(0, written.size))
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    click.echo(f"{file}: {medium.described}, boots {mac}")
