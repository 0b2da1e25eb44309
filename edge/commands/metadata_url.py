"""`tinkedge metadata-url`: the signed URLs at which a machine gets its metadata from wherever it is.

The key file is the running edge's own, so whatever this prints is good there at once, and nobody has to be asked. Only
a Hardware's name takes a look at the API, for the MAC that the token speaks for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from edge.commands import options
from tink.mac import is_mac
from tink.net.host_port import join_host_port

_PATH = click.Path(path_type=Path)
_CLOUD_INIT = """\
# /etc/cloud/cloud.cfg.d/90_tinkedge.cfg: chmod 600, for whoever has these URLs has this machine's metadata.
datasource_list: [NoCloud]
datasource:
  NoCloud:
    seedfrom: {nocloud}
phone_home:
  url: {phone_home}
  post: [hostname, fqdn, instance_id]
"""


@dataclass(frozen=True, slots=True)
class Urls:
    """Where one machine gets its metadata, through one address of the edge. All have the machine's token in them."""

    ec2: str
    nocloud: str
    phone_home: str


@click.command("metadata-url")
@click.argument("machine", metavar="HARDWARE|MAC")
@click.option("-n", "--namespace", default="default", help="Of the Hardware.")
@click.option(
    "--public-ip", type=options.either, default=None, help="The address of the edge, as the machine reaches it."
)
@click.option(
    "--interface",
    type=options.interface,
    metavar="NAME[=IP]",
    multiple=True,
    help="Or the edge's interface on this host: eth1, eth1=10.0.0.1. Repeatable. Default: of the default route.",
)
@click.option("--http-port", type=click.IntRange(1, 65535), default=7080, help="The port there.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path, readable=False), default=Path("/var/lib/tinkedge"), help="The edge's."
)
@click.option(
    "--metadata-token-key", type=_PATH, default=None, help="The edge's key file. Default: DATA_DIR/metadata-token.key."
)
@click.option(
    "--metadata-token-lifetime",
    type=click.FloatRange(0, 10 * 365 * 86_400),
    default=0.0,
    help="Seconds that the URLs are good for; 0: as long as the key is in the file.",
)
@click.option("--kubeconfig", type=_PATH, default=None, help="The API's. Default: DATA_DIR/kubeconfig.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "cloud-init"]),
    default="text",
    help="cloud-init: a file for the machine's /etc/cloud/cloud.cfg.d.",
)
def metadata_url(
    machine: str,
    namespace: str,
    public_ip: str | None,
    interface: tuple[tuple[str, str], ...],
    http_port: int,
    data_dir: Path,
    metadata_token_key: Path | None,
    metadata_token_lifetime: float,
    kubeconfig: Path | None,
    output: str,
) -> None:
    """Print the URLs at which a machine gets its metadata from behind NAT: they say who it is, and are secret.

    For the Hardware of this name, or the machine with this MAC. It takes the edge's key file, so run it on its host.
    """
    from edge.callers import MetadataTokens, token_keys
    from tink.files.key_file import KeyFileError

    mac = machine.lower().replace("-", ":")
    try:
        tokens = MetadataTokens(token_keys(data_dir, metadata_token_key, create=False), metadata_token_lifetime)
    except KeyFileError as error:
        advice = (
            "The edge makes it at its start: as root or its user, give the same --data-dir, or --metadata-token-key."
        )
        raise click.ClickException(f"{error}. {advice}") from error
    bases = [f"http://{join_host_port(address, http_port)}" for address in _addresses(public_ip, interface)]
    if not is_mac(mac):
        import asyncio

        mac = asyncio.run(_mac(kubeconfig or data_dir / "kubeconfig", namespace, machine))
    token = tokens.mint(mac)
    urls = [Urls(f"{base}/machine/{token}", f"{base}/nocloud/{token}/", f"{base}/phone-home/{token}") for base in bases]
    if output == "json":
        click.echo(json.dumps([asdict(each) for each in urls], indent=2))
    elif output == "cloud-init":
        if len(urls) > 1:
            raise click.UsageError("cloud-init takes one URL: say with --public-ip which address the machine reaches")
        click.echo(_CLOUD_INIT.format_map(asdict(urls[0])), nl=False)
    else:
        for each in urls:
            click.echo(f"EC2:        {each.ec2}\nNoCloud:    {each.nocloud}\nphone home: {each.phone_home}")


def _addresses(public_ip: str | None, interfaces: tuple[tuple[str, str], ...]) -> list[str]:
    """Those of the edge, found as the edge finds them. Raises click.UsageError."""
    from edge.composition.host import HostError, addresses_of

    try:
        return [public_ip] if public_ip is not None else addresses_of(interfaces, None)
    except HostError as error:
        raise click.UsageError(f"{error}; --public-ip says at which address machines reach the edge") from error


async def _mac(kubeconfig: Path, namespace: str, name: str) -> str:
    """A MAC of the Hardware, the first that it names. Raises click.ClickException."""
    from tink.kube.client import ApiError, KubeClient, KubeConfigError, NotFoundError
    from tink.kube.resources import HARDWARE

    try:
        async with await KubeClient.connect(kubeconfig) as client:
            hardware = await client.get(HARDWARE, name, namespace)
    except NotFoundError as error:
        raise click.ClickException(f"there is no Hardware {namespace}/{name}; -n names another namespace") from error
    except (ApiError, KubeConfigError) as error:
        message = f"Hardware {namespace}/{name} can't be read: {error}. With its MAC, no API is needed."
        raise click.ClickException(message) from error
    macs = hardware.get("spec", {}).get("networkInterfaces") or {}
    mac = next((mac for mac in macs if is_mac(mac)), None)
    if mac is None:
        raise click.ClickException(f"Hardware {namespace}/{name}: spec.networkInterfaces has no MAC address")
    return str(mac)
