"""Scripts of iPXE, GRUB and U-Boot: the golden texts, and what no value of a Hardware can do to them."""

from __future__ import annotations

import re
import shlex
import struct
import zlib
from bisect import bisect
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ipxe import grub, uboot
from ipxe.grub import GrubScripts
from ipxe.medium import AREA_BYTES
from ipxe.scripts import BootSettings, EdgeOrigin, LogsTo, MediumKind, ScriptError, Scripts
from ipxe.uboot import ExtlinuxScripts, UBootScripts, machine_of, script_image
from tests.support import objects
from tests.support.objects import MAC
from tink.api.annotations import AGENT_ID_ANNOTATION
from tink.api.v1alpha2 import Hardware

SETTINGS = BootSettings()
SCRIPTS = Scripts(SETTINGS)
HERE = EdgeOrigin("10.0.0.1")
OVER_TFTP = EdgeOrigin("10.0.0.1", tftp=True)
OTHERS = (
    EdgeOrigin("10.0.0.2", http_port=8080, grpc_port=42113),
    EdgeOrigin("10.0.0.3", http_port=7080, grpc_port=50000),
)
HOOKOS = "tink_worker_image=10.0.0.1:5000/tink-agent:v0.25.0"
DHCP = {
    "netmask": "255.255.255.0",
    "gateway": "10.0.0.254",
    "hostname": "m1",
    "nameservers": ["10.0.0.53", "10.0.0.54"],
    "timeservers": ["10.0.0.123"],
}


def hardware(name="m1", **fields) -> Hardware:
    return Hardware.model_validate(objects.hardware(name, **{"ip": None, "osie": {"name": "lab"}, **fields}))


def tagged(**fields) -> Hardware:
    """On VLAN 50."""
    return hardware(ip="10.0.0.5", dhcp={"vlanId": "50"}, **fields)


def addressed(*, osie="lab", annotations=None, params=None, **dhcp) -> Hardware:
    """With a whole reservation; an empty value leaves a field of it out."""
    chosen = {name: value for name, value in {"ip": "10.0.0.5", **DHCP, **dhcp}.items() if value}
    return hardware(dhcp=chosen, osie={"name": osie}, annotations=annotations, kernelParams=params or [])


def compile_text(machine: Hardware, settings: BootSettings = SETTINGS) -> str:
    return Scripts(settings).compile(MAC, machine, HERE).text


def kernel_words(text: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith("kernel "))
    return line.split()


def words(osie: str = "", machine: Hardware | None = None, **boot) -> list[str]:
    scripts = Scripts(BootSettings(**boot))
    return kernel_words(scripts.compile(MAC, machine or addressed(osie="hook", vlanId="50"), HERE, osie).text)


def test_boot_script_is_the_golden_text():
    settings = BootSettings(insecure_registries=("10.0.0.1:5000",))
    script = Scripts(settings).compile(MAC, hardware(kernelParams=["quiet", "loglevel=3"]), HERE)
    assert script.text == Path(__file__).with_name("golden").joinpath("boot.ipxe").read_text()
    assert (script.what, script.osie) == ("OSIE default/lab", ("default", "lab"))


def test_machine_is_told_the_address_of_ours_that_it_reached():
    for address in ("10.0.0.1", "192.168.7.1"):
        text = SCRIPTS.compile(MAC, hardware(), EdgeOrigin(address)).text
        assert f"kernel http://{address}:7080/osie/lab/kernel grpc_authority={address}:42113 " in text
        assert set(re.findall(r"(?<!smbios/)\b\d+\.\d+\.\d+\.\d+", text)) == {address}


def test_machine_goes_on_with_another_edge_and_its_kernel_is_told_of_the_server_there_and_of_all_others():
    text = SCRIPTS.compile(MAC, hardware(), EdgeOrigin("10.0.0.1", others=OTHERS)).text
    kernels = re.findall(r"^kernel http://(\S+)/osie/lab/kernel .* && goto initrd \|\|$", text, re.MULTILINE)
    initrds = re.findall(r"^initrd --name initrd http://(\S+)/osie/lab/initrd && goto start \|\|$", text, re.MULTILINE)
    assert kernels == initrds == ["10.0.0.1:7080", "10.0.0.2:8080", "10.0.0.3:7080"]
    assert re.findall(r"^kernel .* grpc_authority=(\S+) .* tinkerbell_servers=(\S+)", text, re.MULTILINE) == [
        ("10.0.0.1:42113", "10.0.0.2:42113,10.0.0.3:50000"),
        ("10.0.0.2:42113", "10.0.0.1:42113,10.0.0.3:50000"),
        ("10.0.0.3:50000", "10.0.0.1:42113,10.0.0.2:42113"),
    ]
    chained = re.findall(
        r"^chain --replace (\S+)", SCRIPTS.autoexec(MAC, EdgeOrigin("10.0.0.1", others=OTHERS[:1])), re.M
    )
    servers = (
        "http://10.0.0.1:7080/ipxe/script",
        "tftp://10.0.0.1",
        "http://10.0.0.2:8080/ipxe/script",
        "tftp://10.0.0.2",
    )
    assert chained == [f"{server}/{MAC}/auto.ipxe" for server in servers]


def test_agents_that_have_one_server_for_all_are_told_of_no_others():
    origin = EdgeOrigin("10.0.0.1", others=(EdgeOrigin("10.0.0.2", http_port=7080),))
    assert "tinkerbell_servers" not in SCRIPTS.compile(MAC, hardware(), origin).text
    settings = BootSettings(grpc_authority="10.0.0.250:42113")
    origin = replace(origin, others=(EdgeOrigin("10.0.0.2", http_port=7080, grpc_port=42113),))
    text = Scripts(settings).compile(MAC, hardware(), origin).text
    assert "tinkerbell_servers" not in text
    assert set(re.findall(r"grpc_authority=(\S+)", text)) == {"10.0.0.250:42113"}


def test_authority_of_the_server_is_at_other_edges_too():
    settings = BootSettings(tls_ca=b"ca", tinkerbell_tls=True)
    origin = EdgeOrigin("10.0.0.1", others=(EdgeOrigin("10.0.0.2", http_port=8080, grpc_port=1),))
    text = Scripts(settings).compile(MAC, hardware(), origin).text
    edges = re.findall(r"tinkerbell_tls_ca=http://(\S+)/agent/ca.pem#sha256=\S+ tinkerbell_edges=(\S+)", text)
    assert edges == [("10.0.0.1:7080", "10.0.0.2:8080"), ("10.0.0.2:8080", "10.0.0.1:7080")]


def test_other_edges_are_left_out_where_the_command_line_has_no_room_for_them():
    found = kernel_words(compile_text(hardware(kernelParams=["x"])))[2:-4]
    assert found[-1] == "x"
    long = hardware(kernelParams=["x" * (2047 - len(" ".join(found)) + 1)])
    assert "10.0.0.2" not in SCRIPTS.compile(MAC, long, EdgeOrigin("10.0.0.1", others=OTHERS)).text


def test_ipxe_without_http_gets_everything_by_tftp():
    text = SCRIPTS.compile(MAC, hardware(), OVER_TFTP).text
    assert f"kernel tftp://10.0.0.1/{MAC}/osie/lab/kernel grpc_authority=10.0.0.1:42113 " in text
    assert f"initrd --name initrd tftp://10.0.0.1/{MAC}/osie/lab/initrd && goto start ||" in text
    assert f"imgfetch --name why tftp://10.0.0.1/{MAC}/why.ipxe || goto anew" in text
    # The OSIE speaks HTTP, whatever iPXE does.
    assert "http://" not in text.replace("tinkedge_sign=http://10.0.0.1:7080/sign/up", "")


def test_parameters_of_the_hardware_come_last_and_so_win_after_those_of_the_site_and_of_the_osie():
    found = kernel_words(compile_text(hardware(kernelParams=["console=ttyS1", "a=1 b=2"])))
    assert found[-7:] == ["console=ttyS1", "a=1", "b=2", "&&", "goto", "initrd", "||"]
    assert found.index("console=ttyS1") > found.index("console=ttyS0,115200")
    found = words("b=2 c=2", addressed(params=["c=3", "asset=${asset}"]), kernel_parameters=("a=1", "b=1", "m=${mac}"))
    begin = found.index("console=ttyS0,115200") + 1
    assert found[begin : begin + 7] == ["a=1", "b=1", "m=${mac}", "b=2", "c=2", "c=3", "asset=${asset}"]


@pytest.mark.parametrize(
    ("boot", "logged"),
    [
        ({}, None),
        ({"own_registry": lambda: True}, "10.0.0.1:7080"),
        ({"insecure_registries": ("10.0.0.1:5000",), "own_registry": lambda: True}, "10.0.0.1:5000,10.0.0.1:7080"),
    ],
)
def test_edge_with_images_is_one_of_the_insecure_registries_at_the_address_that_the_machine_reached(boot, logged):
    found = [word.partition("=")[2] for word in words(**boot) if word.startswith("insecure_registries=")]
    assert found == ([logged] if logged else [])


def test_every_label_that_is_jumped_to_exists_and_every_failure_ends_with_status_1_for_the_next_boot_device():
    url = {"ipxe": {"url": "http://h/s"}}
    texts = [compile_text(hardware(**spec)) for spec in ({}, url)]
    texts += [compile_text(tagged(**spec)) for spec in ({}, url)]
    texts += [SCRIPTS.autoexec(MAC, HERE), SCRIPTS.reason(MAC, "no")]
    inline = compile_text(tagged(ipxe={"inline": "#!ipxe"}))  # which ends as the operator wishes
    for text in (*texts, inline):
        lines = text.splitlines()
        labels = [line for line in lines if line.startswith(":")]
        assert len(labels) == len(set(labels)), "iPXE jumps to the first label of that name"
        targets = {found[found.index("goto") + 1] for line in lines if "goto" in (found := line.split())}
        assert targets <= {label.removeprefix(":") for label in labels}
        if text is not inline:
            assert (text[:7], text[-8:], "\r" in text) == ("#!ipxe\n", "\nexit 1\n", False)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        *(
            ({"kernelParams": ["quiet", parameter]}, "spec.kernelParams[1] has ")
            for parameter in (
                "a\nshell",
                "a\rshell",
                "a && shell",
                "a || shell",
                "; shell",
                "#rest",
                "a\x00",
                "a\x85shell",
            )
        ),
        ({"kernelParams": ["x" * 2000]}, "spec.kernelParams makes a kernel command line of"),
        ({"kernelParams": ['a="b']}, "spec.kernelParams has a quotation mark without"),
        ({"osie": None}, "spec.osie.name is not set"),
        ({"osie": {"name": ""}}, "spec.osie.name is not set"),
        ({"ipxe": {"url": "http://h/a b"}}, "spec.ipxe.url has spaces"),
        ({"ipxe": {"url": "http://h/a || shell"}}, "spec.ipxe.url has the word"),
        ({"ipxe": {"inline": "a\x00"}}, "spec.ipxe.inline has a NUL"),
        ({"ipxe": {"inline": "a", "url": "http://h"}}, "spec.ipxe has both"),
        ({"annotations": {AGENT_ID_ANNOTATION: "a b"}}, "metadata.annotations[tinkerbell.org/agent-id] must"),
    ],
)
def test_hardware_that_makes_no_script_names_its_field(spec, problem):
    with pytest.raises(ScriptError) as caught:
        compile_text(hardware(**spec))
    assert str(caught.value).startswith(f"Hardware default/m1: {problem}")
    assert ("of which Linux reads 2047" in str(caught.value)) is ("command line" in problem)


def test_osie_name_cannot_leave_its_place_in_the_url():
    text = compile_text(hardware(osie={"name": "../x y\n||"}))
    assert kernel_words(text)[1] == "http://10.0.0.1:7080/osie/..%2Fx%20y%0A%7C%7C/kernel"


def test_inline_script_is_run_as_it_is():
    inline = "#!ipxe\r\necho ${net0/mac} && shell\r\n"
    script = SCRIPTS.compile(MAC, hardware(osie=None, ipxe={"inline": inline}), HERE)
    assert script.text.startswith("#!ipxe\n")
    assert script.text.endswith("\n#!ipxe\necho ${net0/mac} && shell\n")
    assert (script.what, script.osie) == ("spec.ipxe.inline", None)


def test_script_url_is_fetched_with_retries_then_run():
    script = SCRIPTS.compile(MAC, hardware(osie=None, ipxe={"url": "https://h/${mac}.ipxe"}), HERE)
    assert "imgfetch --name script https://h/${mac}.ipxe && goto run ||\n" in script.text
    assert "\n:run\nimgexec script && exit 0 ||\n" in script.text
    assert script.what == "spec.ipxe.url"


def test_reason_is_shown_never_obeyed():
    text = SCRIPTS.reason(MAC, "no || shell && x\nshell ; #c ${secret} -n\r\n\n")
    shown = [line for line in text.splitlines() if "shell" in line]
    assert shown == ["echo no '||' shell '&&' x", "echo shell ';' '#c' $ {secret} '-n'"]


def test_machine_without_a_hardware_boots_the_default_osie_under_its_mac():
    script = SCRIPTS.unregistered(MAC, ("rescue", "any"), HERE)
    words = kernel_words(script.text)
    assert words[1] == "http://10.0.0.1:7080/osie/any/kernel"
    assert f"worker_id={MAC}" in words
    assert (script.what, script.osie) == ("OSIE rescue/any", ("rescue", "any"))


# --- VLANs ---


def test_machine_on_a_vlan_goes_there_once_and_tells_its_osie():
    text = compile_text(tagged())
    lines = text.splitlines()
    # HookOS finds it behind a space only: it is not the first word of the command line.
    assert kernel_words(text)[2:5] == ["grpc_authority=10.0.0.1:42113", "tinkerbell_tls=false", "vlan_id=50"]
    create = lines.index("isset ${${vlan-port}/mac} || vcreate --tag 50 ${vlan-trunk} || goto vlan_missing")
    assert lines.index("isset ${vlan-ready} && goto vlan_ready ||") < create
    assert lines.index("set vlan-ready 50") < lines.index("chain --replace ${${vlan-port}/filename} ||")
    assert lines.index(":vlan_ready") < lines.index(":kernel")
    assert "iseq ${attempt} 2 && goto vlan_failed ||" in lines


def test_machine_without_a_vlan_hears_of_none_nor_of_that_of_its_other_interface():
    other = {MAC: {}, "52:54:00:00:00:02": {"dhcp": {"ip": "10.0.0.5", "vlanId": "50"}}}
    for spec in ({}, {"ipxe": {"inline": "#!ipxe"}}, {"ipxe": {"url": "http://h"}}, {"interfaces": other}):
        assert "vlan" not in compile_text(hardware(**spec))


@pytest.mark.parametrize("ipxe", [{"inline": "#!ipxe\nshell"}, {"url": "http://h/s"}])
def test_overrides_run_inside_the_vlan_too(ipxe):
    text = compile_text(tagged(ipxe=ipxe))
    own = max(text.rfind("shell"), text.rfind("http://h"))
    assert text.index("vcreate --tag 50") < text.index("\n:vlan_ready\n") < own


def test_autoexec_takes_the_network_card_that_booted_and_its_lease():
    lines = SCRIPTS.autoexec(MAC, HERE).splitlines()
    cached = lines.index("isset ${net${number}/ip} && ifopen net${number} && goto leased ||")
    assert lines[cached - 1] == f"iseq ${{net${{number}}/mac}} {MAC} || goto look_on"
    asked = lines.index("ifconf --configurator dhcp net${number} && goto leased ||")
    assert lines[asked - 1] == f"iseq ${{net${{number}}/mac}} {MAC} || goto ask_on"
    chained = [line for line in lines if line.startswith("chain")]
    assert chained == [
        f"chain --replace http://10.0.0.1:7080/ipxe/script/{MAC}/auto.ipxe ||",
        f"chain --replace tftp://10.0.0.1/{MAC}/auto.ipxe ||",
    ]
    assert "iseq ${attempt} 5 && goto failed ||" in lines


# --- what agents need beside ---

WITH_TOKEN = BootSettings(token=lambda mac: f"v1.{mac.replace(':', '')}.1.x")


def sent(machine: Hardware, settings: BootSettings = WITH_TOKEN) -> str:
    scripts = Scripts(settings)
    return scripts.to_send(MAC, scripts.compile(MAC, machine, HERE))


def test_agents_token_is_set_before_anything_else_and_named_on_the_command_line():
    text = sent(hardware())
    assert text.splitlines()[:2] == ["#!ipxe", "set tinkerbell-token v1.525400000001.1.x"]
    assert "tinkerbell_token=${tinkerbell-token}" in kernel_words(text)
    assert "v1.525400000001" not in compile_text(hardware(), WITH_TOKEN), "what is kept has no token in it"
    for ipxe in ({"inline": "#!ipxe\nshell"}, {"url": "http://192.0.2.1/own.ipxe"}):  # which can name it
        assert sent(hardware(ipxe=ipxe)).splitlines()[1] == "set tinkerbell-token v1.525400000001.1.x"


def test_without_tokens_or_a_hardware_nothing_is_said_of_them():
    text = sent(hardware(), SETTINGS)
    assert text == compile_text(hardware())
    assert "token" not in text + Scripts(WITH_TOKEN).unregistered(MAC, ("default", "any"), HERE).text


def test_agents_are_told_what_to_trust_the_server_by_and_the_operators_name_of_it():
    boot = BootSettings(grpc_authority="tink.example.org:443", tinkerbell_tls=True, tls_ca=b"pem", http_port=81)
    found = kernel_words(compile_text(hardware(), boot))
    # printf pem | sha256sum
    pin = "http://10.0.0.1:81/agent/ca.pem#sha256=f0aeace912cf19dc1c6fffd41de6e395daeb5462f1221945706bd0674c3005eb"
    assert {"grpc_authority=tink.example.org:443", "tinkerbell_tls=true", f"tinkerbell_tls_ca={pin}"} <= set(found)
    assert found[1] == "http://10.0.0.1:81/osie/lab/kernel"


def test_agents_are_told_what_to_trust_registries_by_at_any_edge():
    origin = EdgeOrigin("10.0.0.1", others=(EdgeOrigin("10.0.0.2", http_port=8080, grpc_port=1),))
    text = Scripts(BootSettings(registry_authorities=b"pem")).compile(MAC, hardware(), origin).text
    pin = "/agent/registries.json#sha256=f0aeace912cf19dc1c6fffd41de6e395daeb5462f1221945706bd0674c3005eb"
    assert f" tinkerbell_registry_ca=http://10.0.0.1:7080{pin} tinkerbell_edges=10.0.0.2:8080 " in text
    assert "tinkerbell_registry_ca" not in compile_text(hardware())


def test_osie_is_told_the_signed_url_of_its_metadata_where_machines_get_one():
    settings = BootSettings(http_port=80, metadata_token=lambda mac: f"M1.{mac.replace(':', '')}.0.x")
    scripts = Scripts(settings)
    script = scripts.compile(MAC, hardware(), HERE)
    text = scripts.to_send(MAC, script)
    assert text.splitlines()[:2] == ["#!ipxe", "set tinkerbell-metadata-token M1.525400000001.0.x"]
    url = f"http://{HERE.address}:80/machine/${{tinkerbell-metadata-token}}"
    assert f"tinkerbell_metadata={url}" in kernel_words(text)
    assert "M1.525400000001" not in script.text, "what is kept has no token in it"
    assert "metadata" not in scripts.unregistered(MAC, ("default", "any"), HERE).text
    both = Scripts(replace(settings, token=lambda _mac: "v1.t"))
    lines = both.to_send(MAC, both.compile(MAC, hardware(), HERE)).splitlines()
    assert lines[1:3] == ["set tinkerbell-token v1.t", "set tinkerbell-metadata-token M1.525400000001.0.x"]


def test_room_for_the_token_is_kept_on_the_command_line():
    def machine(length: int) -> Hardware:
        return hardware(kernelParams=["x" * length])

    too_long = bisect(range(2048), False, lo=1700, key=lambda length: not _compiles(machine(length), SETTINGS))
    length = too_long - 1
    assert _compiles(machine(length), SETTINGS)
    assert not _compiles(machine(length + 1), SETTINGS)
    assert not _compiles(machine(length), WITH_TOKEN)
    assert _compiles(machine(length - 160), WITH_TOKEN)


def _compiles(machine: Hardware, settings: BootSettings) -> bool:
    try:
        compile_text(machine, settings)
    except ScriptError:
        return False
    return True


@pytest.mark.parametrize("tftp", [False, True])
def test_ipv6_address_stands_in_brackets_wherever_it_has_a_port_or_is_in_a_url(tftp):
    scripts = Scripts(BootSettings(kernel_parameters=("a={{.IP}}", "b={{.Address}}")))
    origin = EdgeOrigin("fd00::1", tftp=tftp, others=(EdgeOrigin("fd00::2", grpc_port=42114),))
    machine = hardware(ip="10.0.0.5", dhcp={"vlanId": "7", "ipv6": {"address": "fd00::5"}})
    text = scripts.compile(MAC, machine, origin).text + scripts.autoexec(MAC, origin)
    bare = re.sub(r"\[fd00::[12]\](:\d+)?", "", text)
    assert set(re.findall(r"\S*fd00::\S*", bare)) == {"a=fd00::5", "b=fd00::1"}
    assert "grpc_authority=[fd00::1]:42113" in text
    assert ("--configurator ipv6" in text, "--configurator dhcp" in text) == (True, False)
    assert "isset ${net${number}/ip6}" in text


# --- kernel parameters: HookOS' own words among them ---


def test_quoted_word_may_go_over_two_parameters_of_the_hardware():
    assert words(machine=addressed(params=['dyndbg="file', 'x +p"']))[-7:-4] == ['dyndbg="file', "x", '+p"']


def test_what_is_known_of_the_machine_is_filled_in():
    found = words("ipam={{.Ipam}} id={{.Namespace}}/{{.Name}}@{{.Address}} ${asset}", kernel_parameters=("m={{.MAC}}",))
    ipam = "52-54-00-00-00-01:50:10.0.0.5:255.255.255.0:10.0.0.254:m1:10.0.0.53,10.0.0.54::10.0.0.123"
    assert {f"ipam={ipam}", "id=default/m1@10.0.0.1", "${asset}", f"m={MAC}"} <= set(found)


@pytest.mark.parametrize(
    ("osie", "problem"),
    [
        ("x={{.Hardware}}", r"has {{\.Hardware}}, and there are {{\.MAC}}, "),
        ("x={{ .MAC }}", r"has x={{: write {{\.MAC}}, in one word"),
        ("a && reboot", "has the word &&, which ends a command in iPXE"),
        ("a\nreboot", "has a line break"),
        ('x="a b', "has a quotation mark without its pair"),
        ("docker_registry quiet", "has the word docker_registry without a value, at which HookOS fails: write docker_"),
        ("a=" + "x" * 3000, "has more than 2047 characters"),
    ],
)
def test_annotation_that_makes_no_words_names_osie_and_annotation(osie, problem):
    with pytest.raises(
        ScriptError, match=rf"OSIE default/hook: metadata\.annotations\[.*kernel-parameters\] {problem}"
    ):
        words(osie)


def test_machine_without_what_is_to_be_filled_in_is_told_so():
    with pytest.raises(ScriptError, match=r"has {{\.Ipam}}, and the machine has none"):
        words("ipam={{.Ipam}}", hardware(osie={"name": "hook"}))
    with pytest.raises(ScriptError, match=r"--kernel-parameters has {{\.Name}}, and the machine has none"):
        Scripts(BootSettings(kernel_parameters=("n={{.Name}}",))).unregistered(MAC, ("default", "hook"), HERE)


def test_agent_is_called_as_the_hardware_says_and_the_card_stays_the_card():
    found = words(machine=addressed(annotations={AGENT_ID_ANNOTATION: "rack1-u7"}))
    assert {"worker_id=rack1-u7", f"hw_addr={MAC}"} <= set(found)


@pytest.mark.parametrize(
    ("logs", "osie", "logged"),
    [
        (LogsTo.NOBODY, HOOKOS, False),
        (LogsTo.HOOKOS, HOOKOS, True),
        (LogsTo.HOOKOS, "docker_registry=10.0.0.1", True),
        (LogsTo.HOOKOS, "quiet", False),
        (LogsTo.ALL, "quiet", True),
    ],
)
def test_only_machines_whose_lines_are_received_are_told_to_send_them(logs, osie, logged):
    assert ("syslog_host=10.0.0.1" in words(osie, logs=logs)) is logged


# --- boot media ---


def script(kind: MediumKind, machine: Hardware | None, origin: EdgeOrigin = HERE) -> list[str]:
    return Scripts(BootSettings()).medium(MAC, machine, origin, kind).splitlines()


def test_medium_asks_dhcp_on_the_card_of_the_machine_and_goes_to_its_script():
    lines = script(MediumKind.BOOT, addressed())
    assert lines[0] == "#!ipxe"
    assert f"iseq ${{net${{number}}/mac}} {MAC} && goto card ||" in lines
    assert "ifopen ${medium-port} && ifconf --configurator dhcp ${medium-port} || goto again" in lines
    assert f"chain --replace http://10.0.0.1:7080/ipxe/script/{MAC}/auto.ipxe?medium=boot ||" in lines
    assert not any("10.0.0.5" in line for line in lines)
    assert lines[-1] == "exit 1"
    assert any("52:54:00:00:00:01 (no Hardware)" in line for line in script(MediumKind.BOOT, None))


def test_static_medium_has_the_address_and_asks_nobody():
    lines = script(MediumKind.STATIC, addressed())
    assert [line for line in lines if line.startswith("set ${medium-port}/")] == [
        "set ${medium-port}/ip 10.0.0.5",
        "set ${medium-port}/netmask 255.255.255.0",
        "set ${medium-port}/gateway 10.0.0.254",
        "set ${medium-port}/dns 10.0.0.53",
    ]
    assert not any("dhcp" in line for line in lines)
    assert "set tinkedge-anew yes" in lines, "nor does the machine's script, where the edge is gone"
    assert any(line.endswith("?medium=static ||") for line in lines)


def test_nameserver_is_the_first_that_has_an_ipv4_address():
    assert "set ${medium-port}/dns 10.0.0.54" in script(
        MediumKind.STATIC, addressed(nameservers=["ns1.example.org", "10.0.0.54"])
    )
    assert not any("/dns" in line for line in script(MediumKind.STATIC, addressed(nameservers=[])))


@pytest.mark.parametrize("kind", MediumKind)
def test_medium_goes_into_the_vlan_first_and_the_script_knows_so(kind):
    lines = script(kind, addressed(vlanId="50"))
    assert "isset ${${medium-port}/mac} || vcreate --tag 50 ${medium-card} || goto no_vlan" in lines
    assert lines.index("set vlan-ready 50") < next(at for at, line in enumerate(lines) if line.startswith("chain "))


def test_machine_without_an_address_has_no_static_medium():
    with pytest.raises(ScriptError, match=r"default/m1: spec.networkInterfaces\[52:.*\].dhcp needs ip and netmask"):
        script(MediumKind.STATIC, addressed(ip=None))
    with pytest.raises(ScriptError, match="has no Hardware"):
        script(MediumKind.STATIC, None)


def test_other_edges_come_after_this_one_and_all_fits_the_area():
    others = tuple(EdgeOrigin(f"10.0.{n}.1", http_port=7080) for n in range(1, 5))
    lines = script(MediumKind.STATIC, addressed(vlanId="4094"), EdgeOrigin("10.0.0.1", others=others))
    chains = [line.split("/")[2] for line in lines if line.startswith("chain ")]
    assert chains == ["10.0.0.1:7080", "10.0.1.1:7080", "10.0.2.1:7080", "10.0.3.1:7080", "10.0.4.1:7080"]
    assert len("\n".join(lines).encode()) < AREA_BYTES


def test_osie_of_a_machine_without_dhcp_gets_the_address_on_its_command_line_and_no_other_does():
    static = EdgeOrigin("10.0.0.1", static=True)
    ipam = "ipam=52-54-00-00-00-01::10.0.0.5:255.255.255.0:10.0.0.254:m1:10.0.0.53,10.0.0.54::10.0.0.123"
    for origin, machine, logged in (
        (static, addressed(), [ipam]),
        (HERE, addressed(), []),
        (static, addressed(params=["ipam=mine"]), ["ipam=mine"]),
    ):
        found = kernel_words(SCRIPTS.compile(MAC, machine, origin).text)
        assert [word for word in found if word.startswith("ipam=")] == logged
    with pytest.raises(ScriptError, match="has no address to do without DHCP"):
        SCRIPTS.compile(MAC, addressed(ip=None), static)
    assert SCRIPTS.compile(MAC, addressed(), replace(static, others=OTHERS[:1])).text.count(ipam) == 2


# --- whatever stands in a Hardware or in a reason: iPXE runs the commands of our templates, and no others ---

ORIGINS = (HERE, OVER_TFTP)
BLANK = re.compile(rb"[ \t\n\v\f\r]+")


EVIL = ["&&", "||", ";", "#", "#x", "-n", "--", ":give_up", "shell", "exit 0", "${netX/mac}", "$", "{", "}", "'", '"']
EVIL += ["\n", "\r\n", "\\", "\\\n", " ", "\t", "\v", "\f", "\0", "\u0085", "\u00a0", "\u2028", "\u2029", "\u202e"]
EVIL += ["\x1b[2J", "é", "a"]
evil = st.lists(st.sampled_from(EVIL) | st.text(max_size=3), max_size=12).map("".join)


def commands(script: str) -> list[tuple[str, tuple[str, ...]]]:
    """For each line with something on it: its label, and the names of the commands that it may run."""
    found = []
    for line in re.sub(rb"\\\r?\n", b"", script.encode(errors="surrogatepass")).split(b"\n"):
        words = [word for word in BLANK.split(line.removesuffix(b"\r")) if word]
        label = words.pop(0).decode() if words and words[0].startswith(b":") else ""
        names, first = [], True
        for word in words:
            if word.startswith(b"#"):
                break
            if word in (b"&&", b"||", b";"):
                first = True
            elif first:
                names.append(word.decode())
                first = False
        if label or names:
            found.append((label, tuple(names)))
    return found


@pytest.mark.parametrize("vlan", [None, "100"])
@settings(max_examples=50, deadline=None)
@given(evil)
@example("x\\")
def test_script_that_goes_on_to_a_url_runs_its_own_commands_only(vlan, text):
    def on(name: str, path: str) -> Hardware:
        return hardware(
            name, namespace=name, ip="10.0.0.5", dhcp={"vlanId": vlan}, ipxe={"url": f"http://10.0.0.2/{path}"}
        )

    with suppress(ValueError):  # the schema's: no such Hardware is served; or the machine is told what is wrong
        found = [SCRIPTS.compile(MAC, on(text, text), origin).text for origin in ORIGINS]
        expected = [SCRIPTS.compile(MAC, on("m1", "x"), origin).text for origin in ORIGINS]
        assert [*map(commands, found)] == [*map(commands, expected)]


@settings(max_examples=100, deadline=None)
@given(st.lists(evil, min_size=1, max_size=4).map("\n".join))
@example("it ends so \\\nand goes on")
@example("\\")
def test_reason_is_shown_and_nothing_else_is_done(reason):
    script = SCRIPTS.reason(MAC, reason)
    ours = commands(SCRIPTS.reason(MAC, ""))
    at = ours.index((":give_up", ())) if (":give_up", ()) in ours else 2
    shown = len(commands(script)) - len(ours)
    assert commands(script) == [*ours[:at], *[("", ("echo",))] * shown, *ours[at:]]


def test_reason_without_end_does_not_fill_the_stack_of_ipxe():
    longest = max(SCRIPTS.reason(MAC, "a " * 100_000).splitlines(), key=len)
    assert len(longest.split()) < 250


@settings(max_examples=40, deadline=None)
@given(evil)
def test_error_that_names_a_value_is_shown_and_not_obeyed(text):
    """A ScriptError quotes what is wrong, and goes to the screen."""
    try:
        SCRIPTS.compile(MAC, hardware(text, namespace=text, kernelParams=[text]), HERE)
    except ScriptError as error:
        names = {name for _, names in commands(SCRIPTS.reason(MAC, str(error))) for name in names}
        assert names == {"echo", "imgfree", "sleep", "exit"}


FIELDS = ("ip", "netmask", "gateway", "hostname", "vlanId", "nameservers", "timeservers")
LISTS = ("nameservers", "timeservers")
WORDS = "site={{.Hostname}} ip={{.IP}}"
OSIE_WORDS = 'ipam={{.Ipam}} id={{.AgentID}} at={{.Address}} name={{.Name}} q="a b"'


def of_the_kernel(script: str) -> list[str]:
    """Parameters as Linux splits them (lib/cmdline.c, next_arg): at spaces that are in no quotation marks."""
    (line,) = (line for line in script.splitlines() if line.startswith("kernel "))
    quoted, found = False, [""]
    for letter in line.partition("/kernel ")[2].rpartition(" && goto ")[0]:
        quoted ^= letter == '"'
        if letter.isspace() and not quoted:
            found.append("")
        else:
            found[-1] += letter
    return [word for word in found if word]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([*FIELDS, "agent-id", "kernelParams", "osie", "name", "words of the OSIE"]),
    evil,
    st.booleans(),
    st.sampled_from(ORIGINS),
)
@example("hostname", "${x}", True, HERE)
@example("words of the OSIE", 'a="', True, HERE)
@example("words of the OSIE", "&&", True, OVER_TFTP)
@example("kernelParams", 'a="b', True, HERE)
@example("kernelParams", "a &&", False, HERE)
@example("kernelParams", "\\", False, HERE)
@example("osie", "lab\\", False, OVER_TFTP)
@example("agent-id", "m1 init=/bin/sh", True, HERE)
@example("name", "a reboot=1", True, OVER_TFTP)
@example("nameservers", "10.0.0.2:x init=/bin/sh", True, HERE)
def test_whatever_stands_in_one_field_the_words_of_the_others_are_what_they_were(field, text, has_vlan, origin):
    vlan = "50" if has_vlan else ""
    changed = {
        "dhcp": {"ip": "10.0.0.5", "vlanId": vlan, **DHCP}
        | ({field: [text] if field in LISTS else text} if field in FIELDS else {}),
        "annotations": {AGENT_ID_ANNOTATION: text} if field == "agent-id" else {},
        "kernelParams": [text, "last=1"] if field == "kernelParams" else ["last=1"],
        "osie": {"name": text or "x"} if field == "osie" else {"name": "hook"},
    }
    osie = f"{OSIE_WORDS} {text}" if field == "words of the OSIE" else OSIE_WORDS
    try:
        machine = hardware(**changed)
        if field == "name":  # as no schema lets in
            machine = machine.model_copy(update={"metadata": machine.metadata.model_copy(update={"name": text})})
        scripts = Scripts(BootSettings(kernel_parameters=tuple(WORDS.split())))
        script = scripts.compile(MAC, machine, origin, osie).text
        harmless = addressed(osie="hook", vlanId="50" if has_vlan or field == "vlanId" else "", params=["last=1"])
        harmless = scripts.compile(MAC, harmless, origin, OSIE_WORDS).text
    except ValueError:  # the model refuses it, or the machine is told why it does not boot
        return
    assert commands(script) == commands(harmless)
    found, expected = of_the_kernel(script), of_the_kernel(harmless)
    if field in ("kernelParams", "words of the OSIE"):  # which may have words of their own
        rest = iter(found)
        assert all(word in rest for word in expected), "each of the others, in their order"
    else:
        assert [word.partition("=")[0] for word in found] == [word.partition("=")[0] for word in expected]
        assert not any("${" in word for word in found)
    assert found[-1] == "last=1"


# --- What GRUB and U-Boot fetch: the golden texts, and what no value of a Hardware can do to them ---------------------


GOLDEN = Path(__file__).with_name("golden")
ANOTHER = (EdgeOrigin("10.0.0.2", http_port=8080, grpc_port=42114),)
UBOOT = [ExtlinuxScripts, UBootScripts]


def text_of(kind, machine: Hardware, origin: EdgeOrigin = HERE) -> str:
    return kind(Scripts(BootSettings())).compile(MAC, machine, origin).text


def lines_of(text: str, command: str) -> list[list[str]]:
    """The words of all such commands; single quotes mean to a shell what they mean to GRUB."""
    lines = (line.strip().removeprefix("if ").removesuffix("; then") for line in text.splitlines())
    return [shlex.split(line) for line in lines if line.startswith(f"{command} ")]


GRUB_CFG = (GOLDEN / "grub.cfg").read_text()


EXTLINUX_CONF = (GOLDEN / "extlinux.conf").read_text()

UBOOT_SCRIPT = (GOLDEN / "boot.scr.txt").read_text()


@pytest.mark.parametrize(
    ("kind", "origin", "golden"),
    [
        (GrubScripts, HERE, GRUB_CFG),
        (ExtlinuxScripts, OVER_TFTP, EXTLINUX_CONF),
        (UBootScripts, OVER_TFTP, UBOOT_SCRIPT),
    ],
)
def test_machine_is_told_the_same_in_each_language(kind, origin, golden):
    assert text_of(kind, hardware(kernelParams=["quiet"]), origin) == golden


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1"])
def test_grub_that_came_by_tftp_can_do_without_http_for_grub_2_06_has_none(address):
    host = f"[{address}]" if ":" in address else address
    text = text_of(GrubScripts, hardware(), EdgeOrigin(address, tftp=True))
    servers = [f"(http,{host}:7080)", f"(tftp,{host})"]
    for command, file in (("linux", "/osie/lab/kernel"), ("initrd", "/osie/lab/initrd"), ("source", "/grub/why.cfg")):
        assert [words[1] for words in lines_of(text, command)] == [server + file for server in servers]
    first, second = (words[2:] for words in lines_of(text, "linux"))
    assert first == second


def test_machine_goes_on_with_another_edge_which_has_a_server_of_its_own():
    first, second = lines_of(text_of(GrubScripts, hardware(), EdgeOrigin("10.0.0.1", others=ANOTHER)), "linux")
    assert (first[1][:20], second[1][:20]) == ("(http,10.0.0.1:7080)", "(http,10.0.0.2:8080)")
    assert (first[2], second[2]) == ("grpc_authority=10.0.0.1:42113", "grpc_authority=10.0.0.2:42114")
    # U-Boot's commands take no IPv6 address.
    others = (*ANOTHER, EdgeOrigin("2001:db8::2"))
    text = text_of(UBootScripts, hardware(), EdgeOrigin("10.0.0.1", tftp=True, others=others))
    kernels = [line.split()[-2].rstrip(";") for line in text.splitlines() if "tftpboot ${kernel" in line]
    assert kernels == ["osie/lab/kernel", "10.0.0.2:osie/lab/kernel"]
    assert "setenv bootargs 'grpc_authority=10.0.0.2:42114 " in text


@pytest.mark.parametrize("kind", [GrubScripts, *UBOOT])
def test_token_is_of_the_moment_and_not_in_what_is_kept(kind):
    scripts = kind(Scripts(BootSettings(token=lambda mac: f"for-{mac}", metadata_token=lambda mac: f"data-{mac}")))
    kept = scripts.compile(MAC, hardware(), HERE if kind is GrubScripts else OVER_TFTP)
    assert "for-52" not in kept.text
    words = scripts.to_send(MAC, kept).replace("'", " ").split()
    assert f"tinkerbell_token=for-{MAC}" in words
    assert f"tinkerbell_metadata=http://10.0.0.1:7080/machine/data-{MAC}" in words


@pytest.mark.parametrize("kind", [GrubScripts, *UBOOT])
def test_machine_without_a_hardware_boots_the_default_osie(kind):
    script = kind(Scripts(BootSettings())).unregistered(MAC, ("infra", "lab"), HERE)
    assert script.osie == ("infra", "lab")
    assert "tinkedge: a machine without a Hardware (52:54:00:00:00:01) boots OSIE infra/lab" in script.text


PROBLEMS = [
    ({"ipxe": {"inline": "#!ipxe\nshell"}}, "spec.ipxe.inline is for iPXE, and this machine boots by "),
    ({"ipxe": {"url": "http://x/y.ipxe"}}, "spec.ipxe.url is for iPXE, and this machine boots by "),
    ({"osie": None}, "default/m1: spec.osie.name is not set"),
    ({"kernelParams": ["ip=${net0/ip}"]}, r"parameter ip=\$\{net0/ip\} has a setting of iPXE in it"),
    ({"kernelParams": ["x" * 2048]}, "spec.kernelParams makes a kernel command line of"),
    ({"kernelParams": ["a\nboot"]}, r"spec.kernelParams\[0\] has a line break"),
]
UBOOT_PROBLEMS = [
    ({"kernelParams": ["x=$(reset)"]}, r"parameter x=\$\(reset\) has the character \$ in it, .* to U-Boot"),
    ({"kernelParams": ["x='; reset; '"]}, "has the character ' in it"),
    ({"kernelParams": ["x\\n"]}, "has the character"),
]


@pytest.mark.parametrize(
    ("kind", "spec", "problem"),
    [
        *((kind, *case) for kind in (GrubScripts, *UBOOT) for case in PROBLEMS),
        *((kind, *case) for kind in UBOOT for case in UBOOT_PROBLEMS),
    ],
)
def test_what_has_no_meaning_for_the_loader_is_said_with_its_field(kind, spec, problem):
    loader = "GRUB" if kind is GrubScripts else "U-Boot"
    with pytest.raises(ScriptError, match=problem + (loader if problem.endswith("boots by ") else "")):
        text_of(kind, hardware(**spec), OVER_TFTP)


@given(
    st.text(st.characters(exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp", "Cf", "Cn", "Co")), min_size=1, max_size=40)
)
def test_no_parameter_is_more_than_words_of_grubs_command_line(parameter):
    try:
        text = text_of(GrubScripts, hardware(kernelParams=[parameter]))
    except ScriptError:
        return
    (words,) = lines_of(text, "linux")
    assert words[-1] == parameter
    assert len(text.splitlines()) == len(GRUB_CFG.splitlines())


REASON = "it's $(reset) ${x}\n'; reset\n\x1b[2J\\"


def test_reason_is_shown_line_by_line_and_never_obeyed():
    text = GrubScripts(Scripts(BootSettings())).reason(MAC, 'it\'s "so"; reboot\nor $not\x1b[2J')
    assert [words[1] for words in lines_of(text, "echo")][1:3] == ['it\'s "so"; reboot', "or $not [2J"]
    *lines, last = UBootScripts(Scripts(BootSettings())).reason(MAC, REASON).splitlines()
    assert (len(lines), last) == (4, "false")
    for line in lines:
        assert (line[:6], line[-1], line.count("'")) == ("echo '", "'", 2)
        assert line.isprintable()


def test_reason_is_one_entry_that_starts_nothing_not_even_the_machines_own_command():
    lines = ExtlinuxScripts(Scripts(BootSettings())).reason(MAC, REASON).splitlines()
    assert [line.split()[0] for line in lines] == ["default", "label", "menu", "localboot"]
    assert lines[-1] == "  localboot -1"
    assert any(f"tinkedge does not boot {MAC} from the network: it's $(reset)" in line for line in lines)


@pytest.mark.parametrize("text", ["", "'", "a'b''c", '$x `y` \\ "z"', "; reboot"])
def test_text_quoted_for_grub_is_one_word(text):
    assert shlex.split(grub.quoted(text)) == [text]


@given(st.text(max_size=30))
def test_text_quoted_for_u_boot_is_one_word(text):
    word = uboot.quoted(text)
    assert (word[0], word[-1], word.count("'")) == ("'", "'", 2)


def test_image_is_a_legacy_script_with_both_checksums():
    """include/image.h, and what `source` checks: magic, header, data, type; one part, its length before it."""
    image = script_image("echo ü\n")
    magic, header_checksum, _time, size, load, entry, checksum, system, _arch, kind, compression, name = struct.unpack(
        ">IIIIIIIBBBB32s", image[:64]
    )
    data = image[64:]
    assert (magic, size, load, entry) == (0x27051956, len(data), 0, 0)
    assert header_checksum == zlib.crc32(image[:4] + bytes(4) + image[8:64])
    assert checksum == zlib.crc32(data)
    assert (system, kind, compression, name.rstrip(b"\0")) == (5, 6, 0, b"tinkedge")
    script = "echo ü\n".encode()
    assert data == struct.pack(">II", len(script), 0) + script


def test_name_of_a_pxelinux_cfg_file_has_the_mac():
    assert machine_of("01-52-54-00-00-00-01") == MAC
    assert machine_of("01-52-54-00-AB-00-01") == "52:54:00:ab:00:01"
    for name in ("default", "0A000032", "01-52-54-00-00-00", "20-52-54-00-00-00-01", "01-52-54-00-00-00-01-x"):
        assert machine_of(name) is None
