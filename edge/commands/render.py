"""`tinkedge render`: the actions that a Workflow would run, or the script that a machine would netboot, offline.

The code is that of the API server, the controller and the edge. The objects are first defaulted and validated as if
they were applied. So a template sees the same values as later, and errors that the API would report are reported here.
Objects of v1alpha1 are converted as the API does where it serves both versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import orjson
import yaml

from edge.settings import FilePath, types
from tink.api import crds
from tink.api.annotations import INCOMPLETE_ANNOTATION, KERNEL_PARAMETERS_ANNOTATION
from tink.api.v1alpha2 import API_VERSION, GROUP, Hardware, Raw, as_mapping
from tink.controller import unusable
from tink.kube.manifests import DEFAULT_NAMESPACE, ManifestError, load
from tink.kubeapi import Checker, compile_definition
from tink.template import TemplateError

_OLD: Final = f"{GROUP}/v1alpha1"


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    type=FilePath(exists=True),
    multiple=True,
    required=True,
    help="File or directory with the Hardware, the Template and the Workflow, in v1alpha2 or v1alpha1. Repeatable.",
)
@click.option(
    "--netboot",
    "edge",
    type=types.ip_address,
    metavar="IP",
    help="Show the iPXE scripts of the machines instead, as an edge at this address serves them.",
)
@click.option("--workflow", help="Name of the Workflow, or NAMESPACE/NAME, if there is more than one.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="Format of the output.")
def render(files: tuple[Path, ...], edge: str | None, workflow: str | None, output: str) -> None:
    """Show the rendered actions of a Workflow without running it.

    Fields of a v1alpha1 Template that have no effect are listed on standard error.

    With --netboot, show the scripts that machines netboot, such as an installer without a Workflow. They are those of
    an edge without other options.
    """
    manifests = [manifest for file in files for manifest in load(file)]
    if edge is not None:
        for script in _scripts(manifests, edge):
            click.echo(script)
        return
    actions = _actions(manifests, _workflow(manifests, workflow))
    if output == "json":
        click.echo(orjson.dumps(actions, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(yaml.safe_dump(actions, sort_keys=False, allow_unicode=True), nl=False)


Manifest = tuple[Path, Raw]


def _actions(manifests: list[Manifest], workflow: Manifest) -> list[dict[str, Any]]:
    from tink.versions.rendering import render_template  # it takes time to import

    stored = _as_stored(workflow)
    hardware = _as_stored(_referenced(manifests, workflow, stored, "Hardware", "hardwareRef"))
    template = _referenced(manifests, workflow, stored, "Template", "templateRef")
    try:
        found = render_template(_as_stored(template), hardware, stored["spec"].get("templateParams") or {})
    except TemplateError as error:
        raise _wrong(template, str(error)) from error
    problem = unusable(stored, found.actions)
    if problem is not None:
        raise _wrong(template, problem)
    for each in found.ignored:
        click.echo(f"no effect: {each}", err=True)
    return found.actions


def _workflow(manifests: list[Manifest], name: str | None) -> Manifest:
    there = [each for each in manifests if _is(each[1], "Workflow")]
    found = [each for each in there if name in (None, each[1]["metadata"]["name"], _full_name(each[1]))]
    if len(found) == 1:
        return found[0]
    names = Counter(_full_name(obj) for _, obj in found)
    if twice := [f"{_full_name(obj)} in {file}" for file, obj in found if names[_full_name(obj)] > 1]:
        raise ManifestError(f"two Workflows have one name: {', '.join(twice)}. Leave one of them out of -f")
    named = [f"{_full_name(obj)} in {file}" for file, obj in found or there]
    if not named:
        raise ManifestError(_no_workflow(manifests))
    if not found:
        raise ManifestError(f"there is no Workflow {name} in the files, but {', '.join(named)}")
    raise ManifestError(f"there are {len(named)} Workflows: {', '.join(named)}. Choose one with --workflow NAME")


def _no_workflow(manifests: list[Manifest]) -> str:
    """Return the message for files without a Workflow: what they contain, and what to do."""
    versions = Counter((str(obj["apiVersion"]), str(obj["kind"])) for _, obj in manifests)
    counts = {kind if version == API_VERSION else f"{version} {kind}": n for (version, kind), n in versions.items()}
    seen = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no Kubernetes object"
    return (
        f"there is no Workflow ({API_VERSION}, or v1alpha1) in the files, which have {seen}. Name the files of a "
        "Workflow, and of its Hardware and Template, such as: tinkedge render -f hardware.yaml -f template.yaml "
        "-f workflow.yaml. --netboot IP, the address of the edge, shows the script that a machine netboots"
    )


def _scripts(manifests: list[Manifest], edge: str) -> Iterator[str]:
    """Yield the script of each network card that may netboot. Raises ManifestError."""
    from ipxe.scripts import BootSettings, EdgeOrigin, ScriptError, Scripts

    compiler, machines = Scripts(BootSettings()), [each for each in manifests if _is(each[1], "Hardware")]
    if not machines:
        raise ManifestError("there is no Hardware in the files")
    for manifest in machines:
        stored = _as_stored(manifest)
        hardware, named = Hardware.model_validate(stored), (stored["spec"].get("osie") or {}).get("name", "")
        parameters = _kernel_parameters(manifests, named, _namespace(manifest[1]))
        for mac, card in hardware.spec.network_interfaces.items():
            if card.disable_netboot:
                path = f"spec.networkInterfaces[{mac}].disableNetboot is true"
                if manifest[1]["apiVersion"] == _OLD:
                    path = "no netboot.allowPXE of this interface is true"
                yield f"# {hardware.metadata.name}, {mac}: {path}"
                continue
            try:
                script = compiler.compile(mac, hardware, EdgeOrigin(edge), parameters)
            except ScriptError as error:
                raise ManifestError(f"{manifest[0]}: {error}") from error
            yield f"# {hardware.metadata.name}, {mac}: {script.what}\n{script.text}"


def _kernel_parameters(manifests: list[Manifest], osie: str, namespace: str) -> str:
    """Return the kernel parameters that an OSIE has for its machines. Raises ManifestError."""
    for manifest in manifests:
        if _is(manifest[1], "OSIE") and _full_name(manifest[1]) == f"{namespace}/{osie}":
            annotations = _as_stored(manifest)["metadata"].get("annotations") or {}
            return str(annotations.get(KERNEL_PARAMETERS_ANNOTATION, ""))
    return ""


def _referenced(manifests: list[Manifest], workflow: Manifest, stored: Raw, kind: str, field: str) -> Manifest:
    """Return the object that a Workflow, which is `stored` in v1alpha2, names. Raises ManifestError."""
    referrer, name = workflow[1], stored["spec"][field]["name"]
    for manifest in manifests:
        if _is(manifest[1], kind) and _full_name(manifest[1]) == f"{_namespace(referrer)}/{name}":
            return manifest
    if referrer["apiVersion"] == _OLD and not as_mapping(referrer.get("spec")).get(field):
        raise _wrong(workflow, stored["metadata"]["annotations"][INCOMPLETE_ANNOTATION])
    path = f"spec.{field}" if referrer["apiVersion"] == _OLD else f"spec.{field}.name"
    raise _wrong(workflow, f"{path}: no {kind} {name!r} of namespace {_namespace(referrer)} in the files")


def _as_stored(manifest: Manifest) -> Raw:
    """Return the object as the API would store it, with defaults. Raises ManifestError if the API would reject it."""
    _, obj = manifest
    named = obj | {"metadata": {**obj["metadata"], "namespace": _namespace(obj)}}
    if obj["apiVersion"] == _OLD:
        from tink.versions import convert  # it takes time to import

        named = convert(_completed(manifest, _old_checkers()[obj["kind"]], named), API_VERSION)
    return _completed(manifest, checkers()[obj["kind"]], named)


def _completed(manifest: Manifest, checker: Checker, obj: Raw) -> Raw:
    checked = checker.check(obj)
    if checked.problems:
        raise _wrong(manifest, "; ".join(checked.problems))
    return checked.object


@cache
def checkers() -> dict[str, Checker]:
    """Return a checker for each kind of the current CustomResourceDefinitions."""
    found = [each for definition in crds.generate() for each in compile_definition(definition).values()]
    return {each.kind: each for each in found if each.api_version == API_VERSION}


@cache
def _old_checkers() -> dict[str, Checker]:
    """Return a checker for each kind of v1alpha1 that v1alpha2 has, too."""
    definitions = crds.generate(serve_v1alpha1=True)
    found = [each for definition in definitions for each in compile_definition(definition).values()]
    return {each.kind: each for each in found if each.api_version == _OLD}


def _wrong(manifest: Manifest, problem: str) -> ManifestError:
    file, obj = manifest
    return ManifestError(f"{file}: {obj['kind']} {obj['metadata']['name']}: {problem}")


def _is(obj: Raw, kind: str) -> bool:
    is_old = obj["apiVersion"] == _OLD and kind != "OSIE"  # v1alpha1 has none
    return obj["kind"] == kind and (is_old or obj["apiVersion"] == API_VERSION)


def _full_name(obj: Raw) -> str:
    return f"{_namespace(obj)}/{obj['metadata']['name']}"


def _namespace(obj: Raw) -> str:
    return str(obj["metadata"].get("namespace") or DEFAULT_NAMESPACE)
