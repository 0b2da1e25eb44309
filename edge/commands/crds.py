"""`tinkedge crds`: the schema of the resources, for `kubectl apply -f -`."""

from __future__ import annotations

from pathlib import Path

import click

from tink.api import crds as tinkerbell
from tink.api.crds import to_yaml
from tink.api.metal3 import crds as metal3


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=None, help="Write one file a resource here."
)
@click.option(
    "--metal3",
    "of_metal3",
    is_flag=True,
    help="Those of metal3.io: BareMetalHost and HardwareData. Hosts must not be written as v1beta1 before the webhook "
    "that converts them runs.",
)
def crds(out: Path | None, of_metal3: bool) -> None:
    """Print the CustomResourceDefinitions of tinkerbell.org/v1alpha2 as YAML, or those of metal3.io.

    On a cluster: tinkedge crds | kubectl apply -f -
    """
    definitions = metal3.generate() if of_metal3 else tinkerbell.generate()
    if out is None:
        click.echo(to_yaml(definitions), nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    for definition in definitions:
        path = out / f"{definition['spec']['names']['plural']}.yaml"
        path.write_text(to_yaml([definition]))
        click.echo(path)
