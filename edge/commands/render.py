"""`tinkedge render`: what a Workflow would run, offline, with the code that the controller uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson
import yaml
from pydantic import ValidationError

from tink.api.v1alpha2 import API_VERSION, Hardware, Raw, Resource, Template, Workflow
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
        manifests = [manifest for file in files for manifest in load(file)]
        actions = _actions(manifests, _workflow(manifests, workflow))
    except ManifestError as error:
        raise click.ClickException(str(error)) from error
    if output == "json":
        click.echo(orjson.dumps(actions, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(yaml.safe_dump(actions, sort_keys=False, allow_unicode=True), nl=False)


Manifest = tuple[Path, Raw]

_MODELS: dict[str, type[Resource]] = {"Hardware": Hardware, "Template": Template, "Workflow": Workflow}


def _actions(manifests: list[Manifest], workflow: Manifest) -> list[dict[str, Any]]:
    _validate(workflow)
    spec = workflow[1]["spec"]
    hardware = _referenced(manifests, workflow, "Hardware", "hardwareRef")
    template = _referenced(manifests, workflow, "Template", "templateRef")
    try:
        return render_actions(template[1], hardware[1], spec.get("templateParams") or {})
    except TemplateError as error:
        file, obj = template
        raise ManifestError(f"{file}: Template {obj['metadata']['name']}: {error}") from error


def _workflow(manifests: list[Manifest], name: str | None) -> Manifest:
    there = [(file, obj) for file, obj in manifests if _is(obj, "Workflow")]
    found = [(file, obj) for file, obj in there if name in (None, obj["metadata"]["name"])]
    if len(found) == 1:
        return found[0]
    names = ", ".join(obj["metadata"]["name"] for _, obj in there) or "none"
    raise ManifestError(f"one Workflow is needed; there are: {names}. Choose with --workflow")


def _referenced(manifests: list[Manifest], workflow: Manifest, kind: str, field: str) -> Manifest:
    file, referrer = workflow
    name = referrer["spec"][field]["name"]
    for manifest in manifests:
        obj = manifest[1]
        if _is(obj, kind) and obj["metadata"]["name"] == name and _namespace(obj) == _namespace(referrer):
            _validate(manifest)
            return manifest
    raise ManifestError(
        f"{file}: Workflow {referrer['metadata']['name']}: spec.{field}.name: no {kind} {name!r} of namespace "
        f"{_namespace(referrer)} in the files"
    )


def _validate(manifest: Manifest) -> None:
    """What the API would refuse can't be rendered either. Raises ManifestError naming the first wrong field."""
    file, obj = manifest
    try:
        _MODELS[obj["kind"]].model_validate(obj)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ManifestError(f"{file}: {obj['kind']} {obj['metadata']['name']}: {field}: {first['msg']}") from error


def _is(obj: Raw, kind: str) -> bool:
    return (obj["apiVersion"], obj["kind"]) == (API_VERSION, kind)


def _namespace(obj: Raw) -> str:
    return str(obj["metadata"].get("namespace") or DEFAULT_NAMESPACE)
