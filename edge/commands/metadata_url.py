"""`tinkedge metadata-url`: the signed URLs at which a machine gets its metadata from everywhere.

The key file is that of the running edge, so a URL is valid at once, without a request to the edge. The API is queried
only for the name of a Hardware, to find the MAC in the token.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click

from edge.commands import one_machine
from tink.mac import is_mac
from tink.net.addresses import join_host_port

_CLOUD_INIT = """\
# /etc/cloud/cloud.cfg.d/90_tinkedge.cfg: chmod 600, because these URLs give access to this machine's metadata.
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
    """The URLs of one machine's metadata at one address of the edge. Each contains the machine's token."""

    ec2: str
    nocloud: str
    phone_home: str


@click.command("metadata-url")
@click.argument("machine", metavar="HARDWARE|MAC")
@one_machine.host
@click.option(
    "--metadata-token-lifetime",
    type=click.FloatRange(0, 10 * 365 * 86_400),
    default=0.0,
    help="Lifetime of the URLs in seconds; 0: as long as the key is in the file.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "cloud-init"]),
    default="text",
    help="cloud-init: a file for the machine's /etc/cloud/cloud.cfg.d.",
)
def metadata_url(machine: str, metadata_token_lifetime: float, output: str, host: one_machine.EdgeHost) -> None:
    """Print the URLs at which a machine gets its metadata from behind NAT. They identify the machine, and are secret.

    The machine is named by its Hardware or by its MAC. Run it on the host of the edge, because it needs its key file.
    """
    from edge.callers import MetadataTokens

    mac = machine.lower().replace("-", ":")
    tokens = MetadataTokens(host.keys(), metadata_token_lifetime)
    bases = [f"http://{join_host_port(address, host.http_port)}" for address in host.addresses()]
    if not is_mac(mac):
        mac = one_machine.first_mac(host.hardware(machine))
    token = tokens.mint(mac)
    urls = [Urls(f"{base}/machine/{token}", f"{base}/nocloud/{token}/", f"{base}/phone-home/{token}") for base in bases]
    if output == "json":
        click.echo(json.dumps([asdict(each) for each in urls], indent=2))
    elif output == "cloud-init":
        if len(urls) > 1:
            raise click.UsageError(
                "cloud-init takes one URL: give the address that the machine reaches with --public-ip"
            )
        click.echo(_CLOUD_INIT.format_map(asdict(urls[0])), nl=False)
    else:
        for each in urls:
            click.echo(f"EC2:        {each.ec2}\nNoCloud:    {each.nocloud}\nphone home: {each.phone_home}")
