"""Expressions of v1alpha1: rewritten where the data moved, untouched elsewhere, refused where it is gone."""

from __future__ import annotations

import pytest

from tink.convert.v1alpha1.expressions import rewrite

FIRST = "(keys .Hardware.NetworkInterfaces | sortAlpha | first)"
ROOTED = FIRST.replace(".Hardware", "$.Hardware")
NIC = f"(index .Hardware.NetworkInterfaces {FIRST})"
JSON_NIC = f"(index .hardware.spec.networkInterfaces {FIRST})"


@pytest.mark.parametrize(
    "text",
    [
        "no expression",
        "{{ index .Hardware.Disks 0 }}",
        "{{ .Hardware.Disks | first }}",
        "{{ .hardware.metadata.name }} {{ .hardware.metadata.labels.x }}",
        "{{ .hardware.spec.bmcRef.name }}",
        "{{ range .Hardware.Disks }}{{ .name }}{{ end }}",
        "{{ (dict `a` 1).a }}",
        "{{ len .Hardware.Disks }}{{/* c */}}",
        "{{ `{{ .x }}` }}",
    ],
)
def test_what_means_the_same_stays_as_it_was_written(text: str) -> None:
    result = rewrite(text)
    assert (result.text, result.notices, result.errors) == (text, [], [])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{{.device_1}}", "{{.Params.device_1}}"),
        ("{{-  $.device_1  -}}", "{{-  $.Params.device_1  -}}"),
        ("{{ .Params }}", "{{ .Params.Params }}"),
        ("{{ .a | upper | printf `%s-%s` .b }}", "{{ .Params.a | upper | printf `%s-%s` .Params.b }}"),
        ("{{ (.a) }}{{ printf (.b) }}", "{{ (.Params.a) }}{{ printf (.Params.b) }}"),
        (
            "{{ with .a }}{{ . }}{{ $.b }}{{ .c }}{{ end }}",
            "{{ with .Params.a }}{{ . }}{{ $.Params.b }}{{ .c }}{{ end }}",
        ),
        (
            "{{ if .a }}{{ .b }}{{ else if .c }}{{ .d }}{{ end }}",
            "{{ if .Params.a }}{{ .Params.b }}{{ else if .Params.c }}{{ .Params.d }}{{ end }}",
        ),
        (
            "{{ range .l }}{{ .a }}{{ else }}{{ .b }}{{ end }}",
            "{{ range .Params.l }}{{ .a }}{{ else }}{{ .Params.b }}{{ end }}",
        ),
        ('{{ index . "a-b" }}{{ index $ "c" }}', '{{ index .Params "a-b" }}{{ index $.Params "c" }}'),
        ("{{ $x := .a }}{{ $x }}{{ $x = .b }}", "{{ $x := .Params.a }}{{ $x }}{{ $x = .Params.b }}"),
        ("{{ .Hardware.UserData }}", "{{ .Hardware.Instance.Userdata }}"),
        ("{{ $h := .Hardware }}{{ $h.VendorData }}", "{{ $h := .Hardware }}{{ $h.Instance.Vendordata }}"),
        ("{{ with .Hardware }}{{ .VendorData }}{{ end }}", "{{ with .Hardware }}{{ .Instance.Vendordata }}{{ end }}"),
        ("{{ .hardware.spec.userData }}", "{{ .hardware.spec.instance.userdata }}"),
        ("{{ (index .hardware.spec.disks 1).device }}", "{{ (index .hardware.spec.storageDevices 1) }}"),
        (
            "{{ range .hardware.spec.disks }}{{ .device }}{{ end }}",
            "{{ range .hardware.spec.storageDevices }}{{ . }}{{ end }}",
        ),
        (
            "{{ range $d := .hardware.disks }}{{ $d.device }}{{ end }}",
            "{{ range $d := .hardware.storageDevices }}{{ $d }}{{ end }}",
        ),
        (
            "{{ .Hardware.Metadata.Instance.ID }}",
            '{{ (index .hardware.metadata.annotations "tinkerbell.org/instance-id") }}',
        ),
        ("{{ netmaskToCIDR .m }}", "{{ netmaskToPrefixLength .Params.m }}"),
        (
            '{{ define "t" }}{{ .a }}{{ end }}{{ template "t" . }}',
            '{{ define "t" }}{{ .Params.a }}{{ end }}{{ template "t" . }}',
        ),
        (
            '{{ define "t" }}{{ .a }}{{ end }}{{ template "t" .x }}',
            '{{ define "t" }}{{ .a }}{{ end }}{{ template "t" .Params.x }}',
        ),
        (
            '{{ block "t" .Hardware }}{{ .UserData }}{{ end }}',
            '{{ block "t" .Hardware }}{{ .Instance.Userdata }}{{ end }}',
        ),
        ("{{ if .Hardware.Interfaces }}a{{ end }}", "{{ if .Hardware.NetworkInterfaces }}a{{ end }}"),
        ("{{ if .a }}x{{ else }}{{ .b }}{{ end }}", "{{ if .Params.a }}x{{ else }}{{ .Params.b }}{{ end }}"),
        (
            "{{ with .a }}{{ . }}{{ else }}{{ .b }}{{ end }}",
            "{{ with .Params.a }}{{ . }}{{ else }}{{ .Params.b }}{{ end }}",
        ),
        (
            "{{ range .a }}{{ . }}{{ else }}{{ .b }}{{ end }}",
            "{{ range .Params.a }}{{ . }}{{ else }}{{ .Params.b }}{{ end }}",
        ),
        ("{{ len .Hardware.Interfaces }}", "{{ len .Hardware.NetworkInterfaces }}"),
    ],
)
def test_moved_data_is_named_where_it_is_now(old: str, new: str) -> None:
    result = rewrite(old)
    assert (result.text, result.notices, result.errors) == (new, [], [])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{{ (index .Hardware.Interfaces 0).DHCP.IP.Address }}", f"{{{{ {NIC}.DHCP.IP }}}}"),
        ("{{ (index .Hardware.Interfaces 0).DHCP.IP.Netmask }}", f"{{{{ {NIC}.DHCP.Netmask }}}}"),
        ("{{ (index .Hardware.Interfaces 0).DHCP.IP.Gateway }}", f"{{{{ {NIC}.DHCP.Gateway }}}}"),
        ("{{ (index .Hardware.Interfaces 0).DHCP.TimeServers }}", f"{{{{ {NIC}.DHCP.Timeservers }}}}"),
        ("{{ (index .Hardware.Interfaces 0).DHCP.LeaseTime }}", f"{{{{ {NIC}.DHCP.LeaseTimeSeconds }}}}"),
        ("{{ (index .Hardware.Interfaces 0).DisableDHCP }}", f"{{{{ {NIC}.DisableDHCP }}}}"),
        ("{{ (index .Hardware.Interfaces 0).DHCP.MAC | upper }}", f"{{{{ {FIRST} | upper }}}}"),
        ("{{ (index .hardware.spec.interfaces 0).dhcp.vlan_id }}", f"{{{{ {JSON_NIC}.dhcp.vlanId }}}}"),
        ("{{ (index .hardware.spec.interfaces 0).dhcp.ip.address }}", f"{{{{ {JSON_NIC}.dhcp.ip }}}}"),
        ("{{ (index .hardware.spec.interfaces 0).dhcp.mac }}", f"{{{{ {FIRST} }}}}"),
        (
            "{{ $n := index .Hardware.Interfaces 0 }}{{ $d := $n.DHCP }}{{ $d.IP.Address }} {{ $n.DHCP.MAC }}",
            f"{{{{ $n := {NIC[1:-1]} }}}}{{{{ $d := $n.DHCP }}}}{{{{ $d.IP }}}} {{{{ {FIRST} }}}}",
        ),
        (
            "{{ with index .Hardware.Interfaces 0 }}{{ .DHCP.Hostname }}{{ .DHCP.MAC }}{{ end }}",
            f"{{{{ with {NIC[1:-1]} }}}}{{{{ .DHCP.Hostname }}}}{{{{ {ROOTED} }}}}{{{{ end }}}}",
        ),
        ("{{ .hardware.metadata.instance.hostname }}", f"{{{{ {NIC}.DHCP.Hostname }}}}"),
        (
            "{{ range .Hardware.Interfaces }}{{ .DHCP.IP.Address }} {{ end }}",
            "{{ range .Hardware.NetworkInterfaces }}{{ .DHCP.IP }} {{ end }}",
        ),
    ],
)
def test_interfaces_have_another_order_which_is_told(old: str, new: str) -> None:
    result = rewrite(old)
    assert (result.text, result.errors) == (new, [])
    assert len(result.notices) == 1
    assert "address" in result.notices[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{{ contains "a" .x }}', '{{ contains .Params.x "a" }}'),
        ('{{ hasPrefix   (printf "%s" .y)  .x }}', '{{ hasPrefix   .Params.x  (printf "%s" .Params.y) }}'),
        ('{{ .x | hasSuffix "a" }}', '{{ hasSuffix (.Params.x) "a" }}'),
        ('{{ .x | lower | contains "a" | not }}', '{{ contains (.Params.x | lower) "a" | not }}'),
        (
            "{{ if and (.x | contains .y) .z }}{{ end }}",
            "{{ if and (contains (.Params.x) .Params.y) .Params.z }}{{ end }}",
        ),
        (
            '{{ contains (.x | contains "a" | print) .y }}',
            '{{ contains .Params.y (contains (.Params.x) "a" | print) }}',
        ),
        ("{{ $v := .x | contains `a` }}", "{{ $v := contains (.Params.x) `a` }}"),
    ],
)
def test_part_and_text_are_exchanged_and_told(old: str, new: str) -> None:
    result = rewrite(old)
    assert (result.text, result.errors) == (new, [])
    assert len(result.notices) == 1
    assert "exchanged" in result.notices[0]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{{ .references.a.b }}", ".references.a.b: v1alpha2's templates see no other object"),
        ("{{ .Hardware.Metadata.Facility.PlanSlug }}", ".Hardware.Metadata.Facility.PlanSlug: it was metadata"),
        ("{{ .hardware.spec.metadata.instance.storage }}", "it was metadata"),
        ("{{ .hardware.spec.tinkVersion }}", "no place"),
        (
            "{{ (index .Hardware.Interfaces 0).DHCP.Arch }}",
            "(index .Hardware.Interfaces 0).DHCP.Arch: v1alpha2's Hardware",
        ),
        ("{{ (index .Hardware.Interfaces 0).Netboot.AllowPXE }}", "no place"),
        ("{{ (index .Hardware.Interfaces 1).DHCP.MAC }}", "only index 0"),
        ("{{ (index .Hardware.Interfaces .n).DHCP.MAC }}", "only index 0"),
        ("{{ range .Hardware.Interfaces }}{{ .DHCP.MAC }}{{ end }}", ".DHCP.MAC: v1alpha2's Hardware has no place"),
        ("{{ range $i, $n := .Hardware.Interfaces }}{{ end }}", "no numbers"),
        ("{{ .Hardware.Interfaces }}", "was a list"),
        ("{{ first .Hardware.Interfaces }}", "was a list"),
        ("{{ .Hardware.Interfaces | toJson }}", "was a list"),
        ("{{ . }}", "name the fields"),
        ("{{ toJson . }}", "name the fields"),
        ("{{ toJson $ }}", "name the fields"),
        ("{{ .Hardware }}", "name the fields"),
        ("{{ .hardware | toJson }}", "name the fields"),
        ('{{ index . "Hardware" }}', "name the fields"),
        ("{{ index . .x }}", "name the fields"),
        ("{{ (index .Hardware.Interfaces 0).DHCP.IP }}", "name the fields"),
        ("{{ if (index .Hardware.Interfaces 0).DHCP }}{{ end }}", "name the fields"),
        ("{{ now }}", "now: v1alpha2 has no such function"),
        ("{{ toYaml .x }}", "toYaml: v1alpha2 has no such function"),
        ("{{ contains .x }}", "takes a part and a text"),
        ('{{ define "t" }}{{ end }}{{ template "t" . }}{{ template "t" .Hardware }}', "different data"),
        ("{{ if }}", "missing value for if"),
        ("{{ $x }}", "undefined variable"),
    ],
)
def test_what_is_gone_is_an_error_that_names_it(text: str, error: str) -> None:
    result = rewrite(text)
    assert error in " ".join(result.errors)
