"""`tinkedge crds`: the schema of the four resources, for `kubectl apply -f -`."""

from __future__ import annotations

from pathlib import Path

import click

from tink.api.crds import generate, to_yaml


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=None, help="Write one file a resource here."
)
def crds(out: Path | None) -> None:
    """Print the CustomResourceDefinitions of tinkerbell.org/v1alpha2 as YAML.

    On a cluster: tinkedge crds | kubectl apply -f -
    """
    definitions = generate()
    if out is None:
        click.echo(to_yaml(definitions), nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    for definition in definitions:
        path = out / f"{definition['spec']['names']['plural']}.yaml"
        path.write_text(to_yaml([definition]))
        click.echo(path)
