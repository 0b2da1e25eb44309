"""`tinkedge render`: what a Workflow would run, offline, with the code that the controller uses."""

from __future__ import annotations

from pathlib import Path

import click
import orjson
import yaml

from tink.api.v1alpha2 import Raw
from tink.kube.manifests import DEFAULT_NAMESPACE, ManifestError, load
from tink.template.errors import TemplateError
from tink.template.fields import render_actions


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    required=True,
    help="File or directory with the Hardware, the Template and the Workflow. Repeatable.",
)
@click.option("--workflow", default=None, help="Name of the Workflow, if there is more than one.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="Format.")
def render(files: tuple[Path, ...], workflow: str | None, output: str) -> None:
    """Show what a Workflow would run, without running it: the list of its rendered actions."""
    try:
        objects = [obj for file in files for _, obj in load(file)]
        chosen = _workflow(objects, workflow)
        spec = chosen.get("spec") or {}
        hardware = _referenced(objects, chosen, "Hardware", "hardwareRef")
        template = _referenced(objects, chosen, "Template", "templateRef")
        actions = render_actions(template, hardware, spec.get("templateParams") or {})
    except (ManifestError, TemplateError) as error:
        raise click.ClickException(str(error)) from error
    if output == "json":
        click.echo(orjson.dumps(actions, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(yaml.safe_dump(actions, sort_keys=False, allow_unicode=True), nl=False)


def _workflow(objects: list[Raw], name: str | None) -> Raw:
    found = [o for o in objects if o["kind"] == "Workflow" and name in (None, o["metadata"].get("name"))]
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(o["metadata"].get("name")) for o in objects if o["kind"] == "Workflow") or "none"
    raise ManifestError(f"one Workflow is needed; there are: {names}. Choose with --workflow")


def _referenced(objects: list[Raw], workflow: Raw, kind: str, field: str) -> Raw:
    name = ((workflow.get("spec") or {}).get(field) or {}).get("name")
    namespace = workflow["metadata"].get("namespace") or DEFAULT_NAMESPACE
    for obj in objects:
        metadata = obj.get("metadata") or {}
        if (obj["kind"], metadata.get("name")) == (kind, name) and (
            metadata.get("namespace") or DEFAULT_NAMESPACE
        ) == namespace:
            return obj
    raise ManifestError(
        f"Workflow {workflow['metadata'].get('name')}: spec.{field}.name: no {kind} {name!r} in the files"
    )
