"""The container image: the smallest Debian that runs the package, and a list (CycloneDX) of all that is in it."""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from deploy.package import oci
from deploy.package.deb import DEPLOY
from deploy.package.target import Target, run
from deploy.supply.packages import Locked

_NAMESPACE = uuid.UUID("9c2f2a4c-42ec-4e1b-8f0f-6a1d0a4c3b52")


@dataclass(frozen=True, slots=True)
class Source:
    """The inputs of a container image."""

    deb: Path
    version: str
    packages: list[Locked]
    """The Python packages in `deb`."""
    epoch: int
    """The time of the sources, in seconds since 1970."""
    base: Path | None = None
    """A tar archive of Debian without `deb`, written if it does not exist. None: build Debian each time."""
    level: int = oci.LEVEL
    """The gzip level of the layer, 1 to 9."""


def build(source: Source, target: Target, cache: Path, out: Path) -> str:
    """Write the image's archive (an OCI layout) and the list of its contents to `out`; return the image's digest.

    Raises PackageError.
    """
    out.mkdir(parents=True, exist_ok=True)
    name, epoch = f"tinkedge_{source.version}_{target.architecture}", source.epoch
    with tempfile.TemporaryDirectory() as work:
        root = Path(work) / "root"
        script = ["bash", str(DEPLOY / "container" / "root.sh"), target.suite, str(source.deb)]
        script += [str(cache / "debs"), str(root), *([str(source.base)] if source.base else [])]
        run(script, what="the image's Debian", env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)})
        status = (root / "var/lib/dpkg/status").read_text()
        (out / f"{name}.cdx.json").write_text(contents(status, source.packages, source.version, target, epoch))
        (out / f"{name}.oci.tar").unlink(missing_ok=True)
        config, reference = _config(root, source.version, target), f"tinkedge:{source.version}"
        return oci.write(root, config, reference, epoch, out / f"{name}.oci.tar", source.level)


def _config(root: Path, version: str, target: Target) -> oci.Config:
    (account,) = re.findall(r"^tinkedge:[^:]*:(\d+):(\d+):", (root / "etc/passwd").read_text(), re.MULTILINE)
    label = "org.opencontainers.image"
    return oci.Config(
        architecture=target.architecture,
        user=":".join(account),
        entrypoint=("/usr/bin/tinkedge",),
        command=("up",),
        labels={
            f"{label}.title": "tinkedge",
            f"{label}.description": "Netboot, metadata and workflows for bare metal",
            f"{label}.version": version,
            f"{label}.licenses": "Apache-2.0",
        },
        ports=("67/udp", "69/udp", "4011/udp", "7080/tcp", "42113/tcp"),
        volumes=("/var/lib/tinkedge",),
        environment=("PATH=/usr/bin:/bin", "LANG=C.UTF-8"),
    )


def contents(status: str, packages: list[Locked], version: str, target: Target, epoch: int) -> str:
    """The list as JSON: Debian's packages, by dpkg's `status`, and Python's."""
    distribution = f"debian-{target.release}"
    components = []
    for paragraph in status.strip().split("\n\n"):
        fields = dict(re.findall(r"^(\S+): (.*)$", paragraph, re.MULTILINE))
        if fields["Package"] == "tinkedge":
            continue
        qualifiers = {"arch": fields["Architecture"], "distro": distribution}
        purl = PackageURL("deb", "debian", fields["Package"], fields["Version"], qualifiers)
        components.append(_component(fields["Package"], fields["Version"], purl))
    for one in packages:
        purl = PackageURL("pypi", name=one.requirement.name, version=str(one.version))
        components.append(_component(one.requirement.name, str(one.version), purl))
    root = _component(
        "tinkedge", version, PackageURL("pypi", name="tinkedge", version=version), ComponentType.APPLICATION
    )
    bom = Bom(components=components)
    bom.metadata.component = root
    bom.register_dependency(root, components)
    bom.serial_number = uuid.uuid5(_NAMESPACE, " ".join(sorted(str(one.purl) for one in (root, *components))))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(name: str, version: str, purl: PackageURL, kind: ComponentType = ComponentType.LIBRARY) -> Component:
    return Component(name=name, version=version, type=kind, bom_ref=str(purl), purl=purl)
