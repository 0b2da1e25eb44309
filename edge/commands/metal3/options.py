"""The option that all commands about Metal3's hosts must agree on; apart, for those that need no more of the stack."""

from __future__ import annotations

import click

empty_checksum_type = click.option(
    "--empty-checksum-type",
    type=click.Choice(["md5", "auto"]),
    default="md5",
    help="What an image of a BareMetalHost v1alpha1 without a checksumType means: md5, or auto where the "
    "baremetal-operator detects it.",
)
