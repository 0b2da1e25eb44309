"""Metal3's BareMetalHost, of either version, to a Hardware; with HardwareData, and Secrets that say network and name.

What becomes of each field stands in `docs/metal3.md`. `safety` decides whether the machine may netboot, `root_disk`
which disk is the root, `interfaces` and `network_data` what DHCP serves, `rufio` how its management controller is
reached.

A user-data Secret is never read, only named: who may read Hardware need not be allowed to read Secrets. All other
objects come by `lookup`; one that is not there is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from tink.api.annotations import INSTANCE_ID_ANNOTATION, SSH_PUBLIC_KEYS_ANNOTATION, USERDATA_SECRET_ANNOTATION
from tink.api.metal3 import V1ALPHA1, V1BETA1
from tink.api.metal3.profiles import has_root_volume, profile_hints
from tink.api.v1alpha2 import API_VERSION, Raw, as_mapping
from tink.convert import constraints
from tink.convert.documents import Lookup
from tink.convert.fields import Fields, join, says_nothing
from tink.convert.findings import Findings
from tink.convert.metadata import carried
from tink.convert.metal3 import root_disk, rufio
from tink.convert.metal3.conversion_data import ANNOTATION as CONVERSION_DATA
from tink.convert.metal3.interfaces import interfaces_of
from tink.convert.metal3.marks import (
    DESCRIPTION_ANNOTATION,
    HINTS_ANNOTATION,
    HOST_LABEL,
    REFUSED_ANNOTATION,
    SECURED_ANNOTATION,
    bounded,
    is_consumed_by_cluster_api,
    label_of,
)
from tink.convert.metal3.safety import DETACHED, PAUSED, SAVED_STATUS, consumer_name, refusals
from tink.convert.metal3.surroundings import (
    DETAILS_ANNOTATION,
    META_DATA,
    NETWORK_DATA,
    USER_DATA,
    Surroundings,
)

_OF_METAL3 = (PAUSED, DETACHED, SAVED_STATUS, DETAILS_ANNOTATION, CONVERSION_DATA)
"""Annotations that are read here, or mean nothing outside of Metal3: no word about them."""
_METAL3_DOMAIN = re.compile(r"(?:[^/]+[.])?metal3[.]io(?:/|\Z)")
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_LOCALHOST = re.compile(r"localhost(?:[0-9]*|[.].*)", re.IGNORECASE)
_NO_PLACE = "Hardware has no place for it"
_NOT_TINKERBELL = "it tells Metal3's provisioner what to do, and Tinkerbell's Templates say that themselves"


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What an operator may say of all hosts."""

    osies: Mapping[str, str] = field(default_factory=dict)
    """Architecture (x86_64, aarch64) -> the name of the OSIE that such machines boot."""
    bmc: bool = False
    """Whether a Machine of Rufio's is made for each management controller."""
    consumed: bool = False
    """Whether hosts that Cluster API uses are taken, too. They never netboot."""
    unmanaged: bool = False
    """Whether hosts without a state may netboot: no baremetal-operator looks after them."""
    namespace: str = "default"
    """That of hosts which name none."""


def convert_to_hardware(obj: Raw, findings: Findings, lookup: Lookup, options: HostOptions) -> list[Raw]:
    """The Hardware, and the Machine of Rufio's if it is asked for; nothing for an error or a host that is not taken."""
    return _Host(obj, findings, lookup, options).result()


class _Host:
    """The conversion of one host."""

    def __init__(self, obj: Raw, findings: Findings, lookup: Lookup, options: HostOptions) -> None:
        self._obj = obj
        self._findings = findings
        self._options = options
        self._top = Fields(obj, findings)
        self._spec = self._top.fields("spec")
        raw = as_mapping(obj.get("metadata"))
        namespace, name = raw.get("namespace"), raw.get("name")
        self._namespace = namespace if isinstance(namespace, str) and namespace else options.namespace
        self._name = name if isinstance(name, str) else ""
        self._around = Surroundings(obj, self._spec, findings, lookup, self._namespace)
        self._details, self._details_path = self._around.details, self._around.details_path

    def result(self) -> list[Raw]:
        if is_consumed_by_cluster_api(self._obj) and not self._options.consumed:
            who = consumer_name(self._obj["spec"]["consumerRef"])
            self._findings.dropped(
                "spec.consumerRef", f"Cluster API uses the host for {who}: not taken; --consumed takes such hosts, too"
            )
            return []
        metadata = self._metadata()
        spec: Raw = {}
        meta_data = self._around.document(META_DATA)
        self._identity(metadata, meta_data)
        hostname = self._hostname(meta_data)
        spec["networkInterfaces"] = interfaces_of(self._spec, self._around, hostname, self._findings)
        self._safety(spec["networkInterfaces"], metadata)
        self._user_data(metadata)
        self._disks(spec, metadata)
        self._osie(spec)
        made = self._bmc(spec, metadata)
        self._unmapped(meta_data)
        if self._findings.failed:
            return []
        hardware = {"apiVersion": API_VERSION, "kind": "Hardware", "metadata": metadata, "spec": spec}
        return [hardware, *made]

    # --- names ------------------------------------------------------------------------------------------------------

    def _metadata(self) -> Raw:
        self._top.ignore("apiVersion", "kind")
        if self._obj.get("apiVersion") not in (V1ALPHA1, V1BETA1):
            self._findings.error("apiVersion", f"must be {V1ALPHA1} or {V1BETA1}")
        if refusal := constraints.object_name(self._name):
            self._findings.error("metadata.name", refusal)
        metadata = carried(self._top, self._findings)
        metadata["labels"] = {**metadata.get("labels", {}), HOST_LABEL: label_of(self._namespace, self._name)}
        annotations = {}
        for key, value in metadata.pop("annotations", {}).items():
            if key in (REFUSED_ANNOTATION, SECURED_ANNOTATION, HINTS_ANNOTATION, *_OF_METAL3):
                continue
            if _METAL3_DOMAIN.match(key):
                self._findings.dropped(join("metadata.annotations", key), "it tells Metal3 what to do")
            else:
                annotations[key] = value
        if annotations:
            metadata["annotations"] = annotations
        if description := self._spec.text("description"):
            _annotations(metadata).setdefault(DESCRIPTION_ANNOTATION, description)
            self._findings.moved("spec.description", join("metadata.annotations", DESCRIPTION_ANNOTATION))
        return metadata

    def _identity(self, metadata: Raw, meta_data: Any) -> None:
        """The instance id that the installed system knows: Metal3 serves the host's uid, unless metaData says so."""
        uid = as_mapping(meta_data).get("uuid") or as_mapping(self._obj.get("metadata")).get("uid")
        if isinstance(uid, str) and uid:
            _annotations(metadata)[INSTANCE_ID_ANNOTATION] = uid
        elif INSTANCE_ID_ANNOTATION not in metadata.get("annotations", {}):
            self._findings.changed(
                "metadata.uid", "there is none: the instance id will be the name, and a system that runs looks new"
            )
        keys = as_mapping(meta_data).get("public_keys") or as_mapping(meta_data).get("public-keys")
        lines = list(keys.values()) if isinstance(keys, dict) else keys if isinstance(keys, list) else [keys]
        texts = [line.strip() for line in lines if isinstance(line, str) and line.strip()]
        if texts:
            _annotations(metadata)[SSH_PUBLIC_KEYS_ANNOTATION] = "\n".join(texts)

    def _hostname(self, meta_data: Any) -> str:
        """As Metal3 names the installed system: by metaData, else by the host's name. What inspection saw is better
        than the latter, unless it is a name that everybody has."""
        data = as_mapping(meta_data)
        for path, name in (
            ("spec.metaData.local-hostname", data.get("local-hostname") or data.get("local_hostname")),
            (f"{self._details_path}.hostname", self._details.get("hostname")),
            ("metadata.name", self._name),
        ):
            if not isinstance(name, str) or not name or _LOCALHOST.fullmatch(name):
                continue
            refusal = constraints.hostname(name)
            if not refusal:
                return name
            self._findings.dropped(path, refusal)
        return ""

    # --- netboot ----------------------------------------------------------------------------------------------------

    def _safety(self, interfaces: dict[str, Raw], metadata: Raw) -> None:
        """The rule that nothing else may undo: comes after all that touches interfaces."""
        against = refusals(self._obj, unmanaged=self._options.unmanaged)
        for refusal in against:
            self._findings.changed(refusal.path, f"{refusal.reason}: the machine does not netboot")
        self._spec.ignore("online", "poweredOn", "externallyProvisioned", "consumerRef")
        if not against:
            return
        for interface in interfaces.values():
            interface["disableNetboot"] = True
        _annotations(metadata)[REFUSED_ANNOTATION] = bounded("; ".join(map(str, against)))

    # --- instance, disks, OSIE, BMC ---------------------------------------------------------------------------------

    def _user_data(self, metadata: Raw) -> None:
        name = self._around.secret_name(USER_DATA)
        if not name:
            return
        key = self._around.key_of(USER_DATA, name)
        _annotations(metadata)[USERDATA_SECRET_ANNOTATION] = f"{name}/{key}" if key else name
        self._findings.moved("spec.userData", join("metadata.annotations", USERDATA_SECRET_ANNOTATION))

    def _disks(self, spec: Raw, metadata: Raw) -> None:
        path = "spec.rootDeviceHints"
        written = self._spec.take("rootDeviceHints")
        profile = self._spec.text("hardwareProfile")
        if written is not None and not isinstance(written, dict):
            self._findings.dropped(path, "must be an object: the root disk is not known")
            return
        hints, said = written, written is not None
        if has_root_volume(self._obj):
            self._findings.changed("spec.storageDevices", "the root disk is a software RAID that nothing here makes")
            return
        if written is None and self._obj.get("apiVersion") == V1ALPHA1:
            hints = profile_hints(self._obj)
            said = bool(profile or as_mapping(self._obj.get("status")).get("hardwareProfile"))
            path = "spec.hardwareProfile" if said else path
        hints = hints or {}
        if hints and said:
            _annotations(metadata)[HINTS_ANNOTATION] = bounded(
                orjson.dumps(hints, option=orjson.OPT_SORT_KEYS).decode()
            )
        choice = root_disk.choose(hints, self._details.get("storage"), verified=not said)
        if choice.problem:
            self._findings.changed(path, f"storageDevices is empty: {choice.problem}")
        for place, problem in choice.left_out:
            self._findings.dropped(join(f"{self._details_path}.storage", place), problem)
        if choice.devices:
            spec["storageDevices"] = list(choice.devices)
            self._findings.moved(path, "spec.storageDevices[0]")

    def _osie(self, spec: Raw) -> None:
        said = self._spec.text("architecture")
        path = "spec.architecture" if said else f"{self._details_path}.cpu.arch"
        arch = said or as_mapping(self._details.get("cpu")).get("arch")
        if not self._options.osies:
            if said:
                self._findings.changed(path, f"no --osie says what {said[:40]} machines boot: spec.osie is empty")
            return
        if not isinstance(arch, str) or not arch:
            self._findings.changed("spec.architecture", "it is not known, so neither is the OSIE: spec.osie is empty")
            return
        name = self._options.osies.get(_ARCHITECTURES.get(arch, arch))
        if name is None:
            self._findings.changed(path, f"no --osie says what {arch[:40]} machines boot: spec.osie is empty")
        else:
            spec["osie"] = {"name": name}

    def _bmc(self, spec: Raw, metadata: Raw) -> list[Raw]:
        if as_mapping(self._obj.get("spec")).get("bmc") is None:
            self._spec.ignore("bmc")
            return []
        if not self._options.bmc:
            self._spec.drop("bmc", "Hardware refers to a Machine of Rufio's: --bmc makes one")
            return []
        own: Raw = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
        made = rufio.machine(self._spec.fields("bmc"), own, self._findings)
        if made is None:
            return []
        spec["bmcRef"] = {"name": metadata["name"]}
        return [made]

    # --- what has no place ------------------------------------------------------------------------------------------

    def _unmapped(self, meta_data: Any) -> None:
        spec = self._spec
        self._image(spec)
        spec.drop("raid", "RAID is set up by the management controller or by an action: nothing here does it")
        mode = spec.text("bootMode")
        if mode == "UEFISecureBoot":
            self._findings.changed("spec.bootMode", "the machine must be served a signed boot program: docs/netboot.md")
        elif mode == "legacy":
            self._findings.changed("spec.bootMode", "the firmware says itself that it is BIOS, and gets undionly.kpxe")
        elif mode not in (None, "", "UEFI"):
            self._findings.dropped("spec.bootMode", "must be UEFI, UEFISecureBoot or legacy")
        for key in ("automatedCleaningMode", "customDeploy", "disablePowerOff", "inspectionMode", "firmware"):
            if (key, spec.peek(key)) == ("automatedCleaningMode", "metadata"):
                spec.ignore(key)  # the default, which nobody wrote
            else:
                spec.drop(key, _NOT_TINKERBELL)
        if as_mapping(self._obj.get("spec")).get(NETWORK_DATA) is not None:
            spec.drop("preprovisioningNetworkDataName", "networkData is served, to the OSIE as well")
        spec.drop("networkInterfaces", "nothing here configures switches")
        spec.drop("taints", f"it never had an effect, and {_NO_PLACE}")
        spec.rest(f"there is no such field that is known, and {_NO_PLACE}")
        known = ("local-hostname", "local_hostname", "uuid", "public_keys", "public-keys")
        if meta_data is not None and not isinstance(meta_data, dict):
            self._findings.dropped("spec.metaData", "its Secret must hold an object")
        for key, value in as_mapping(meta_data).items():
            if key not in known and not says_nothing(value):
                self._findings.dropped(join("spec.metaData", key), "the metadata service has no place for it")
        if not says_nothing(self._top.take("status")) or self._details:
            self._findings.changed(
                "status",
                "Metal3 writes it. Of what inspection found, interfaces, disks, architecture and host name were used",
            )
        self._top.rest()

    def _image(self, spec: Fields) -> None:
        image = spec.fields("image")
        url = image.text("url")
        wanted = {
            "image_url": _without_password(url or ""),
            "image_checksum": image.text("checksum"),
            "image_checksum_type": image.text("checksumType"),
            "image_format": image.text("format"),
        }
        image.drop("ociAuthSecretName", "no action gets a registry's credentials: put the image where none are needed")
        image.rest()
        if not url:
            return
        shown = " ".join(f"{key}={value[:200]}" for key, value in wanted.items() if value)
        self._findings.changed("spec.image", f"a Workflow installs it; its templateParams: {shown}")
        if wanted["image_format"] == "live-iso":
            self._findings.changed("spec.image.format", "no disk is written: boot it by an iPXE script in spec.ipxe")


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//…@", url)


def _annotations(metadata: Raw) -> dict[str, str]:
    found: dict[str, str] = metadata.setdefault("annotations", {})
    return found
