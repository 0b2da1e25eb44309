"""The software bill of materials: a CycloneDX list (ECMA-424) of the packages that the project needs to run.

Packages that are always needed are `required`, those of users' extras are `optional`; developers' packages are left
out. Names, versions, licences and dependencies are those installed, which `make check` compares with
deploy/requirements.txt; the file hashes are there. The same input gives the same bytes.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import NormalizedName, canonicalize_name

from deploy.supply.licences import licence
from deploy.supply.packages import Installed, Project, closure

_NAMESPACE = uuid.UUID("5a1d7d1c-9ad5-4a0a-8f0e-6f0c9be9a4a7")
_FOR_DEVELOPERS = ("dev", "go")


def sbom(project: Project, here: Installed, epoch: int) -> str:
    """Return the list as JSON; `epoch` is its time, in seconds since 1970."""
    required = closure(project.needs, here)
    extras = (wanted for name, wanted in project.extras.items() if name not in _FOR_DEVELOPERS)
    wanted = (*project.needs, *(one for extra in extras for one in extra))
    everything = closure(wanted, here)
    root = Component(
        name=project.name,
        version=project.version,
        type=ComponentType.APPLICATION,
        bom_ref=project.name,
        purl=PackageURL("pypi", name=project.name, version=project.version),
        licenses=[LicenseExpression(project.licence)],
    )
    components = {name: _component(name, here, optional=name not in required) for name in sorted(everything)}
    bom = Bom(components=components.values())
    bom.metadata.component = root
    bom.register_dependency(
        root, [components[name] for name in sorted({canonicalize_name(one.name) for one in wanted})]
    )
    for name, needs in everything.items():
        bom.register_dependency(components[name], [components[needed] for needed in sorted(needs)])
    said = " ".join(f"{name}=={here[name].version}" for name in sorted(everything))
    bom.serial_number = uuid.uuid5(_NAMESPACE, f"{project.name}=={project.version} {said}")
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(name: NormalizedName, here: Installed, *, optional: bool) -> Component:
    version = here[name].version
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}=={version}",
        purl=PackageURL("pypi", name=name, version=version),
        scope=ComponentScope.OPTIONAL if optional else ComponentScope.REQUIRED,
        licenses=[LicenseExpression(licence(here[name]))],
    )
