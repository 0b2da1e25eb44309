"""What a real kube-apiserver says to good and bad Hardware, OSIEs, Templates and Workflows, recorded for the tests.

    python -m tests.record resources

installs the CustomResourceDefinitions on a kube-apiserver, plays every case of the table below and writes `answers`
beside this file: the cases by their kinds, what the server said to each, and digests of the definitions that it
accepted. Nothing of this runs in the tests; they read the files.

A case is a list of steps, the last of which is the question; `fields` are those that the answer has to blame, none for
what must be taken. One mistake must give one cause: the recorder refuses to write a table that says otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import recordings
from tests.peer import DEFINITIONS, Peer
from tink.api.crds import generate

GROUP = "tinkerbell.org"
PLURALS = {"Hardware": "hardware", "OSIE": "osies", "Template": "templates", "Workflow": "workflows"}
MAC, OTHER = "52:54:00:12:34:56", "52:54:00:12:34:57"

Object = dict[str, Any]
Case = dict[str, Any]


# --- The table ----------------------------------------------------------------------------------------------------


def obj(kind: str, spec: Any) -> Object:
    return {"apiVersion": f"{GROUP}/v1alpha2", "kind": kind, "metadata": {"name": "case"}, "spec": spec}


def case(name: str, kind: str, spec: Any, *fields: str) -> Case:
    return {"name": name, "kind": kind, "steps": [["create", obj(kind, spec)]], "fields": list(fields)}


def nic(**dhcp: Any) -> Object:
    return {"networkInterfaces": {MAC: {"dhcp": dhcp}}}


def values(path: str, build: Any, kind: str, good: list[Any], bad: list[Any]) -> Iterator[Case]:
    """A case for each value of one field."""
    for value in good:
        yield case(f"{kind}: {path} may be {_short(value)}", kind, build(value))
    for value in bad:
        yield case(f"{kind}: {path} can't be {_short(value)}", kind, build(value), path)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 90 else f"{text[:40]}... ({len(text)} characters)"


def ipv6(at: str) -> Iterator[Case]:
    """Of DHCPv6's reservation, below `at`."""
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
    yield case("Hardware: the same IPv6 address twice", "Hardware", same, "spec.networkInterfaces")


def hardware() -> Iterator[Case]:
    at = f"spec.networkInterfaces[{MAC}].dhcp"
    addresses_good = ["192.168.0.10", "10.0.0.1", "255.255.255.255", "127.0.0.1"]
    addresses_bad = [
        "",
        "10.0.0",
        "10.0.0.256",
        "10.0.0.1/24",
        "010.0.0.1",
        "fd00::1",
        " 10.0.0.1",
        "10.0.0.1\n",
        "host",
    ]
    yield from values(f"{at}.ip", lambda v: nic(ip=v), "Hardware", addresses_good, addresses_bad)
    yield from values(
        f"{at}.gateway", lambda v: nic(gateway=v), "Hardware", ["10.0.0.1"], ["", "10.0.0.256", "gw", "1.2.3.4.5"]
    )
    masks_good = ["255.255.255.0", "255.255.255.255", "255.255.254.0", "255.128.0.0", "128.0.0.0", "0.0.0.0"]
    masks_bad = [
        "",
        "255.0.255.0",
        "255.255.255.1",
        "255.255.0.128",
        "0.255.0.0",
        "/24",
        "24",
        "255.255.255",
        "256.0.0.0",
    ]
    yield from values(f"{at}.netmask", lambda v: nic(netmask=v), "Hardware", masks_good, masks_bad)
    names_good = ["m", "machine-1", "m1.rack.example.org", "M1", "1", "a" * 63, ".".join(["a" * 49] * 5)]
    names_bad = ["", "-m", "m-", "m_1", "m..n", "m.", ".m", "a b", "a" * 64, "mäh", 'a"b']
    yield from values(f"{at}.hostname", lambda v: nic(hostname=v), "Hardware", names_good, names_bad)
    vlans_bad = ["", "0", "4095", "4096", "01", "-1", "1,2", "1-5", "a", "10000", "99999999999"]
    yield from values(f"{at}.vlanId", lambda v: nic(vlanId=v), "Hardware", ["1", "100", "999", "4094"], vlans_bad)
    yield from ipv6(at)
    for field in ("nameservers", "timeservers"):
        good, bad = (
            ["10.0.0.1", "ntp.example.org", "ns1", "1.pool"],
            ["", "10.0.0.256", "1.2.3", "1234", "a_b", "fd00::1", "-"],
        )
        yield from values(f"{at}.{field}[1]", lambda v, f=field: nic(**{f: ["10.0.0.1", v]}), "Hardware", good, bad)
    yield from values(
        f"{at}.leaseTimeSeconds", lambda v: nic(leaseTimeSeconds=v), "Hardware", [0, 4294967295], [-1, 4294967296]
    )
    yield case("Hardware: too many nameservers", "Hardware", nic(nameservers=["10.0.0.1"] * 33), f"{at}.nameservers")
    yield case("Hardware: a lease time is a number", "Hardware", nic(leaseTimeSeconds="1h"), f"{at}.leaseTimeSeconds")

    def block(ip: str, netmask: str, gateway: str) -> Object:
        return nic(ip=ip, netmask=netmask, gateway=gateway)

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
    for addresses in inside:
        yield case(f"Hardware: gateway inside of {addresses}", "Hardware", block(*addresses))
    for addresses in outside:
        yield case(f"Hardware: gateway outside of {addresses}", "Hardware", block(*addresses), f"{at}.gateway")
    yield case(
        "Hardware: a bad gateway is said once", "Hardware", block("10.0.0.1", "255.0.0.0", "10.0.0.x"), f"{at}.gateway"
    )
    yield case(
        "Hardware: a bad netmask is said once",
        "Hardware",
        block("10.0.0.1", "255.0.255.0", "10.0.0.2"),
        f"{at}.netmask",
    )
    yield case("Hardware: gateway without a netmask", "Hardware", nic(ip="10.0.0.1", gateway="10.9.0.1"))
    yield case(
        "Hardware: two mistakes are two causes", "Hardware", nic(ip="x", hostname="-"), f"{at}.ip", f"{at}.hostname"
    )

    for mac in (
        "52:54:00:AA:34:56",
        "52-54-00-12-34-56",
        "525400123456",
        "52:54:00:12:34",
        "52:54:00:12:34:5g",
        "eth0",
        "",
    ):
        interfaces = {"networkInterfaces": {mac: {"dhcp": {"ip": "10.0.0.1"}}}}
        yield case(f"Hardware: {mac!r} is no MAC address", "Hardware", interfaces, "spec.networkInterfaces")
    yield case(
        "Hardware: one key of two is no MAC address",
        "Hardware",
        {"networkInterfaces": {MAC: {}, "eth1": {}}},
        "spec.networkInterfaces",
    )
    yield case(
        "Hardware: a machine without interfaces", "Hardware", {"networkInterfaces": {}}, "spec.networkInterfaces"
    )
    many = {f"52:54:00:00:00:{number:02x}": {} for number in range(65)}
    yield case("Hardware: 65 interfaces", "Hardware", {"networkInterfaces": many}, "spec.networkInterfaces")
    enough = dict(list(many.items())[1:])
    yield case("Hardware: 64 interfaces", "Hardware", {"networkInterfaces": enough})

    def two(first: Any, second: Any) -> Object:
        return {"networkInterfaces": {MAC: first, OTHER: second}}

    ip = {"dhcp": {"ip": "10.0.0.1"}}
    yield case("Hardware: two addresses", "Hardware", two(ip, {"dhcp": {"ip": "10.0.0.2"}}))
    yield case("Hardware: the same address twice", "Hardware", two(ip, ip), "spec.networkInterfaces")
    yield case("Hardware: an interface without an address", "Hardware", two(ip, {"dhcp": {"hostname": "m"}}))
    yield case(
        "Hardware: an interface without dhcp", "Hardware", two(ip, {"disableDhcp": True, "disableNetboot": True})
    )
    yield case(
        "Hardware: disableDhcp is true or false",
        "Hardware",
        two(ip, {"disableDhcp": "yes"}),
        f"spec.networkInterfaces.{OTHER}.disableDhcp",
    )
    yield from rest_of_hardware()


def rest_of_hardware() -> Iterator[Case]:
    base = nic(ip="10.0.0.1")
    yield case(
        "Hardware: everything",
        "Hardware",
        {
            "networkInterfaces": {
                MAC: {
                    "dhcp": {
                        "ip": "10.0.0.2",
                        "netmask": "255.255.255.0",
                        "gateway": "10.0.0.1",
                        "hostname": "m",
                        "vlanId": "7",
                        "nameservers": ["10.0.0.1"],
                        "timeservers": ["ntp.example.org"],
                    },
                    "disableNetboot": True,
                }
            },
            "ipxe": {"url": "https://boot.example.org/x.ipxe"},
            "osie": {"name": "ubuntu"},
            "kernelParams": ["console=ttyS0", "quiet splash"],
            "instance": {"userdata": "#cloud-config\n", "vendordata": "x"},
            "storageDevices": ["/dev/sda"],
            "bmcRef": {"name": "bmc"},
        },
    )
    yield case("Hardware: an empty spec", "Hardware", {})
    yield case("Hardware: a spec that is a list", "Hardware", [], "spec")
    yield case("Hardware: empty references", "Hardware", {**base, "osie": {}, "bmcRef": {"name": ""}})
    yield from values(
        "spec.osie.name",
        lambda v: {**base, "osie": {"name": v}},
        "Hardware",
        ["ubuntu-22.04"],
        ["Ubuntu", "a/b", "-a", "a" * 254],
    )
    yield from values("spec.bmcRef.name", lambda v: {**base, "bmcRef": {"name": v}}, "Hardware", ["bmc"], ["BMC"])
    scripts_bad: list[Any] = [{}, {"inline": ""}, {"url": ""}]
    scripts_good: list[Any] = [
        {"inline": "#!ipxe\nshell"},
        {"url": "http://10.0.0.1/x"},
        {"inline": "x", "url": "http://h"},
    ]
    yield from values("spec.ipxe", lambda v: {**base, "ipxe": v}, "Hardware", scripts_good, scripts_bad)
    urls = [
        "tftp://10.0.0.1/x",
        "http://",
        "http:///x",
        "10.0.0.1/x",
        "http://h/a b",
        "javascript:alert(1)",
        "http://h\n",
    ]
    yield from values(
        "spec.ipxe.url", lambda v: {**base, "ipxe": {"url": v}}, "Hardware", ["https://h:8443/x?y#z"], urls
    )
    params = ["a\nb", "quiet && reboot", "||", "a ; b", "# x", "a #b", "\t"]
    yield from values(
        "spec.kernelParams[0]",
        lambda v: {**base, "kernelParams": [v]},
        "Hardware",
        ["a;b", "x#y", "k=${net0/mac}"],
        params,
    )
    disks = [
        "/dev/sda",
        "/dev/vdb",
        "/dev/sdaa",
        "/dev/nvme0n1",
        "/dev/nvme12n3",
        "/dev/mmcblk0",
        "/dev/md127",
        "/dev/xvda",
        "/dev/mmcblk0boot0",
        "/dev/disk/by-id/nvme-Samsung_SSD_980_S64ENF0R",
        "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4",
        "/dev/disk/by-path/pci-0000:00:1f.2-ata-1",
        "/dev/mapper/mpatha",
        "/dev/vg0/root",
        "/dev/cciss/c0d0",
        "/dev/disk/by-id/ata-sda1",
        "/dev/sda/",
        "/data/disk1.img",
    ]
    partitions = [
        "/dev/sda1",
        "/dev/vdb12",
        "/dev/xvda1",
        "/dev/hda3",
        "/dev/nvme0n1p1",
        "/dev/mmcblk0p1",
        "/dev/md0p2",
        "/dev/nbd0p1",
        "/dev/loop0p1",
        "/dev/cciss/c0d0p1",
        "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4-part1",
        "/dev/disk/by-path/pci-0000:00:1f.2-ata-1-part12",
        "/dev/disk/by-partuuid/0fc63daf-8483-4772-8e79-3d69d8477de4",
        "/dev/disk/by-partlabel/root",
        "/dev/mapper/mpatha-part1",
        "/dev/sda1/",
    ]
    paths = ["", "sda", "dev/sda", "\\dev\\sda", "/dev//sda", "/dev/my disk", "/", "/dev/sda\n", "/" + "a" * 255]
    yield from values(
        "spec.storageDevices[0]", lambda v: {**base, "storageDevices": [v]}, "Hardware", disks, partitions + paths
    )
    conflict = {"type": "AddressConflict", "status": "True", "reason": "DeclinedByClient", "message": "10.0.0.1"}
    for name, conditions, fields in (
        ("a condition is stored", [conflict, {"type": "Other", "status": "Unknown"}], []),
        ("a condition given twice", [conflict, conflict], ["status.conditions[1]"]),
        ("a condition that is neither true nor false", [conflict | {"status": "yes"}], ["status.conditions[0].status"]),
        ("a condition of no type", [{"status": "True"}], ["status.conditions[0].type"]),
    ):
        yield update("Hardware", name, base, {}, ["status", {"conditions": conditions}], *fields)


def osies() -> Iterator[Case]:
    url = "http://10.0.0.1/kernel"
    good = [url, "https://h/k?x=1", "file:///srv/osie/kernel", "http://[fd00::1]:80/k", "http://h"]
    bad = [
        "",
        "ftp://h/k",
        "tftp://h/k",
        "h/k",
        "/srv/osie/kernel",
        "http://",
        "file://",
        "file://h/k",
        "http://h/a b",
        "HTTP://h/k",
    ]
    for field, other in (("kernelUrl", "initrdUrl"), ("initrdUrl", "kernelUrl")):
        yield from values(f"spec.{field}", lambda v, f=field, o=other: {f: v, o: url}, "OSIE", good, bad)
        yield case(f"OSIE: without {field}", "OSIE", {other: url}, f"spec.{field}")
    yield case(
        "OSIE: a URL of 3 KB", "OSIE", {"kernelUrl": url, "initrdUrl": "http://h/" + "a" * 3000}, "spec.initrdUrl"
    )


def templates() -> Iterator[Case]:
    def action(**fields: Any) -> Object:
        return {"actions": [{"name": "a", "image": "i"} | fields]}

    def volume(text: str) -> Object:
        return action(volumes=[text])

    at = "spec.actions[0]"
    good = [
        "/etc/data:/data:ro",
        "shared_volume:/data",
        "/:/host",
        "v.1-x:/d:ro,Z",
        "{{ .Params.src }}:/data",
        "{{ .Params.volume }}",
    ]
    bad = [
        "",
        "/data",
        "a:b",
        "/a:b",
        ":/a",
        "/a:",
        "a b:/c",
        "./a:/b",
        "a:/b:ro:x",
        "-a:/b",
        "_a:/b",
        "a:/",
        "a:/b:" + "x" * 512,
    ]
    yield from values(f"{at}.volumes[0]", volume, "Template", good, [v for v in bad if v])
    yield from values("spec.volumes[0]", lambda v: {**action(), "volumes": [v]}, "Template", good[:1], bad[1:3])
    yield case("Template: an empty volume", "Template", volume(""), f"{at}.volumes[0]")
    names = ["{{ .Params.name }}", "a{{"]
    yield from values(
        f"{at}.name", lambda v: action(name=v), "Template", ["a", "stream ubuntu image", "ä"], [*names, "", "a" * 254]
    )
    images = ["quay.io/tinkerbell/actions:1", "r:5000/a@sha256:" + "0" * 64, '{{ index .Params "a b" }}']
    yield from values(f"{at}.image", lambda v: action(image=v), "Template", images, ["", "a b", "a\n"])
    for variables in ({"A": "1"}, {"{{ if eq 1 2 }}A=B{{ end }}": "1"}, {}):
        yield case(f"Template: env {variables}", "Template", action(env=variables))
    for variables in ({"": "1"}, {"A=B": "1"}):
        yield case(f"Template: env {variables}", "Template", action(env=variables), f"{at}.env")
        yield case(f"Template: env of all {variables}", "Template", {**action(), "env": variables}, "spec.env")
    yield case("Template: env holds strings", "Template", action(env={"A": 1}), f"{at}.env.A")
    yield case("Template: timeout", "Template", action(timeout=0))
    yield case("Template: negative timeout", "Template", action(timeout=-1), f"{at}.timeout")
    yield case("Template: no actions", "Template", {"actions": []}, "spec.actions")
    yield case("Template: actions are missing", "Template", {}, "spec.actions")
    yield case("Template: an action without an image", "Template", {"actions": [{"name": "a"}]}, f"{at}.image")
    twice = {"actions": [{"name": name, "image": "i"} for name in ("a", "b", "a")]}
    yield case("Template: two actions of one name", "Template", twice, "spec.actions[2]")
    many = {"actions": [{"name": f"a{number}", "image": "i"} for number in range(129)]}
    yield case("Template: 129 actions", "Template", many, "spec.actions")
    namespaces = {"networkNamespace": "host", "pidNamespace": "host"}
    full = {"cmd": "/bin/sh", "args": ["-c", "{{ .Params.x }}"], **namespaces, "timeout": 60}
    yield case(
        "Template: everything", "Template", {**action(**full), "volumes": ["/a:/b"], "env": {"A": "{{ .Hardware }}"}}
    )


def workflows() -> Iterator[Case]:
    spec = {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}, "templateParams": {"a": "1"}}
    yield case("Workflow: everything", "Workflow", {**spec, "timeout": 900})
    yield case("Workflow: a timeout can't be negative", "Workflow", {**spec, "timeout": -1}, "spec.timeout")
    yield case(
        "Workflow: params are strings", "Workflow", {**spec, "templateParams": {"a": 1}}, "spec.templateParams.a"
    )
    many = {**spec, "templateParams": {f"k{number}": "v" for number in range(257)}}
    yield case("Workflow: 257 params", "Workflow", many, "spec.templateParams")
    for field in ("hardwareRef", "templateRef"):
        for value in ({}, {"name": ""}):
            yield case(f"Workflow: {field} {value}", "Workflow", {**spec, field: value}, f"spec.{field}.name")
        yield case(
            f"Workflow: {field} of a bad name", "Workflow", {**spec, field: {"name": "A_b"}}, f"spec.{field}.name"
        )
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
        for what, change in changes.items():
            if what.count(" ") and state not in ("Pending", "Running"):
                continue
            fields = [f"spec.{what.split()[0]}"] if state not in (None, "Pending") else []
            yield update(
                "Workflow",
                f"{what} while {state}",
                spec,
                {"state": state} if state else {},
                ["update", {"spec": change}],
                *fields,
            )
    for change in (
        {"metadata": {"labels": {"a": "b"}}},
        {"spec": {"timeout": 5}},
        {"spec": {"hardwareRef": {"name": "h"}}},
    ):
        yield update("Workflow", f"{change} while Running", spec, {"state": "Running"}, ["update", change])
    for before, after in (
        ("Pending", "Scheduled"),
        ("Scheduled", "Pending"),
        ("Running", "Succeeded"),
        ("Succeeded", "Succeeded"),
    ):
        yield update(
            "Workflow",
            f"status {before} to {after}",
            spec,
            {"state": before},
            ["status", {"state": after, "currentAction": "x"}],
        )
    for before, after in (
        ("Succeeded", "Pending"),
        ("Failed", "Running"),
        ("Canceled", "Pending"),
        ("Succeeded", None),
    ):
        yield update(
            "Workflow",
            f"status {before} to {after}",
            spec,
            {"state": before},
            ["status", {"state": after}],
            "status.state",
        )
    yield update(
        "Workflow", "an unknown state", spec, {"state": "Pending"}, ["status", {"state": "Done"}], "status.state"
    )
    rendered = {"name": "a", "image": "a b", "volumes": ["odd", "y" * 600], "env": {"A=": "x"}, "cmd": "x" * 2000}
    yield update(
        "Workflow",
        "a rendered action is stored as it is",
        spec,
        {"state": "Pending"},
        ["status", {"actions": [{"id": "1", "rendered": rendered}]}],
    )
    twice = {"conditions": [{"type": "Started", "status": "True"}] * 2}
    yield update(
        "Workflow", "a condition given twice", spec, {"state": "Pending"}, ["status", twice], "status.conditions[1]"
    )


def update(kind: str, name: str, spec: Object, status: Object, question: list[Any], *fields: str) -> Case:
    steps = [["create", obj(kind, spec)], *([["status", status]] if status else []), question]
    return {"name": f"{kind}: {name}", "kind": kind, "steps": steps, "fields": list(fields)}


# --- The recorder -------------------------------------------------------------------------------------------------


def digest(definition: Object) -> str:
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


def install(api: Peer) -> dict[str, str]:
    accepted = {}
    for definition in generate():
        name = definition["metadata"]["name"]
        query = "?fieldManager=record&force=true&fieldValidation=Strict"
        answer = api.ask("PATCH", f"{DEFINITIONS}/{name}{query}", definition, "application/apply-patch+yaml").json
        if answer["kind"] == "Status":
            raise SystemExit(f"{name} is refused: {answer['message']}")
        accepted[name] = digest(definition)
    return accepted


def play(api: Peer, case: Case) -> Object:
    """The answer to the last step, as much as is compared; then everything is as before."""
    path = f"/apis/{GROUP}/v1alpha2/namespaces/default/{PLURALS[case['kind']]}"
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
    cases = [*hardware(), *osies(), *templates(), *workflows()]
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
    """The causes, without the remark that some rules were not looked at because of the others."""
    causes: list[Object] = case["answer"].get("causes", [])
    return [cause for cause in causes if cause["field"] != "<nil>"]
