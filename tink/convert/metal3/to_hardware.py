"""Convert Metal3's BareMetalHost, of either version, to Hardware, and its management controller to a Machine of Rufio.

`docs/metal3.md` lists what becomes of each field. `safety` decides whether the machine may netboot, `root_disk` which
disk is the root disk, `network_data` what DHCP serves. `lookup` finds the HardwareData and the Secrets of a host; a
missing one is a finding.

A Secret of another namespace is never read: a user who may write hosts could otherwise read it in the Hardware. The
content of a user-data Secret is never read either: a user who may read Hardware need not be allowed to read Secrets.
Hardware only names it.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from tink.api import bounds
from tink.api.annotations import INSTANCE_ID_ANNOTATION, SSH_PUBLIC_KEYS_ANNOTATION, USERDATA_SECRET_ANNOTATION
from tink.api.metal3 import V1ALPHA1, V1BETA1
from tink.api.metal3.profiles import has_root_volume, profile_hints
from tink.api.v1alpha2 import API_VERSION, RUFIO_GROUP, Raw, as_mapping
from tink.convert import constraints
from tink.convert.documents import Lookup
from tink.convert.fields import Fields, carried, join, says_nothing
from tink.convert.findings import Findings
from tink.convert.metal3 import network_data, root_disk
from tink.convert.metal3.safety import (
    DESCRIPTION_ANNOTATION,
    DETACHED,
    HINTS_ANNOTATION,
    HOST_LABEL,
    PAUSED,
    REFUSED_ANNOTATION,
    SAVED_STATUS,
    SECURED_ANNOTATION,
    bounded,
    consumer_name,
    is_consumed_by_cluster_api,
    label_of,
    refusals,
)
from tink.convert.metal3.versions import CONVERSION_DATA_ANNOTATION
from tink.kube.objects import NamespacedName

USER_DATA, NETWORK_DATA, META_DATA = "userData", "networkData", "metaData"
DETAILS_ANNOTATION = "inspect.metal3.io/hardwaredetails"
"""On a host: hardware details that a user wrote in place of an inspection."""

_FALLBACK_KEY = "value"
"""The fallback key of Secrets: Cluster API's bootstrap providers write their data under it."""
_DETAILS = "HardwareData.spec.hardware"


def secrets_to_read(host: Raw, namespace: str) -> dict[NamespacedName, str]:
    """Return the Secrets whose content a conversion needs (never user-data), with the field that names each."""
    spec = as_mapping(host.get("spec"))
    names = {f"spec.{key}": as_mapping(spec.get(key)) for key in (NETWORK_DATA, META_DATA)}
    if spec.get(NETWORK_DATA) is None:
        names["spec.preprovisioningNetworkDataName"] = {"name": spec.get("preprovisioningNetworkDataName")}
    found: dict[NamespacedName, str] = {}
    for path, each in names.items():
        name = each.get("name")
        if isinstance(name, str) and name and each.get("namespace") in (None, "", namespace):
            found.setdefault(NamespacedName(namespace, name), path)
    return found


def _value(secret: Raw, key: str) -> bytes | None:
    """Return the value of a key of a Secret, from `data` or `stringData`. Raises ValueError, TypeError."""
    written = as_mapping(secret.get("stringData")).get(key)
    if isinstance(written, str):
        return written.encode(errors="replace")
    value = as_mapping(secret.get("data")).get(key)
    if value is None:
        return None
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, AttributeError) as error:
        raise ValueError(key) from error


RUFIO_API_VERSION = f"{RUFIO_GROUP}/v1alpha1"
MACHINE_KIND = "Machine"

_IPMI_PORT = 623
_REDFISH = ("redfish", "idrac-redfish", "ilo5-redfish", "idrac-virtualmedia", "ilo5-virtualmedia")
_REDFISH_FORMS = ("redfish-virtualmedia", "redfish-uefihttp")
_IPMI = ("", "ipmi", "libvirt")
"""An address without a scheme is IPMI. libvirt addresses are virtualbmc, which speaks IPMI."""


@dataclass(frozen=True, slots=True)
class BmcAddress:
    """The address of a management controller, and its protocol: `ipmi` or `redfish`."""

    host: str
    port: int
    protocol: str
    path: str


def parse_bmc_address(text: str) -> BmcAddress:
    """Parse a URL whose scheme names the driver (baremetal-operator, docs/api.md). ValueError says what to do."""
    parts = urlsplit(text if "://" in text else f"//{text}")
    driver, _, transport = parts.scheme.lower().partition("+")
    if "://" not in text and text.count(":") > 1 and not text.startswith("["):
        parts = urlsplit(f"//[{text}]")  # an IPv6 address alone
    if driver in _IPMI and transport in ("", "ipmi"):
        protocol, port = "ipmi", _IPMI_PORT
    elif driver in (*_REDFISH, *_REDFISH_FORMS) and transport in ("", "https", "http"):
        protocol, port = "redfish", 80 if transport == "http" else 443
    else:
        raise ValueError(f"Rufio knows no driver {parts.scheme[:60]!r}: make its Machine by hand")
    host = parts.hostname or ""
    if not host or (not _is_ip(host) and constraints.hostname(host)):
        raise ValueError("it names no host: write it like redfish://192.0.2.7/redfish/v1/Systems/1")
    if "@" in parts.netloc:
        raise ValueError("it has credentials in it: put them into the Secret that credentialsName names")
    return BmcAddress(host, parts.port or port, protocol, parts.path.strip("/"))


def rufio_machine(bmc: Fields, metadata: Raw) -> Raw | None:
    """Return the Rufio Machine of `spec.bmc`, with the name and labels of its Hardware (`metadata`).

    Return None with a finding if that is impossible. The Machine refers to the same Secret as the host: both have the
    keys `username` and `password`. Rufio takes host and port, and tries its own drivers.
    """
    said, credentials = bmc.text("address") or "", bmc.text("credentialsName") or ""
    insecure = bmc.flag("disableCertificateVerification")
    bmc.rest()
    try:
        where = parse_bmc_address(said)
    except ValueError as error:
        bmc.dropped("address", str(error))
        return None
    if refusal := credentials and constraints.object_name(credentials):
        bmc.dropped("credentialsName", refusal)
        return None
    connection: Raw = {"host": where.host, "port": where.port, "insecureTLS": bool(insecure)}
    if credentials:
        reference = {"name": credentials}
        if namespace := metadata.get("namespace"):
            reference["namespace"] = namespace
        connection["authSecretRef"] = reference
    else:
        bmc.changed("credentialsName", "there is none: Rufio logs in with no name and no password")
    if where.protocol == "redfish":
        # Rufio's own default is IPMI's port.
        connection["providerOptions"] = {"preferredOrder": ["gofish"], "redfish": {"port": where.port}}
        if where.path.removesuffix("/") not in ("", "redfish/v1"):
            bmc.changed(
                "address",
                "Rufio finds the system by itself; where several share a controller, name it in the Machine's "
                "providerOptions.redfish.systemName",
            )
    else:
        connection["providerOptions"] = {"preferredOrder": ["ipmitool"], "ipmitool": {"port": where.port}}
    return {
        "apiVersion": RUFIO_API_VERSION,
        "kind": MACHINE_KIND,
        "metadata": dict(metadata),
        "spec": {"connection": connection},
    }


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


_METAL3_ANNOTATIONS = (PAUSED, DETACHED, SAVED_STATUS, DETAILS_ANNOTATION, CONVERSION_DATA_ANNOTATION)
"""Annotations that are read here, or have no meaning outside of Metal3: they need no finding."""
_METAL3_DOMAIN = re.compile(r"(?:[^/]+[.])?metal3[.]io(?:/|\Z)")
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_LOCALHOST = re.compile(r"localhost(?:[0-9]*|[.].*)", re.IGNORECASE)
_NO_PLACE = "Hardware has no place for it"
_NOT_TINKERBELL = "it tells Metal3's provisioner what to do, and Tinkerbell's Templates say that themselves"


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options for the conversion of all hosts."""

    osies: Mapping[str, str] = field(default_factory=dict)
    """Architecture (x86_64, aarch64) -> the name of the OSIE for such machines."""
    bmc: bool = False
    """True to make a Rufio Machine for each management controller."""
    consumed: bool = False
    """True to convert hosts that Cluster API uses. They never netboot."""
    unmanaged: bool = False
    """True if hosts without a state may netboot, because no baremetal-operator manages them."""
    namespace: str = "default"
    """The namespace of hosts that name none."""


def convert_to_hardware(obj: Raw, findings: Findings, lookup: Lookup, options: HostOptions) -> list[Raw]:
    """Return the Hardware, and the Rufio Machine if the options request it; nothing for an error or a skipped host."""
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
        self._lookup = lookup
        self._details, self._details_path = self._find_details()
        """The HardwareDetails, {} without an inspection, and their place."""

    def result(self) -> list[Raw]:
        if is_consumed_by_cluster_api(self._obj) and not self._options.consumed:
            who = consumer_name(self._obj["spec"]["consumerRef"])
            self._findings.dropped(
                "spec.consumerRef", f"Cluster API uses the host for {who}: not taken; --consumed takes such hosts, too"
            )
            return []
        metadata = self._metadata()
        spec: Raw = {}
        meta_data = self._document(META_DATA)
        uid = as_mapping(meta_data).get("uuid") or as_mapping(self._obj.get("metadata")).get("uid")
        if isinstance(uid, str) and uid:
            _annotations(metadata)[INSTANCE_ID_ANNOTATION] = uid
        elif INSTANCE_ID_ANNOTATION not in metadata.get("annotations", {}):
            self._findings.changed(
                "metadata.uid",
                "there is none: the instance id will be the name, and cloud-init takes a running system for a new one",
            )
        keys = as_mapping(meta_data).get("public_keys") or as_mapping(meta_data).get("public-keys")
        lines = list(keys.values()) if isinstance(keys, dict) else keys if isinstance(keys, list) else [keys]
        texts = [line.strip() for line in lines if isinstance(line, str) and line.strip()]
        if texts:
            _annotations(metadata)[SSH_PUBLIC_KEYS_ANNOTATION] = "\n".join(texts)
        hostname = self._hostname(meta_data)
        spec["networkInterfaces"] = self._interfaces(hostname)
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

    # --- HardwareData and Secrets -------------------------------------------------------------------------------------

    def _secret_name(self, key: str) -> str:
        """Return the name of the Secret that a field of `spec` refers to; empty if no such Secret may be read."""
        reference = self._spec.fields(key)
        name, namespace = reference.text("name") or "", reference.text("namespace") or ""
        reference.rest()
        if name and namespace not in ("", self._namespace):
            reference.dropped(
                "namespace",
                f"a host's Secrets are in its own namespace, {self._namespace}: copy Secret {name} to there",
            )
            return ""
        if name and (refusal := constraints.object_name(name)):
            reference.dropped("name", refusal)
            return ""
        return name

    def _document(self, key: str) -> Any:
        """Return the YAML or JSON content of a field's Secret; None if there is none."""
        name = self._secret_name(key)
        if key == NETWORK_DATA and as_mapping(self._obj.get("spec")).get(NETWORK_DATA) is None:
            name = self._spec.text("preprovisioningNetworkDataName") or ""
            if name and (refusal := constraints.object_name(name)):
                self._findings.dropped("spec.preprovisioningNetworkDataName", refusal)
                return None
        if not name:
            return None
        content = self._content(key, name)
        if content is None:
            return None
        try:
            return network_data.parsed(content.decode())
        except ValueError as error:
            why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            self._findings.dropped(f"spec.{key}", f"Secret {self._namespace}/{name} {why}")
            return None

    def _key_of(self, key: str, name: str) -> str:
        """Return the key under which a Secret holds the data of `key`; empty if unknown. Does not read the content."""
        secret = self._lookup("Secret", self._namespace, name)
        if secret is None:
            return ""
        held = {**as_mapping(secret.get("data")), **as_mapping(secret.get("stringData"))}
        for place in (key, _FALLBACK_KEY):
            if held.get(place) is not None:
                return place
        self._findings.changed(f"spec.{key}", f"Secret {name} has no key {key} or {_FALLBACK_KEY}: add it")
        return ""

    def _content(self, key: str, name: str) -> bytes | None:
        """Return the content of a Secret under `key`, or under the fallback key."""
        secret = self._lookup("Secret", self._namespace, name)
        path = f"spec.{key}"
        if secret is None:
            self._findings.dropped(path, f"Secret {self._namespace}/{name} is not there: add it")
            return None
        for place in (key, _FALLBACK_KEY):
            try:
                content = _value(secret, place)
            except (ValueError, TypeError):
                self._findings.dropped(path, f"Secret {self._namespace}/{name}: the value of {place} is not base64")
                return None
            if content is not None:
                return content
        self._findings.dropped(path, f"Secret {self._namespace}/{name} has no key {key} or {_FALLBACK_KEY}: add it")
        return None

    def _find_details(self) -> tuple[Raw, str]:
        """Return the hardware details and their place: HardwareData, the status, or the annotation of a user."""
        found = as_mapping(
            self._lookup("HardwareData", self._namespace, str(as_mapping(self._obj.get("metadata")).get("name")))
        )
        if details := as_mapping(as_mapping(found.get("spec")).get("hardware")):
            return details, _DETAILS
        if details := as_mapping(as_mapping(self._obj.get("status")).get("hardware")):
            return details, "status.hardware"
        by_hand = as_mapping(as_mapping(self._obj.get("metadata")).get("annotations")).get(DETAILS_ANNOTATION)
        if isinstance(by_hand, str):
            try:
                return as_mapping(orjson.loads(by_hand)), join("metadata.annotations", DETAILS_ANNOTATION)
            except orjson.JSONDecodeError as error:
                self._findings.dropped(join("metadata.annotations", DETAILS_ANNOTATION), f"is not JSON: {error}")
        return {}, _DETAILS

    # --- interfaces --------------------------------------------------------------------------------------------------

    def _interfaces(self, hostname: str) -> dict[str, Raw]:
        """Return `spec.networkInterfaces`. `_safety` decides later whether the machine may netboot."""
        interfaces: dict[str, Raw] = {}
        boot = self._boot_mac()
        nics = self._nics()
        if boot:
            interfaces[boot] = {}
        for mac, nic in nics.items():
            interfaces.setdefault(mac, {} if nic.get("pxe") is True else {"disableNetboot": True})
        if boot and nics and boot not in nics:
            self._findings.changed("spec.bootMACAddress", f"inspection found no interface with {boot}")
        document = self._document(NETWORK_DATA)
        served = network_data.served(document, f"spec.{NETWORK_DATA}", boot, self._findings) if document else {}
        for mac in served:
            interfaces.setdefault(mac, {"disableNetboot": True})
        if not interfaces:
            if not self._findings.failed:
                self._findings.error(
                    "spec.bootMACAddress", "neither it nor HardwareData names a MAC address: the machine is not known"
                )
            return interfaces
        netboots = [mac for mac, each in interfaces.items() if "disableNetboot" not in each]
        if not netboots:
            self._findings.changed(
                "spec.bootMACAddress", "there is none, and no interface with pxe: it cannot netboot by MAC address"
            )
        for mac in list(interfaces)[bounds.MAX_INTERFACES :]:
            del interfaces[mac]
            self._findings.dropped(
                f"{self._details_path}.nics", f"{mac}: v1alpha2 takes {bounds.MAX_INTERFACES} interfaces"
            )
        self._addresses(interfaces, served, nics)
        named = (netboots or list(interfaces))[0]
        if hostname and named in interfaces:
            interface = interfaces[named]
            interfaces[named] = {**interface, "dhcp": {**interface.get("dhcp", {}), "hostname": hostname}}
        return interfaces

    def _boot_mac(self) -> str:
        said = self._spec.text("bootMACAddress") or ""
        mac = constraints.canonical_mac(said)
        if said and (refusal := constraints.mac(mac)):
            self._findings.error("spec.bootMACAddress", f"{refusal}; it is {said[:60]!r}")
            return ""
        self._findings.moved("spec.bootMACAddress", join("spec.networkInterfaces", mac))
        return mac

    def _nics(self) -> dict[str, Raw]:
        """Return the inspected interfaces by MAC address. One with an IPv4 and an IPv6 address is listed twice."""
        path = f"{self._details_path}.nics"
        nics = self._details.get("nics")
        if nics is not None and not isinstance(nics, list):
            self._findings.dropped(path, "must be a list")
        found: dict[str, Raw] = {}
        for index, nic in enumerate(nics if isinstance(nics, list) else []):
            mac = nic.get("mac") if isinstance(nic, dict) else None
            if not isinstance(mac, str) or not mac:
                continue  # a virtual interface, such as a tunnel
            mac = constraints.canonical_mac(mac)
            if refusal := constraints.mac(mac):
                self._findings.dropped(f"{join(path, index)}.mac", refusal)
                continue
            there = found.setdefault(mac, {})
            there["pxe"] = there.get("pxe") is True or nic.get("pxe") is True
            for key, value in (("ip", nic.get("ip")), ("vlanId", nic.get("vlanId"))):
                if key not in there and value not in (None, "", 0) and not (key == "ip" and ":" in str(value)):
                    there[key] = value
        return found

    def _addresses(self, interfaces: dict[str, Raw], served: dict[str, Raw], nics: dict[str, Raw]) -> None:
        taken = {dhcp["ip"] for dhcp in served.values() if "ip" in dhcp}
        for mac, interface in interfaces.items():
            dhcp = dict(served.get(mac, {}))
            nic = nics.get(mac, {})
            ip = nic.get("ip")
            usable = isinstance(ip, str) and not (constraints.ipv4(ip) or constraints.unicast(ip))
            if "ip" not in dhcp and usable and ip not in taken:
                dhcp["ip"] = ip
                taken.add(ip)
                self._findings.changed(
                    f"{self._details_path}.nics",
                    f"{ip} is the address that {mac} had when it was inspected; its netmask and gateway are not known",
                )
            vlan = nic.get("vlanId")
            if isinstance(vlan, int) and "vlanId" not in dhcp:
                if refusal := constraints.vlan(str(vlan)):
                    self._findings.dropped(f"{self._details_path}.nics", f"vlanId of {mac}: {refusal}")
                else:
                    dhcp["vlanId"] = str(vlan)
            if dhcp:
                interfaces[mac] = {"dhcp": dhcp, **interface}

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
            if key in (REFUSED_ANNOTATION, SECURED_ANNOTATION, HINTS_ANNOTATION, *_METAL3_ANNOTATIONS):
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

    def _hostname(self, meta_data: Any) -> str:
        """Return the installed system's host name: from metaData, inspection (except localhost), or the host's name."""
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
        """Disable netboot if there is any reason against it. Runs after all other changes of the interfaces."""
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
        name = self._secret_name(USER_DATA)
        if not name:
            return
        key = self._key_of(USER_DATA, name)
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
        made = rufio_machine(self._spec.fields("bmc"), own)
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
                spec.ignore(key)  # the default, which the API server wrote
            else:
                spec.drop(key, _NOT_TINKERBELL)
        if as_mapping(self._obj.get("spec")).get(NETWORK_DATA) is not None:
            spec.drop("preprovisioningNetworkDataName", "networkData is served, to the OSIE as well")
        spec.drop("networkInterfaces", "nothing here configures switches")
        spec.drop("taints", f"it never had an effect, and {_NO_PLACE}")
        spec.rest(f"the field is unknown, and {_NO_PLACE}")
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
            "image_url": re.sub(r"//[^/@]*@", "//…@", url or ""),
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


def _annotations(metadata: Raw) -> dict[str, str]:
    found: dict[str, str] = metadata.setdefault("annotations", {})
    return found
