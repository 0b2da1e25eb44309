"""The conversion webhook of hosts (`tink.webhooks.conversion`).

While the API server has no webhook, it changes only the apiVersion. A host that is then written in v1beta1 loses its
power state and its root device.
"""

from __future__ import annotations

from functools import partial

from tink.api.metal3 import V1ALPHA1, V1BETA1, crds
from tink.convert.metal3.versions import ConversionSettings, convert_version
from tink.metal3 import definition
from tink.webhooks.conversion import Conversion, ConversionHook


def hosts(settings: ConversionSettings) -> Conversion:
    """Return the conversion of BareMetalHosts. It accepts any object."""
    return Conversion("BareMetalHost", (V1ALPHA1, V1BETA1), partial(convert_version, settings=settings))


class HostConversion(ConversionHook):
    """The webhook. With `install`, it also writes the definitions, if the API's differ."""

    def __init__(self, settings: ConversionSettings, *, install: bool = False) -> None:
        super().__init__(
            hosts(settings),
            [definition.NAME],
            path="/convert",
            missed="BareMetalHosts can be read and written in one version only",
            command="tinkedge crds --metal3",
            install=crds.generate if install else None,
        )
