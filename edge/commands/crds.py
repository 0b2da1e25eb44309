"""`tinkedge crds`: print the CustomResourceDefinitions, for `kubectl apply -f -`."""

from __future__ import annotations

from pathlib import Path

import click

from edge.settings import FilePath
from tink.api.crds import generate, generate_bmc, to_yaml
from tink.api.metal3 import HOST_VERSIONS
from tink.api.metal3 import crds as metal3
from tink.webhooks.conversion import definitions_with_v1alpha1
from tink.webhooks.server import WebhookSettings

_NEEDS_WEBHOOK = """\
# v1alpha1 needs the conversion webhook at {service}:
# tinkedge controller --serve-v1alpha1 --webhook-service {service}
# Until it has registered its certificate authority, the API rejects every request for v1alpha1.
"""


@click.command()
@click.option("--out", type=FilePath(file_okay=False), help="Write one file for each resource into this directory.")
@click.option(
    "--bmc",
    "of_bmc",
    is_flag=True,
    help="Print those of bmc.tinkerbell.org instead: Machine, Job and Task. They replace Rufio's.",
)
@click.option(
    "--metal3",
    "of_metal3",
    is_flag=True,
    help="Print those of metal3.io instead: BareMetalHost and HardwareData. No host may be written as v1beta1 before "
    "the "
    "conversion webhook runs.",
)
@click.option(
    "--v1alpha1",
    "with_v1alpha1",
    is_flag=True,
    help="Print those of tinkerbell.org with Tinkerbell's v1alpha1, too, and WorkflowRuleSet. They need the conversion "
    "webhook of tinkedge controller --serve-v1alpha1.",
)
@click.option(
    "--webhook-service",
    default="tinkedge/tinkedge-webhooks",
    show_default=True,
    help="With --v1alpha1: NAMESPACE/NAME[:PORT] of the Service in front of that webhook.",
)
@click.option(
    "--storage-version",
    type=click.Choice(HOST_VERSIONS),
    default=HOST_VERSIONS[0],
    show_default=True,
    help="With --metal3: the version in which hosts are stored; v1beta1 after tinkedge metal3-migrate.",
)
@click.option(
    "--stop-serving-v1alpha1",
    is_flag=True,
    help="With --metal3: do not serve v1alpha1. For use after tinkedge metal3-migrate --stop-serving-v1alpha1.",
)
def crds(
    out: Path | None,
    of_bmc: bool,
    of_metal3: bool,
    with_v1alpha1: bool,
    webhook_service: str,
    storage_version: str,
    stop_serving_v1alpha1: bool,
) -> None:
    """Print the CustomResourceDefinitions of tinkerbell.org/v1alpha2 as YAML, or of bmc.tinkerbell.org or metal3.io.

    On a cluster: tinkedge crds | kubectl apply --server-side -f -

    With --server-side, kubectl does not warn if tinkedge has applied them before. For metal3.io see docs/metal3.md.
    """
    old = HOST_VERSIONS[0]
    sets = {"--bmc": of_bmc, "--metal3": of_metal3, "--v1alpha1": with_v1alpha1}
    given = [name for name, is_wanted in sets.items() if is_wanted]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} are two sets of definitions: print one after the other")
    if not of_metal3 and (stop_serving_v1alpha1 or storage_version != old):
        raise click.UsageError("--storage-version and --stop-serving-v1alpha1 are about hosts: add --metal3")
    if stop_serving_v1alpha1 and storage_version == old:
        raise click.UsageError("--stop-serving-v1alpha1 is for hosts that are stored otherwise: see --storage-version")
    comment = ""
    if of_metal3:
        definitions = metal3.generate(storage=storage_version, serve_v1alpha1=not stop_serving_v1alpha1)
    elif with_v1alpha1:
        webhook = _webhook(webhook_service)
        definitions = definitions_with_v1alpha1(webhook.namespace, webhook.name, webhook.service_port)
        comment = _NEEDS_WEBHOOK.format(service=webhook_service)
    else:
        definitions = generate_bmc() if of_bmc else generate()
    if out is None:
        click.echo(comment + to_yaml(definitions), nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    for definition in definitions:
        path = out / f"{definition['spec']['names']['plural']}.yaml"
        needed = comment if "conversion" in definition["spec"] else ""
        path.write_text(needed + to_yaml([definition]))
        click.echo(path)


def _webhook(service: str) -> WebhookSettings:
    """Return the settings of the webhook behind a Service. Raises click.BadParameter."""
    try:
        settings = WebhookSettings(service=service)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--webhook-service") from error
    if not settings.service:
        raise click.BadParameter("give NAMESPACE/NAME", param_hint="--webhook-service")
    return settings
