"""Record a real kube-apiserver's answers to good and bad objects of our kinds.

    python -m tests.record resources

installs the CustomResourceDefinitions on a kube-apiserver, plays every case of the table below and writes `answers`
beside this file: the cases by kind, the server's answer to each, and digests of the accepted definitions. The tests
only read these files.

A case is a list of steps, the last of which is the question. `fields` are the fields that the answer must blame, none
if the object must be accepted. One mistake must give one cause: the recorder refuses to write a table that contradicts
this.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import recordings
from tests.peer import DEFINITIONS, Peer
from tink.api import bmc, v1alpha2
from tink.api.crds import generate, generate_bmc

API_VERSIONS = {
    **dict.fromkeys(("Hardware", "OSIE", "Template", "Workflow"), v1alpha2.API_VERSION),
    **dict.fromkeys(("Machine", "Job", "Task"), bmc.API_VERSION),
}
PLURALS = {kind: "hardware" if kind == "Hardware" else f"{kind.lower()}s" for kind in API_VERSIONS}
DISKS = """
/dev/sda /dev/vdb /dev/sdaa /dev/nvme0n1 /dev/nvme12n3 /dev/mmcblk0 /dev/md127 /dev/xvda /dev/mmcblk0boot0
/dev/disk/by-id/nvme-Samsung_SSD_980_S64ENF0R /dev/disk/by-id/wwn-0x5000c500a1b2c3d4
/dev/disk/by-path/pci-0000:00:1f.2-ata-1 /dev/mapper/mpatha /dev/vg0/root /dev/cciss/c0d0 /dev/disk/by-id/ata-sda1
/dev/sda/ /data/disk1.img
"""
PARTITIONS = """
/dev/sda1 /dev/vdb12 /dev/xvda1 /dev/hda3 /dev/nvme0n1p1 /dev/mmcblk0p1 /dev/md0p2 /dev/nbd0p1 /dev/loop0p1
/dev/cciss/c0d0p1 /dev/disk/by-id/wwn-0x5000c500a1b2c3d4-part1 /dev/disk/by-path/pci-0000:00:1f.2-ata-1-part12
/dev/disk/by-partuuid/0fc63daf-8483-4772-8e79-3d69d8477de4 /dev/disk/by-partlabel/root /dev/mapper/mpatha-part1
/dev/sda1/
"""
MAC, OTHER = "52:54:00:12:34:56", "52:54:00:12:34:57"

Object = dict[str, Any]
Case = dict[str, Any]


# --- The table ----------------------------------------------------------------------------------------------------


def definitions() -> list[Object]:
    """Return all definitions of this program."""
    return [*generate(), *generate_bmc()]


def collection(kind: str) -> str:
    """Return the path of the objects of a kind."""
    return f"/apis/{API_VERSIONS[kind]}/namespaces/default/{PLURALS[kind]}"


def obj(kind: str, spec: Any) -> Object:
    return {"apiVersion": API_VERSIONS[kind], "kind": kind, "metadata": {"name": "case"}, "spec": spec}


def case(name: str, kind: str, spec: Any, *fields: str) -> Case:
    return {"name": name, "kind": kind, "steps": [["create", obj(kind, spec)]], "fields": list(fields)}


def nic(**dhcp: Any) -> Object:
    return {"networkInterfaces": {MAC: {"dhcp": dhcp}}}


def values(path: str, build: Any, kind: str, good: list[Any], bad: list[Any]) -> Iterator[Case]:
    """Return a case for each value of one field."""
    for value in good:
        yield case(f"{kind}: {path} may be {_short(value)}", kind, build(value))
    for value in bad:
        yield case(f"{kind}: {path} can't be {_short(value)}", kind, build(value), path)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 90 else f"{text[:40]}... ({len(text)} characters)"


def ipv6(at: str) -> Iterator[Case]:
    """Return cases about DHCPv6's reservation, below `at`."""
    good = ["2001:db8::10", "fd00::1", "2001:db8:0:1:2:3:4:5", "fd00:1::2:0:3", "64:ff9b::1"]
    bad = [
        *("", "2001:DB8::10", "2001:db8::10/64", "fd00::1%eth0", "fd00:::1", "fd00::1::2", "1:2:3:4:5:6:7", "10.0.0.1"),
        *("fe80::1", "ff02::1", "::1", "::ffff:a00:1", "fd00::00a1", "fd00::12345", "1:2:3:4:5:6:7:8:9"),
    ]
    yield from values(f"{at}.ipv6.address", lambda v: nic(ipv6={"address": v}), "Hardware", good, bad)

    none = f"{at}.ipv6.address", f"{at}.ipv6.address"  # it is neither spelled so, nor anybody's
    yield case("Hardware: no IPv6 address at all", "Hardware", nic(ipv6={"address": "::"}), *none)

    def beside(**more: Any) -> Object:
        return nic(ipv6={"address": "fd00::1"} | more)

    lengths = [1, 64, 128], [0, 129, -1]
    yield from values(f"{at}.ipv6.prefixLength", lambda v: beside(prefixLength=v), "Hardware", *lengths)
    servers = ["fd00::2"], ["10.0.0.1", "ns1", "fe80::1", ""]
    yield from values(f"{at}.ipv6.nameservers[0]", lambda v: beside(nameservers=[v]), "Hardware", *servers)
    yield case("Hardware: IPv6 without an address", "Hardware", nic(ipv6={"prefixLength": 64}), f"{at}.ipv6.address")
    first, second = ({"dhcp": {"ipv6": {"address": address}}} for address in ("fd00::1", "fd00::2"))
    two = {"networkInterfaces": {MAC: first, OTHER: second}}
    yield case("Hardware: two IPv6 addresses", "Hardware", two)
    same = {"networkInterfaces": {MAC: first, OTHER: first}}
    yield case("Hardware: the same IPv6 address twice", "Hardware", same)


def hardware() -> Iterator[Case]:
    at = f"spec.networkInterfaces[{MAC}].dhcp"

    def fields(name: str, build: Any, good: list[Any], bad: list[Any]) -> Iterator[Case]:
        yield from values(f"{at}.{name}", build, "Hardware", good, bad)

    addresses = ["192.168.0.10", "10.0.0.1", "255.255.255.255", "127.0.0.1"]
    odd = ["10.0.0", "10.0.0.256", "10.0.0.1/24", "010.0.0.1", "fd00::1", " 10.0.0.1", "10.0.0.1\n", "host"]
    yield from fields("ip", lambda v: nic(ip=v), addresses, ["", *odd])
    yield from fields("gateway", lambda v: nic(gateway=v), ["10.0.0.1"], ["", "10.0.0.256", "gw", "1.2.3.4.5"])
    masks = ["255.255.255.0", "255.255.255.255", "255.255.254.0", "255.128.0.0", "128.0.0.0", "0.0.0.0"]
    no_masks = ["", "255.0.255.0", "255.255.255.1", "255.255.0.128", "0.255.0.0", "/24", "24", "255.255.255"]
    yield from fields("netmask", lambda v: nic(netmask=v), masks, [*no_masks, "256.0.0.0"])
    names = ["m", "machine-1", "m1.rack.example.org", "M1", "1", "a" * 63, ".".join(["a" * 49] * 5)]
    no_names = ["", "-m", "m-", "m_1", "m..n", "m.", ".m", "a b", "a" * 64, "mäh", 'a"b']
    yield from fields("hostname", lambda v: nic(hostname=v), names, no_names)
    no_vlans = ["", "0", "4095", "4096", "01", "-1", "1,2", "1-5", "a", "10000", "99999999999"]
    yield from fields("vlanId", lambda v: nic(vlanId=v), ["1", "100", "999", "4094"], no_vlans)
    yield from ipv6(at)
    servers = ["10.0.0.1", "ntp.example.org", "ns1", "1.pool"]
    no_servers = ["", "10.0.0.256", "1.2.3", "1234", "a_b", "fd00::1", "-"]
    for field in ("nameservers", "timeservers"):
        yield from fields(f"{field}[1]", lambda v, f=field: nic(**{f: ["10.0.0.1", v]}), servers, no_servers)
    yield from fields("leaseTimeSeconds", lambda v: nic(leaseTimeSeconds=v), [0, 4294967295], [-1, 4294967296])
    yield case("Hardware: too many nameservers", "Hardware", nic(nameservers=["10.0.0.1"] * 33), f"{at}.nameservers")
    yield case("Hardware: a lease time is a number", "Hardware", nic(leaseTimeSeconds="1h"), f"{at}.leaseTimeSeconds")
    yield from gateways(at)
    yield from interfaces()
    yield from rest_of_hardware()


def gateways(at: str) -> Iterator[Case]:
    """Return cases about the gateway in the network of address and netmask."""
    inside = [
        ("192.168.1.10", "255.255.255.0", "192.168.1.1"),
        ("192.168.1.10", "255.255.254.0", "192.168.0.254"),
        ("10.1.2.3", "255.0.0.0", "10.254.0.1"),
        ("10.0.0.10", "255.255.255.254", "10.0.0.11"),
        ("10.0.0.10", "255.255.255.255", "172.31.1.1"),
        ("10.0.0.10", "128.0.0.0", "127.1.1.1"),
        ("10.0.0.10", "0.0.0.0", "200.1.1.1"),
    ]
    outside = [
        ("192.168.1.10", "255.255.255.0", "192.168.2.1"),
        ("192.168.1.10", "255.255.254.0", "192.168.2.1"),
        ("10.1.2.3", "255.0.0.0", "11.1.2.1"),
        ("192.168.1.10", "255.255.255.240", "192.168.1.17"),
        ("192.168.1.10", "255.255.255.254", "192.168.1.12"),
        ("10.0.0.10", "128.0.0.0", "128.1.1.1"),
    ]
    for name, block, blamed in (
        *((f"gateway inside of {block}", block, []) for block in inside),
        *((f"gateway outside of {block}", block, ["gateway"]) for block in outside),
        ("a bad gateway is said once", ("10.0.0.1", "255.0.0.0", "10.0.0.x"), ["gateway"]),
        ("a bad netmask is said once", ("10.0.0.1", "255.0.255.0", "10.0.0.2"), ["netmask"]),
    ):
        spec = nic(**dict(zip(("ip", "netmask", "gateway"), block, strict=True)))
        yield case(f"Hardware: {name}", "Hardware", spec, *(f"{at}.{field}" for field in blamed))
    yield case("Hardware: gateway without a netmask", "Hardware", nic(ip="10.0.0.1", gateway="10.9.0.1"))
    two = f"{at}.ip", f"{at}.hostname"
    yield case("Hardware: two mistakes are two causes", "Hardware", nic(ip="x", hostname="-"), *two)


def interfaces() -> Iterator[Case]:
    at = "spec.networkInterfaces"
    ip = {"dhcp": {"ip": "10.0.0.1"}}
    macs = ["52:54:00:AA:34:56", "52-54-00-12-34-56", "525400123456", "52:54:00:12:34", "52:54:00:12:34:5g", "eth0", ""]
    many: Object = {f"52:54:00:00:00:{number:02x}": {} for number in range(65)}
    off = {"disableDhcp": True, "disableNetboot": True}
    for name, of, blamed in (
        *((f"{mac!r} is no MAC address", {mac: ip}, at) for mac in macs),
        ("one key of two is no MAC address", {MAC: {}, "eth1": {}}, at),
        ("a machine without interfaces", {}, at),
        ("65 interfaces", many, at),
        ("64 interfaces", dict(list(many.items())[1:]), ""),
        ("two addresses", {MAC: ip, OTHER: {"dhcp": {"ip": "10.0.0.2"}}}, ""),
        ("the same address twice", {MAC: ip, OTHER: ip}, ""),
        ("an interface without an address", {MAC: ip, OTHER: {"dhcp": {"hostname": "m"}}}, ""),
        ("an interface without dhcp", {MAC: ip, OTHER: off}, ""),
        ("disableDhcp is true or false", {MAC: ip, OTHER: {"disableDhcp": "yes"}}, f"{at}.{OTHER}.disableDhcp"),
    ):
        yield case(f"Hardware: {name}", "Hardware", {"networkInterfaces": of}, *filter(None, [blamed]))


def rest_of_hardware() -> Iterator[Case]:
    base = nic(ip="10.0.0.1")
    address = {"ip": "10.0.0.2", "netmask": "255.255.255.0", "gateway": "10.0.0.1", "hostname": "m", "vlanId": "7"}
    dhcp = {**address, "nameservers": ["10.0.0.1"], "timeservers": ["ntp.example.org"]}
    full = {
        "networkInterfaces": {MAC: {"dhcp": dhcp, "disableNetboot": True}},
        "ipxe": {"url": "https://boot.example.org/x.ipxe"},
        "osie": {"name": "ubuntu"},
        "kernelParams": ["console=ttyS0", "quiet splash"],
        "instance": {"userdata": "#cloud-config\n", "vendordata": "x"},
        "storageDevices": ["/dev/sda"],
        "bmcRef": {"name": "bmc"},
    }
    yield case("Hardware: everything", "Hardware", full)
    yield case("Hardware: an empty spec", "Hardware", {})
    yield case("Hardware: a spec that is a list", "Hardware", [], "spec")
    yield case("Hardware: empty references", "Hardware", {**base, "osie": {}, "bmcRef": {"name": ""}})

    def fields(name: str, build: Any, good: list[Any], bad: list[Any]) -> Iterator[Case]:
        yield from values(f"spec.{name}", lambda v: {**base, **build(v)}, "Hardware", good, bad)

    yield from fields(
        "osie.name", lambda v: {"osie": {"name": v}}, ["ubuntu-22.04"], ["Ubuntu", "a/b", "-a", "a" * 254]
    )
    yield from fields("bmcRef.name", lambda v: {"bmcRef": {"name": v}}, ["bmc"], ["BMC"])
    scripts = [{"inline": "#!ipxe\nshell"}, {"url": "http://10.0.0.1/x"}, {"inline": "x", "url": "http://h"}]
    yield from fields("ipxe", lambda v: {"ipxe": v}, scripts, [{}, {"inline": ""}, {"url": ""}])
    urls = ["tftp://10.0.0.1/x", "http://", "http:///x", "10.0.0.1/x", "http://h/a b", "javascript:alert(1)"]
    yield from fields("ipxe.url", lambda v: {"ipxe": {"url": v}}, ["https://h:8443/x?y#z"], [*urls, "http://h\n"])
    params = ["a\nb", "quiet && reboot", "||", "a ; b", "# x", "a #b", "\t"]
    yield from fields("kernelParams[0]", lambda v: {"kernelParams": [v]}, ["a;b", "x#y", "k=${net0/mac}"], params)
    paths = ["", "sda", "dev/sda", "\\dev\\sda", "/dev//sda", "/dev/my disk", "/", "/dev/sda\n", "/" + "a" * 255]
    yield from fields("storageDevices[0]", lambda v: {"storageDevices": [v]}, DISKS.split(), PARTITIONS.split() + paths)
    conflict = {"type": "AddressConflict", "status": "True", "reason": "DeclinedByClient", "message": "10.0.0.1"}
    for name, conditions, blamed in (
        ("a condition is stored", [conflict, {"type": "Other", "status": "Unknown"}], []),
        ("a condition given twice", [conflict, conflict], ["status.conditions[1]"]),
        ("a condition that is neither true nor false", [conflict | {"status": "yes"}], ["status.conditions[0].status"]),
        ("a condition of no type", [{"status": "True"}], ["status.conditions[0].type"]),
    ):
        yield update("Hardware", name, base, {}, ["status", {"conditions": conditions}], *blamed)
    last = {"at": "2026-11-30T18:00:00.25Z", "client": "Netboot", "mac": MAC}
    for name, status, blamed in (
        ("power and last boot are stored", {"power": "on", "lastBoot": last}, []),
        ("an unknown power state", {"power": "standby"}, ["status.power"]),
        ("an unknown client", {"lastBoot": last | {"client": "Human"}}, ["status.lastBoot.client"]),
    ):
        yield update("Hardware", name, base, {}, ["status", status], *blamed)


def osies() -> Iterator[Case]:
    url = "http://10.0.0.1/kernel"
    good = [url, "https://h/k?x=1", "file:///srv/osie/kernel", "http://[fd00::1]:80/k", "http://h"]
    bad = ["", "ftp://h/k", "tftp://h/k", "h/k", "/srv/osie/kernel", "http://", "file://", "file://h/k", "http://h/a b"]
    for field, other in (("kernelUrl", "initrdUrl"), ("initrdUrl", "kernelUrl")):
        build = lambda v, f=field, o=other: {f: v, o: url}  # noqa: E731
        yield from values(f"spec.{field}", build, "OSIE", good, [*bad, "HTTP://h/k"])
        yield case(f"OSIE: without {field}", "OSIE", {other: url}, f"spec.{field}")
    long = {"kernelUrl": url, "initrdUrl": "http://h/" + "a" * 3000}
    yield case("OSIE: a URL of 3 KB", "OSIE", long, "spec.initrdUrl")


def templates() -> Iterator[Case]:
    at = "spec.actions[0]"

    def action(**fields: Any) -> Object:
        return {"actions": [{"name": "a", "image": "i"} | fields]}

    good = ["/etc/data:/data:ro", "shared_volume:/data", "/:/host", "v.1-x:/d:ro,Z"]
    good += ["{{ .Params.src }}:/data", "{{ .Params.volume }}"]
    bad = ["/data", "a:b", "/a:b", ":/a", "/a:", "a b:/c", "./a:/b", "a:/b:ro:x", "-a:/b", "_a:/b", "a:/"]
    yield from values(f"{at}.volumes[0]", lambda v: action(volumes=[v]), "Template", good, [*bad, "a:/b:" + "x" * 512])
    yield from values("spec.volumes[0]", lambda v: {**action(), "volumes": [v]}, "Template", good[:1], bad[:2])
    yield case("Template: an empty volume", "Template", action(volumes=[""]), f"{at}.volumes[0]")
    names = ["{{ .Params.name }}", "a{{", "", "a" * 254]
    yield from values(f"{at}.name", lambda v: action(name=v), "Template", ["a", "stream ubuntu image", "ä"], names)
    images = ["quay.io/tinkerbell/actions:1", "r:5000/a@sha256:" + "0" * 64, '{{ index .Params "a b" }}']
    yield from values(f"{at}.image", lambda v: action(image=v), "Template", images, ["", "a b", "a\n"])
    for variables in ({"A": "1"}, {"{{ if eq 1 2 }}A=B{{ end }}": "1"}, {}):
        yield case(f"Template: env {variables}", "Template", action(env=variables))
    for variables in ({"": "1"}, {"A=B": "1"}):
        yield case(f"Template: env {variables}", "Template", action(env=variables), f"{at}.env")
        yield case(f"Template: env of all {variables}", "Template", {**action(), "env": variables}, "spec.env")
    namespaces = {"networkNamespace": "host", "pidNamespace": "host"}
    full = action(cmd="/bin/sh", args=["-c", "{{ .Params.x }}"], **namespaces, timeout=60)
    for name, spec, *blamed in (
        ("env holds strings", action(env={"A": 1}), f"{at}.env.A"),
        ("timeout", action(timeout=0)),
        ("negative timeout", action(timeout=-1), f"{at}.timeout"),
        ("no actions", {"actions": []}, "spec.actions"),
        ("actions are missing", {}, "spec.actions"),
        ("an action without an image", {"actions": [{"name": "a"}]}, f"{at}.image"),
        ("two actions of one name", {"actions": [{"name": n, "image": "i"} for n in "aba"]}, "spec.actions[2]"),
        ("129 actions", {"actions": [{"name": f"a{n}", "image": "i"} for n in range(129)]}, "spec.actions"),
        ("everything", {**full, "volumes": ["/a:/b"], "env": {"A": "{{ .Hardware }}"}}),
    ):
        yield case(f"Template: {name}", "Template", spec, *blamed)


def workflows() -> Iterator[Case]:
    spec = {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}, "templateParams": {"a": "1"}}
    for name, more, *blamed in (
        ("everything", {"timeout": 900}),
        ("a timeout can't be negative", {"timeout": -1}, "spec.timeout"),
        ("params are strings", {"templateParams": {"a": 1}}, "spec.templateParams.a"),
        ("257 params", {"templateParams": {f"k{number}": "v" for number in range(257)}}, "spec.templateParams"),
    ):
        yield case(f"Workflow: {name}", "Workflow", spec | more, *blamed)
    for field in ("hardwareRef", "templateRef"):
        for name, value in ((" {}", {}), (" {'name': ''}", {"name": ""}), (" of a bad name", {"name": "A_b"})):
            yield case(f"Workflow: {field}{name}", "Workflow", {**spec, field: value}, f"spec.{field}.name")
        missing = {key: value for key, value in spec.items() if key != field}
        yield case(f"Workflow: without {field}", "Workflow", missing, f"spec.{field}")
    changes = {
        "hardwareRef": {"hardwareRef": {"name": "other"}},
        "templateRef": {"templateRef": {"name": "other"}},
        "templateParams": {"templateParams": {"a": "2"}},
        "templateParams added": {"templateParams": {"b": "2"}},
        "templateParams removed": {"templateParams": None},
    }
    for state in (None, "Pending", "Scheduled", "Running", "Cancelling", "Succeeded", "Failed", "Canceled"):
        before = {"state": state} if state else {}
        for what, change in changes.items():
            if what.count(" ") and state not in ("Pending", "Running"):
                continue
            blamed = [f"spec.{what.split()[0]}"] if state not in (None, "Pending") else []
            yield update("Workflow", f"{what} while {state}", spec, before, ["update", {"spec": change}], *blamed)
    harmless = [
        {"metadata": {"labels": {"a": "b"}}},
        {"spec": {"timeout": 5}},
        {"spec": {"hardwareRef": {"name": "h"}}},
    ]
    for change in harmless:
        yield update("Workflow", f"{change} while Running", spec, {"state": "Running"}, ["update", change])
    allowed = [("Pending", "Scheduled"), ("Scheduled", "Pending"), ("Running", "Succeeded"), ("Succeeded", "Succeeded")]
    refused = [("Succeeded", "Pending"), ("Failed", "Running"), ("Canceled", "Pending"), ("Succeeded", None)]
    rendered = {"name": "a", "image": "a b", "volumes": ["odd", "y" * 600], "env": {"A=": "x"}, "cmd": "x" * 2000}
    stored = {"actions": [{"id": "1", "rendered": rendered}]}
    twice = {"conditions": [{"type": "Started", "status": "True"}] * 2}
    asked: list[tuple[str, str, Object, *tuple[str, ...]]] = [
        *((f"status {before} to {after}", before, {"state": after, "currentAction": "x"}) for before, after in allowed),
        *((f"status {before} to {after}", before, {"state": after}, "status.state") for before, after in refused),
        ("an unknown state", "Pending", {"state": "Done"}, "status.state"),
        ("a rendered action is stored as it is", "Pending", stored),
        ("a condition given twice", "Pending", twice, "status.conditions[1]"),
    ]
    for name, state, status, *blamed in asked:
        yield update("Workflow", name, spec, {"state": state}, ["status", status], *blamed)

    yield from boot_options(spec)


def boot_options(spec: Object) -> Iterator[Case]:
    """Return cases about the boot options of a Workflow; `spec` is its spec without them."""
    at = "spec.bootOptions"

    def ordered(**options: Any) -> Object:
        return spec | {"bootOptions": options}

    def fields(name: str, build: Any, good: list[Any], bad: list[Any]) -> Iterator[Case]:
        yield from values(f"{at}.{name}", lambda v: ordered(**build(v)), "Workflow", good, bad)

    yield from fields("bootMode", lambda v: {"bootMode": v}, ["netboot", "isoboot"], ["iso", "Netboot", ""])
    yield from fields("toggleAllowNetboot", lambda v: {"toggleAllowNetboot": v}, [True, False], ["yes"])
    urls = ["", "http://h/iso/{{ (index .Hardware.NetworkInterfaces 0) }}/boot.iso", "https://h/x.iso?y", "{{ x }} y"]
    no_urls = ["nfs://h/x.iso", "x.iso", "http://", "http://h/a b", "http://h/{ {x} }", "http://h/" + "a" * 3000]
    yield from fields("isoURL", lambda v: {"bootMode": "isoboot", "isoURL": v}, urls, no_urls)
    off, boot = {"powerAction": "off"}, {"bootDevice": {"device": "pxe", "efiBoot": True}}
    media = {"virtualMediaAction": {"kind": "CD", "mediaURL": "http://h/{{ .Hardware.OSIE.Name }}.iso"}}
    many = [media] * 64
    preparing, post = "custombootConfig.preparingActions", "custombootConfig.postActions"

    def custom(preparing: Any, **more: Any) -> Object:
        return ordered(bootMode="customboot", custombootConfig={"preparingActions": preparing} | more)

    for name, value, *blamed in (
        ("no boot options", ordered()),
        ("customboot", custom([off, media, boot, {"powerAction": "on"}], postActions=[off])),
        ("64 actions before and after", custom(many, postActions=many)),
        ("65 actions before", custom([*many, off]), f"{at}.{preparing}"),
        ("65 actions after", custom([off], postActions=[*many, off]), f"{at}.{post}"),
        ("customboot without actions", ordered(bootMode="customboot"), f"{at}.{preparing}"),
        ("customboot with actions after the end alone", custom([], postActions=[off]), f"{at}.{preparing}"),
        ("actions without customboot", ordered(bootMode="netboot", custombootConfig={"postActions": [off]})),
        ("an empty action", custom([off, {}]), f"{at}.{preparing}[1]"),
        ("two actions in one", custom([off | boot]), f"{at}.{preparing}[0]"),
        (
            "an unknown boot device",
            custom([{"bootDevice": {"device": "http"}}]),
            f"{at}.{preparing}[0].bootDevice.device",
        ),
    ):
        yield case(f"Workflow: {name}", "Workflow", value, *blamed)
    netboot = {"bootOptions": {"bootMode": "netboot"}}
    for state in (None, "Pending", "Running", "Failed"):
        before = {"state": state} if state else {}
        for name, old, change in (
            ("added", {}, netboot),
            ("changed", netboot, {"bootOptions": {"bootMode": "isoboot"}}),
            ("removed", netboot, {"bootOptions": None}),
        ):
            title = f"bootOptions {name} while {state}"
            yield update("Workflow", title, spec | old, before, ["update", {"spec": change}], at)
    same = {"spec": netboot, "metadata": {"labels": {"a": "b"}}}
    yield update("Workflow", "bootOptions stay as they are", spec | netboot, {}, ["update", same])
    for name, boot, *blamed in (
        ("before the first way", {"message": "m"}),
        ("after the first way", {"way": "pxe", "attempt": 1}, "spec.hardwareRef"),
    ):
        change = {"spec": {"hardwareRef": {"name": "other"}}}
        before = {"state": "Pending", "boot": boot}
        yield update("Workflow", f"hardwareRef changed {name}", spec | netboot, before, ["update", change], *blamed)
    yield from boot_progress(spec | netboot)
    for name, value in (("a list", []), ("a text", "done")):
        yield update("Workflow", f"a status that is {name}", spec, {}, ["status", value], "status")


def boot_progress(spec: Object) -> Iterator[Case]:
    """Return cases about `status.boot` of a Workflow; `spec` is its spec with boot options."""
    time = "2026-11-30T18:00:00Z"
    progress = {"way": "pxe", "attempt": 1, "since": time, "message": "m", "lastBoot": time, "done": 0, "medium": "CD"}
    progress["machine"] = "bmc1"
    condition = {"type": "BootPrepared", "status": "False", "reason": "NoDiscover", "message": "no DISCOVER"}
    both = {"boot": progress, "conditions": [condition]}
    yield update("Workflow", "the progress of a boot is stored", spec, {}, ["status", both])
    for name, change, *blamed in (
        ("an unknown way", {"way": "tape"}, "status.boot.way"),
        ("an attempt before the first", {"attempt": 0}, "status.boot.attempt"),
        ("an attempt that is no integer", {"attempt": 1.5}, "status.boot.attempt", "status"),
        ("an attempt above all integers", {"attempt": 1 << 80}, "status.boot.attempt", "status"),
        ("less than no action is done", {"done": -1}, "status.boot.done"),
        ("a time of another form", {"since": "today"}, "status.boot.since"),
        ("a message that is no text", {"message": ["m"]}, "status.boot.message"),
        ("two mistakes", {"attempt": 0, "done": -1}, "status.boot.attempt", "status.boot.done"),
    ):
        status = {"boot": progress | change}
        yield update("Workflow", f"the progress of a boot: {name}", spec, {}, ["status", status], *blamed)


def connection(**fields: Any) -> Object:
    return {"connection": {"host": "192.0.2.50", "insecureTLS": True} | fields}


def machines() -> Iterator[Case]:
    at = "spec.connection"
    secret = {"name": "m", "namespace": "default"}
    rpc = {"consumerURL": "http://h/", "hmac": {"secrets": {"sha256": [secret]}}}
    rpc |= {"request": {"staticHeaders": {"X-A": ["1"]}}, "signature": {"includedPayloadHeaders": ["X-A"]}}
    options = {
        "preferredOrder": ["gofish", "IPMITOOL"],
        "redfish": {"port": 443, "useBasicAuth": False, "systemName": "1"},
        "ipmitool": {"port": 623, "cipherSuite": "3"},
        "intelAMT": {"port": 16993, "hostScheme": "https"},
        "rpc": rpc,
        "homeassistant": {"switchEntityID": "switch.m", "powerOperationDelaySeconds": 5},
    }
    full = connection(port=443, authSecretRef=secret, caSecretRef=secret, providerOptions=options)
    yield case("Machine: everything", "Machine", full)
    yield case("Machine: without a connection", "Machine", {}, at)
    yield case("Machine: without a host", "Machine", {"connection": {"insecureTLS": True}}, f"{at}.host")
    yield case("Machine: without insecureTLS", "Machine", {"connection": {"host": "h"}}, f"{at}.insecureTLS")
    prints = ["ab" * 32, ":".join(["AB"] * 32)], ["", "ab" * 31, "ab" * 33, "xy" * 32, ":" + "ab" * 32]
    yield from values(
        f"{at}.certificateFingerprint", lambda v: connection(certificateFingerprint=v), "Machine", *prints
    )
    hosts = ["192.0.2.1", "bmc.example.org", "2001:db8::1"], ["", "h" * 254]
    yield from values(f"{at}.host", lambda v: connection(host=v), "Machine", *hosts)
    for field, build, good, bad in (
        ("preferredOrder[0]", lambda v: {"preferredOrder": [v]}, ["dell", "INTELAMT"], ["redfish", "", "dell "]),
        ("redfish.port", lambda v: {"redfish": {"port": v}}, [0, 65535], [-1, 65536]),
        ("ipmitool.cipherSuite", lambda v: {"ipmitool": {"cipherSuite": v}}, ["17"], ["1" * 254]),
        ("intelAMT.hostScheme", lambda v: {"intelAMT": {"hostScheme": v}}, ["http"], ["ftp"]),
        ("rpc.consumerURL", lambda v: {"rpc": {"consumerURL": v}}, ["http://h/"], ["h" * 2049]),
    ):
        path = f"{at}.providerOptions.{field}"
        yield from values(path, lambda v, b=build: connection(providerOptions=b(v)), "Machine", good, bad)
    condition = {
        "type": "Contactable",
        "status": "False",
        "reason": "BmcBusy",
        "lastUpdateTime": "2026-11-30T18:00:00Z",
    }
    yield update("Machine", "a status is stored", connection(), {}, ["status", {"conditions": [condition]}])
    odd: Object = {"powerState": "standby"}
    yield update("Machine", "an unknown power state", connection(), {}, ["status", odd], "status.powerState")


def actions(kind: str, at: str, build: Any) -> Iterator[Case]:
    """Return cases about one action; `build` makes the spec of a Job or Task with it."""

    def fields(name: str, action: Any, good: list[Any], bad: list[Any]) -> Iterator[Case]:
        yield from values(f"{at}.{name}", lambda v: build(action(v)), kind, good, bad)

    powers = ["on", "off", "soft", "status", "cycle", "reset"]
    yield from fields("powerAction", lambda v: {"powerAction": v}, powers, ["hard", "ON", ""])
    on = f"{at}.powerAction", f"{at}.powerAction"
    yield case(f"{kind}: on without quotes is a boolean", kind, build({"powerAction": True}), *on)
    devices = ["pxe", "disk", "bios", "cdrom", "safe"], ["floppy", "http", "PXE", ""]
    yield from fields("bootDevice.device", lambda v: {"bootDevice": {"device": v}}, *devices)
    modes = {"persistent": True, "efiBoot": True}
    yield case(f"{kind}: a persistent boot device", kind, build({"bootDevice": {"device": "disk"} | modes}))
    yield case(f"{kind}: no boot device", kind, build({"bootDevice": modes}), f"{at}.bootDevice.device")
    once = "oneTimeBootDeviceAction"
    yield from fields(f"{once}.device[0]", lambda v: {once: {"device": [v, "pxe"], "efiBoot": True}}, *devices)
    yield case(f"{kind}: an empty list of boot devices", kind, build({once: {"device": []}}), f"{at}.{once}.device")
    yield case(f"{kind}: no list of boot devices", kind, build({once: {}}), f"{at}.{once}.device")
    urls = ["", "http://192.0.2.1:7080/iso/52-54-00-00-00-01/boot.iso", "https://h/x?y", "http://h/{{ .Name }}.iso"]
    bad = ["nfs://h/x.iso", "//h/x.iso", "http://", "http://h/a b", "x.iso", "http://h/" + "a" * 3000]
    media = "virtualMediaAction"
    yield from fields(f"{media}.mediaURL", lambda v: {media: {"kind": "CD", "mediaURL": v}}, urls, bad)
    yield case(f"{kind}: a medium is ejected", kind, build({media: {"kind": "CD"}}))
    yield case(f"{kind}: a medium of no kind", kind, build({media: {"mediaURL": ""}}), f"{at}.{media}.kind")
    yield case(f"{kind}: no action", kind, build({}), at)
    yield case(f"{kind}: two actions", kind, build({"powerAction": "on", media: {"kind": "CD"}}), at)


def jobs() -> Iterator[Case]:
    reference = {"name": "m", "namespace": "default"}
    on = {"powerAction": "on"}

    def job(*tasks: Object) -> Object:
        return {"machineRef": reference, "tasks": list(tasks)}

    yield from actions("Job", "spec.tasks[0]", job)
    yield case("Job: several tasks", "Job", job({"powerAction": "off"}, {"bootDevice": {"device": "pxe"}}, on))
    yield case("Job: 64 tasks", "Job", job(*[on] * 64))
    yield case("Job: 65 tasks", "Job", job(*[on] * 65), "spec.tasks")
    yield case("Job: no tasks", "Job", job(), "spec.tasks")
    yield case("Job: tasks are missing", "Job", {"machineRef": reference}, "spec.tasks")
    yield case("Job: no Machine", "Job", {"tasks": [on]}, "spec.machineRef")
    for field in reference:
        missing = {key: value for key, value in reference.items() if key != field}
        yield case(
            f"Job: without the Machine's {field}", "Job", {**job(on), "machineRef": missing}, f"spec.machineRef.{field}"
        )


def tasks() -> Iterator[Case]:
    yield from actions("Task", "spec.task", lambda action: connection() | {"task": action})
    yield case("Task: without a connection", "Task", {"task": {"powerAction": "status"}})
    yield case(
        "Task: a connection without a host",
        "Task",
        {"task": {"powerAction": "status"}, "connection": {"insecureTLS": True}},
        "spec.connection.host",
    )
    yield case("Task: no task", "Task", connection(), "spec.task")
    ended = {"stage": "off", "conditions": [{"type": "Failed", "status": "True", "message": "no answer"}]}
    yield update("Task", "a status is stored", {"task": {"powerAction": "cycle"}}, {}, ["status", ended])


def update(kind: str, name: str, spec: Object, status: Object, question: list[Any], *fields: str) -> Case:
    steps = [["create", obj(kind, spec)], *([["status", status]] if status else []), question]
    return {"name": f"{kind}: {name}", "kind": kind, "steps": steps, "fields": list(fields)}


# --- The recorder -------------------------------------------------------------------------------------------------


def digest(definition: Object) -> str:
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


def install(api: Peer) -> dict[str, str]:
    accepted = {}
    for definition in definitions():
        name = definition["metadata"]["name"]
        query = "?fieldManager=record&force=true&fieldValidation=Strict"
        answer = api.ask("PATCH", f"{DEFINITIONS}/{name}{query}", definition, "application/apply-patch+yaml").json
        if answer["kind"] == "Status":
            raise SystemExit(f"{name} is refused: {answer['message']}")
        accepted[name] = digest(definition)
    return accepted


def play(api: Peer, case: Case) -> Object:
    """Return the compared part of the answer to the last step, and restore the state."""
    path = collection(case["kind"])
    alone = len(case["steps"]) == 1
    answer: Object = {}
    for verb, body in case["steps"]:
        if verb == "create":
            answer = api.ask("POST", path + ("?dryRun=All" if alone else ""), body).json
        else:
            target = f"{path}/case/status" if verb == "status" else f"{path}/case"
            patch = {"status": body} if verb == "status" else body
            answer = api.ask("PATCH", target, patch, "application/merge-patch+json").json
    if not alone:
        api.ask("DELETE", f"{path}/case")
    if answer["kind"] != "Status":
        return {"code": 200}
    kept = {key: answer[key] for key in ("code", "reason", "message")}
    return kept | {"causes": answer.get("details", {}).get("causes", [])}


def by_kind(cases: list[Case]) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {kind: [] for kind in PLURALS}
    for case in cases:
        found[case["kind"]].append(case)
    return found


def record(kubeconfig: Path) -> None:
    api = Peer(kubeconfig)
    accepted = install(api)
    version = api.ask("GET", "/version").json["gitVersion"]
    cases = [*hardware(), *osies(), *templates(), *workflows(), *machines(), *jobs(), *tasks()]
    wrong = []
    for case in cases:
        case["answer"] = play(api, case)
        # The schema walk writes keys of maps with dots, CEL in brackets.
        blamed = sorted(cause["field"] for cause in _causes(case))
        if blamed not in (
            sorted(case["fields"]),
            sorted(f.replace("[5", ".5").replace("].", ".") for f in case["fields"]),
        ):
            wrong.append(f"{case['name']}: {json.dumps(case['answer'])}")
    if wrong:
        raise SystemExit("\n".join(wrong))
    if len({case["name"] for case in cases}) != len(cases):
        raise SystemExit("two cases have one name")
    server = {"version": version, "accepted": accepted}
    recordings.write(Path(__file__).with_name("answers"), {"server": server} | by_kind(cases))


def _causes(case: Case) -> list[Object]:
    """Return the causes, without the remark that some rules were skipped because of the others."""
    causes: list[Object] = case["answer"].get("causes", [])
    return [cause for cause in causes if cause["field"] != "<nil>"]
