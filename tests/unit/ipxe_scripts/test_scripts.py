"""iPXE scripts: the golden text, and what no value of a Hardware can do to it."""

from __future__ import annotations

import re
from bisect import bisect
from dataclasses import replace
from typing import Any

import pytest

from ipxe.scripts import BootSettings, Origin, ScriptError, Scripts
from tink.api.v1alpha2 import Hardware

MAC = "52:54:00:00:00:01"
SETTINGS = BootSettings()
HERE = Origin("10.0.0.1")
OVER_TFTP = Origin("10.0.0.1", tftp=True)


def hardware(**spec: Any) -> Hardware:
    return Hardware.model_validate(
        {
            "metadata": {"name": "m1", "namespace": "default"},
            "spec": {"networkInterfaces": {MAC: {}}, "osie": {"name": "lab"}} | spec,
        }
    )


def tagged(**spec: Any) -> Hardware:
    """On VLAN 50."""
    return hardware(networkInterfaces={MAC: {"dhcp": {"ip": "10.0.0.5", "vlanId": "50"}}}, **spec)


def compile_text(machine: Hardware, settings: BootSettings = SETTINGS) -> str:
    return Scripts(settings).compile(MAC, machine, HERE).text


def kernel_words(text: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith("kernel "))
    return line.split()


GOLDEN = """\
#!ipxe
# Boots OSIE default/lab on 52:54:00:00:00:01, which is default/m1.
echo
echo tinkedge: default/m1 (52:54:00:00:00:01) boots OSIE default/lab

:kernel
echo kernel: http://10.0.0.1:7080/osie/lab/kernel
set attempt:int32 0
:kernel_again
kernel http://10.0.0.1:7080/osie/lab/kernel grpc_authority=10.0.0.1:42113 tinkerbell_tls=false \
worker_id=52:54:00:00:00:01 hw_addr=52:54:00:00:00:01 insecure_registries=10.0.0.1:5000 \
tinkedge_sign=http://10.0.0.1:7080/sign/up initrd=initrd console=tty0 console=ttyS0,115200 quiet loglevel=3 \
&& goto initrd ||
inc attempt
iseq ${attempt} 5 && goto kernel_failed ||
echo Attempt ${attempt} of 5 failed, next one in 2 s
sleep 2
goto kernel_again
:kernel_failed
echo FAILED: the kernel could not be fetched from http://10.0.0.1:7080/osie/lab/kernel
imgfetch --name why http://10.0.0.1:7080/ipxe/script/52:54:00:00:00:01/auto.ipxe?failed || goto anew
imgexec why || exit 1

:initrd
echo initrd: http://10.0.0.1:7080/osie/lab/initrd
set attempt:int32 0
:initrd_again
initrd --name initrd http://10.0.0.1:7080/osie/lab/initrd && goto start ||
inc attempt
iseq ${attempt} 5 && goto initrd_failed ||
echo Attempt ${attempt} of 5 failed, next one in 2 s
sleep 2
goto initrd_again
:initrd_failed
echo FAILED: the initrd could not be fetched from http://10.0.0.1:7080/osie/lab/initrd
imgfetch --name why http://10.0.0.1:7080/ipxe/script/52:54:00:00:00:01/auto.ipxe?failed || goto anew
imgexec why || exit 1

:start
# So that the edge knows that this far all was well; whatever becomes of it, the kernel is started.
imgfetch --name sign http://10.0.0.1:7080/sign/starting\
?model=${manufacturer:uristring}%20${product:uristring}&uuid=${uuid}\
&memory=${smbios/19.4.8:hexraw}&above=${smbios/1.19.4.8:hexraw}&clock=${unixtime} && imgfree sign ||
echo Starting the kernel
boot ||
echo FAILED: the kernel from http://10.0.0.1:7080/osie/lab/kernel could not be started
imgfetch --name failed http://10.0.0.1:7080/sign/failed && imgfree failed ||
goto give_up
:anew
# Not even the reason: the edge is gone. If there is another one, it answers DHCP.
isset ${tinkedge-anew} && goto give_up ||
set tinkedge-anew yes
imgfree
echo The edge is gone: asking DHCP for another one
ifconf --configurator dhcp ${netX/ifname} && isset ${netX/filename} && chain --replace ${netX/filename} ||
:give_up
echo The next boot device is tried in 10 s
imgfree
sleep 10
# Status 0 would mean success: UEFI firmware then stops at its boot manager instead of trying the next device.
exit 1
"""


def test_boot_script_is_the_golden_text() -> None:
    settings = BootSettings(insecure_registries=("10.0.0.1:5000",))
    script = Scripts(settings).compile(MAC, hardware(kernelParams=["quiet", "loglevel=3"]), HERE)
    assert script.text == GOLDEN
    assert (script.what, script.osie) == ("OSIE default/lab", ("default", "lab"))


def test_machine_is_told_the_address_of_ours_that_it_reached() -> None:
    for address in ("10.0.0.1", "192.168.7.1"):
        text = Scripts(SETTINGS).compile(MAC, hardware(), Origin(address)).text
        assert f"kernel http://{address}:7080/osie/lab/kernel grpc_authority={address}:42113 " in text
        assert set(re.findall(r"(?<!smbios/)\b\d+\.\d+\.\d+\.\d+", text)) == {address}


def test_machine_goes_on_with_another_edge_when_this_one_goes_in_the_middle() -> None:
    others = (Origin("10.0.0.2", http_port=8080, grpc_port=42113), Origin("10.0.0.3", http_port=7080, grpc_port=50000))
    text = Scripts(SETTINGS).compile(MAC, hardware(), Origin("10.0.0.1", others=others)).text
    kernels = re.findall(r"^kernel http://(\S+)/osie/lab/kernel .* && goto initrd \|\|$", text, re.MULTILINE)
    initrds = re.findall(r"^initrd --name initrd http://(\S+)/osie/lab/initrd && goto start \|\|$", text, re.MULTILINE)
    assert kernels == initrds == ["10.0.0.1:7080", "10.0.0.2:8080", "10.0.0.3:7080"]


def test_kernel_of_another_edge_is_told_of_the_server_there_and_of_all_others() -> None:
    others = (Origin("10.0.0.2", http_port=7080, grpc_port=42113), Origin("10.0.0.3", http_port=7080, grpc_port=50000))
    text = Scripts(SETTINGS).compile(MAC, hardware(), Origin("10.0.0.1", others=others)).text
    told = re.findall(r"^kernel .* grpc_authority=(\S+) .* tinkerbell_servers=(\S+)", text, re.MULTILINE)
    assert told == [
        ("10.0.0.1:42113", "10.0.0.2:42113,10.0.0.3:50000"),
        ("10.0.0.2:42113", "10.0.0.1:42113,10.0.0.3:50000"),
        ("10.0.0.3:50000", "10.0.0.1:42113,10.0.0.2:42113"),
    ]


def test_agents_that_have_one_server_for_all_are_told_of_no_others() -> None:
    origin = Origin("10.0.0.1", others=(Origin("10.0.0.2", http_port=7080),))
    assert "tinkerbell_servers" not in Scripts(SETTINGS).compile(MAC, hardware(), origin).text
    settings = BootSettings(grpc_authority="10.0.0.250:42113")
    origin = replace(origin, others=(Origin("10.0.0.2", http_port=7080, grpc_port=42113),))
    text = Scripts(settings).compile(MAC, hardware(), origin).text
    assert "tinkerbell_servers" not in text
    assert set(re.findall(r"grpc_authority=(\S+)", text)) == {"10.0.0.250:42113"}


def test_authority_of_the_server_is_at_other_edges_too() -> None:
    settings = BootSettings(tls_ca=b"ca", tinkerbell_tls=True)
    origin = Origin("10.0.0.1", others=(Origin("10.0.0.2", http_port=8080, grpc_port=1),))
    text = Scripts(settings).compile(MAC, hardware(), origin).text
    edges = re.findall(r"tinkerbell_tls_ca=http://(\S+)/agent/ca.pem#sha256=\S+ tinkerbell_edges=(\S+)", text)
    assert edges == [("10.0.0.1:7080", "10.0.0.2:8080"), ("10.0.0.2:8080", "10.0.0.1:7080")]


def test_other_edges_are_left_out_where_the_command_line_has_no_room_for_them() -> None:
    others = tuple(Origin(f"10.0.0.{n}", http_port=7080, grpc_port=42113) for n in (2, 3, 4))
    words = kernel_words(compile_text(hardware(kernelParams=["x"])))[2:-4]
    assert words[-1] == "x"
    long = hardware(kernelParams=["x" * (2047 - len(" ".join(words)) + 1)])
    text = Scripts(SETTINGS).compile(MAC, long, Origin("10.0.0.1", others=others)).text
    assert "10.0.0.2" not in text


def test_autoexec_tries_the_script_at_each_edge() -> None:
    origin = Origin("10.0.0.1", others=(Origin("10.0.0.2", http_port=8080),))
    chained = re.findall(r"^chain --replace (\S+)", Scripts(SETTINGS).autoexec(MAC, origin), re.MULTILINE)
    assert chained == [
        f"http://10.0.0.1:7080/ipxe/script/{MAC}/auto.ipxe",
        f"tftp://10.0.0.1/{MAC}/auto.ipxe",
        f"http://10.0.0.2:8080/ipxe/script/{MAC}/auto.ipxe",
        f"tftp://10.0.0.2/{MAC}/auto.ipxe",
    ]


def test_grpc_authority_that_the_operator_names_wins() -> None:
    settings = BootSettings(grpc_authority="tink.example.org:443", http_port=8081)
    words = kernel_words(compile_text(hardware(), settings))
    assert "grpc_authority=tink.example.org:443" in words
    assert words[1] == "http://10.0.0.1:8081/osie/lab/kernel"


def test_ipxe_without_http_gets_everything_by_tftp() -> None:
    text = Scripts(SETTINGS).compile(MAC, hardware(), OVER_TFTP).text
    assert f"kernel tftp://10.0.0.1/{MAC}/osie/lab/kernel grpc_authority=10.0.0.1:42113 " in text
    assert f"initrd --name initrd tftp://10.0.0.1/{MAC}/osie/lab/initrd && goto start ||" in text
    assert f"imgfetch --name why tftp://10.0.0.1/{MAC}/why.ipxe || goto anew" in text
    # The OSIE speaks HTTP, whatever iPXE does.
    assert "http://" not in text.replace("tinkedge_sign=http://10.0.0.1:7080/sign/up", "")


def test_hardwares_own_parameters_come_last_and_so_win() -> None:
    words = kernel_words(compile_text(hardware(kernelParams=["console=ttyS1", "a=1 b=2"])))
    assert words[-7:] == ["console=ttyS1", "a=1", "b=2", "&&", "goto", "initrd", "||"]
    assert words.index("console=ttyS1") > words.index("console=ttyS0,115200")


def test_edge_with_images_is_one_of_the_insecure_registries_at_the_address_that_the_machine_reached() -> None:
    assert " insecure_registries=10.0.0.1:7080 " in compile_text(hardware(), settings=BootSettings(own_registry=True))
    both = BootSettings(insecure_registries=("10.0.0.1:5000",), own_registry=True)
    assert " insecure_registries=10.0.0.1:5000,10.0.0.1:7080 " in compile_text(hardware(), settings=both)


def test_the_sites_parameters_come_before_the_hardwares() -> None:
    settings = BootSettings(kernel_parameters=("tink_worker_image=r/a:1", "mac=${mac}"))
    words = kernel_words(compile_text(hardware(kernelParams=["quiet"]), settings))
    begin = words.index("console=ttyS0,115200")
    assert words[begin + 1 : begin + 4] == ["tink_worker_image=r/a:1", "mac=${mac}", "quiet"]


def test_no_insecure_registries_no_parameter() -> None:
    assert "insecure_registries" not in compile_text(hardware())


def test_every_label_that_is_jumped_to_exists() -> None:
    texts = [compile_text(machine) for machine in (hardware(), hardware(ipxe={"url": "http://h/s"}))]
    texts += [
        compile_text(tagged(**spec)) for spec in ({}, {"ipxe": {"url": "http://h/s"}}, {"ipxe": {"inline": "#!ipxe"}})
    ]
    texts.append(Scripts(SETTINGS).autoexec(MAC, HERE))
    for text in texts:
        lines = text.splitlines()
        labels = [line for line in lines if line.startswith(":")]
        assert len(labels) == len(set(labels)), "iPXE jumps to the first label of that name"
        targets = {words[words.index("goto") + 1] for line in lines if "goto" in (words := line.split())}
        assert targets <= {line.removeprefix(":") for line in lines if line.startswith(":")}


def test_every_failure_ends_with_status_1_for_the_next_boot_device() -> None:
    scripts = Scripts(SETTINGS)
    for text in (
        compile_text(hardware()),
        compile_text(hardware(ipxe={"url": "http://h/s"})),
        compile_text(tagged()),
        scripts.reason(MAC, "no"),
        scripts.autoexec(MAC, HERE),
    ):
        assert text.startswith("#!ipxe\n")
        assert text.endswith("\nexit 1\n")
        assert "\r" not in text


@pytest.mark.parametrize(
    "parameter", ["a\nshell", "a\rshell", "a && shell", "a || shell", "; shell", "#rest", "a\x00", "a\x85shell"]
)
def test_kernel_parameter_cannot_break_out_of_its_command(parameter: str) -> None:
    with pytest.raises(ScriptError, match=r"^Hardware default/m1: spec\.kernelParams\[1\] has "):
        compile_text(hardware(kernelParams=["quiet", parameter]))


def test_settings_of_ipxe_in_parameters_are_left_to_ipxe() -> None:
    assert "asset=${asset}" in kernel_words(compile_text(hardware(kernelParams=["asset=${asset}"])))


def test_command_line_that_linux_would_cut_off_is_refused() -> None:
    with pytest.raises(ScriptError, match="of which Linux reads 2047"):
        compile_text(hardware(kernelParams=["x" * 2000]))


@pytest.mark.parametrize("spec", [{"osie": None}, {"osie": {"name": ""}}])
def test_hardware_without_osie_is_told_what_to_do(spec: dict[str, Any]) -> None:
    with pytest.raises(ScriptError, match=r"^Hardware default/m1: spec\.osie\.name is not set"):
        compile_text(hardware(**spec))


def test_osie_name_cannot_leave_its_place_in_the_url() -> None:
    text = compile_text(hardware(osie={"name": "../x y\n||"}))
    assert kernel_words(text)[1] == "http://10.0.0.1:7080/osie/..%2Fx%20y%0A%7C%7C/kernel"


# --- overrides ---


def test_inline_script_is_run_as_it_is() -> None:
    inline = "#!ipxe\r\necho ${net0/mac} && shell\r\n"
    script = Scripts(SETTINGS).compile(MAC, hardware(osie=None, ipxe={"inline": inline}), HERE)
    assert script.text.startswith("#!ipxe\n")
    assert script.text.endswith("\n#!ipxe\necho ${net0/mac} && shell\n")
    assert (script.what, script.osie) == ("spec.ipxe.inline", None)


def test_script_url_is_fetched_with_retries_then_run() -> None:
    script = Scripts(SETTINGS).compile(MAC, hardware(osie=None, ipxe={"url": "https://h/${mac}.ipxe"}), HERE)
    assert "imgfetch --name script https://h/${mac}.ipxe && goto run ||\n" in script.text
    assert "\n:run\nimgexec script && exit 0 ||\n" in script.text
    assert script.what == "spec.ipxe.url"


@pytest.mark.parametrize(
    ("ipxe", "field"),
    [
        ({"url": "http://h/a b"}, "spec.ipxe.url has spaces"),
        ({"url": "http://h/a || shell"}, "spec.ipxe.url has the word"),
        ({"inline": "a\x00"}, "spec.ipxe.inline has a NUL"),
        ({"inline": "a", "url": "http://h"}, "spec.ipxe has both"),
    ],
)
def test_bad_override_names_its_field(ipxe: dict[str, str], field: str) -> None:
    with pytest.raises(ScriptError) as caught:
        compile_text(hardware(ipxe=ipxe))
    assert str(caught.value).startswith(f"Hardware default/m1: {field}")


def test_empty_override_is_none() -> None:
    assert "osie/lab/kernel" in compile_text(hardware(ipxe={}))


# --- reasons ---


def test_reason_is_shown_never_obeyed() -> None:
    text = Scripts(SETTINGS).reason(MAC, "no || shell && x\nshell ; #c ${secret} -n\r\n\n")
    shown = [line for line in text.splitlines() if "shell" in line]
    assert shown == ["echo no '||' shell '&&' x", "echo shell ';' '#c' $ {secret} '-n'"]


def test_machine_without_a_hardware_boots_the_default_osie_under_its_mac() -> None:
    script = Scripts(SETTINGS).unregistered(MAC, ("rescue", "any"), HERE)
    words = kernel_words(script.text)
    assert words[1] == "http://10.0.0.1:7080/osie/any/kernel"
    assert f"worker_id={MAC}" in words
    assert (script.what, script.osie) == ("OSIE rescue/any", ("rescue", "any"))


# --- VLANs ---


def test_machine_on_a_vlan_goes_there_once_and_tells_its_osie() -> None:
    text = compile_text(tagged())
    lines = text.splitlines()
    # HookOS finds it behind a space only: it is not the first word of the command line.
    assert kernel_words(text)[2:5] == ["grpc_authority=10.0.0.1:42113", "tinkerbell_tls=false", "vlan_id=50"]
    create = lines.index("isset ${${vlan-port}/mac} || vcreate --tag 50 ${vlan-trunk} || goto vlan_missing")
    assert lines.index("isset ${vlan-ready} && goto vlan_ready ||") < create
    assert lines.index("set vlan-ready 50") < lines.index("chain --replace ${${vlan-port}/filename} ||")
    assert lines.index(":vlan_ready") < lines.index(":kernel")
    assert "iseq ${attempt} 2 && goto vlan_failed ||" in lines


def test_machine_without_a_vlan_hears_of_none() -> None:
    for spec in ({}, {"ipxe": {"inline": "#!ipxe"}}, {"ipxe": {"url": "http://h"}}):
        assert "vlan" not in compile_text(hardware(**spec))


@pytest.mark.parametrize("spec", [{"ipxe": {"inline": "#!ipxe\nshell"}}, {"ipxe": {"url": "http://h/s"}}])
def test_overrides_run_inside_the_vlan_too(spec: dict[str, Any]) -> None:
    text = compile_text(tagged(**spec))
    assert (
        text.index("vcreate --tag 50")
        < text.index("\n:vlan_ready\n")
        < max(text.rfind("shell"), text.rfind("http://h"))
    )


def test_vlan_of_another_interface_is_not_this_ones() -> None:
    other = hardware(networkInterfaces={MAC: {}, "52:54:00:00:00:02": {"dhcp": {"ip": "10.0.0.5", "vlanId": "50"}}})
    assert "vlan" not in compile_text(other)


# --- autoexec ---


def test_autoexec_takes_the_network_card_that_booted_and_its_lease() -> None:
    lines = Scripts(SETTINGS).autoexec(MAC, HERE).splitlines()
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


def test_agents_token_is_set_before_anything_else_and_named_on_the_command_line() -> None:
    text = sent(hardware())
    assert text.splitlines()[:2] == ["#!ipxe", "set tinkerbell-token v1.525400000001.1.x"]
    assert "tinkerbell_token=${tinkerbell-token}" in kernel_words(text)
    assert "v1.525400000001" not in compile_text(hardware(), WITH_TOKEN), "what is kept has no token in it"


@pytest.mark.parametrize("ipxe", [{"inline": "#!ipxe\nshell"}, {"url": "http://192.0.2.1/own.ipxe"}])
def test_operators_own_scripts_can_name_the_token(ipxe: dict[str, str]) -> None:
    assert sent(hardware(ipxe=ipxe)).splitlines()[1] == "set tinkerbell-token v1.525400000001.1.x"


def test_without_tokens_nothing_is_said_of_them() -> None:
    text = sent(hardware(), SETTINGS)
    assert text == compile_text(hardware())
    assert "token" not in text


def test_a_machine_without_a_hardware_has_no_token_to_name() -> None:
    assert "token" not in Scripts(WITH_TOKEN).unregistered(MAC, ("default", "any"), HERE).text


def test_agents_are_told_what_to_trust_the_server_by() -> None:
    words = kernel_words(compile_text(hardware(), BootSettings(tinkerbell_tls=True, tls_ca=b"pem", http_port=81)))
    assert "tinkerbell_tls=true" in words
    # printf pem | sha256sum
    digest = "f0aeace912cf19dc1c6fffd41de6e395daeb5462f1221945706bd0674c3005eb"
    (pin,) = (word for word in words if word.startswith("tinkerbell_tls_ca="))
    assert pin == f"tinkerbell_tls_ca=http://10.0.0.1:81/agent/ca.pem#sha256={digest}"


def test_osie_is_told_the_signed_url_of_its_metadata_where_machines_get_one() -> None:
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


def test_room_for_the_token_is_kept_on_the_command_line() -> None:
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
def test_ipv6_address_stands_in_brackets_wherever_it_has_a_port_or_is_in_a_url(tftp: bool) -> None:
    settings = BootSettings(kernel_parameters=("a={{.IP}}", "b={{.Address}}"))
    scripts, origin = Scripts(settings), Origin("fd00::1", tftp=tftp, others=(Origin("fd00::2", grpc_port=42114),))
    machine = hardware(
        networkInterfaces={MAC: {"dhcp": {"ip": "10.0.0.5", "vlanId": "7", "ipv6": {"address": "fd00::5"}}}}
    )
    text = scripts.compile(MAC, machine, origin).text + scripts.autoexec(MAC, origin)
    bare = re.sub(r"\[fd00::[12]\](:\d+)?", "", text)
    assert set(re.findall(r"\S*fd00::\S*", bare)) == {"a=fd00::5", "b=fd00::1"}
    assert "grpc_authority=[fd00::1]:42113" in text
    assert "--configurator ipv6" in text
    assert "--configurator dhcp" not in text
    assert "isset ${net${number}/ip6}" in text
