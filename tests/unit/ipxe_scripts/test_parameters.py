"""What is on every kernel's command line that boots an OSIE: HookOS' own words among it, and nothing smuggled in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ipxe.scripts import BootSettings, LogsTo, Origin, ScriptError, Scripts
from tests.unit.ipxe_scripts.test_injection import ORIGINS, SCRIPTS, commands, evil
from tink.api.annotations import AGENT_ID_ANNOTATION
from tink.api.v1alpha2 import Hardware

MAC = "52:54:00:00:00:01"
HERE = Origin("10.0.0.1")
HOOKOS = "tink_worker_image=10.0.0.1:5000/tink-agent:v0.25.0"
DHCP = {
    "ip": "10.0.0.5",
    "netmask": "255.255.255.0",
    "gateway": "10.0.0.1",
    "hostname": "m1",
    "vlanId": "50",
    "nameservers": ["10.0.0.2", "10.0.0.3"],
    "timeservers": ["10.0.0.4"],
}


def hardware(annotations: dict[str, str] | None = None, **spec: Any) -> Hardware:
    metadata = {"name": "m1", "namespace": "default", "annotations": annotations or {}}
    given_spec = {"networkInterfaces": {MAC: {"dhcp": DHCP}}, "osie": {"name": "hook"}} | spec
    return Hardware.model_validate({"metadata": metadata, "spec": given_spec})


def named(name: str) -> Hardware:
    """As no schema lets in."""
    machine = hardware()
    return machine.model_copy(update={"metadata": machine.metadata.model_copy(update={"name": name})})


def words(osie: str = "", machine: Hardware | None = None, **boot: Any) -> list[str]:
    text = Scripts(BootSettings(**boot)).compile(MAC, machine or hardware(), HERE, osie).text
    (line,) = (line for line in text.splitlines() if line.startswith("kernel "))
    return line.split()


def test_words_of_the_osie_stand_between_those_of_the_site_and_of_the_hardware() -> None:
    found = words("b=2 c=2", hardware(kernelParams=["c=3"]), kernel_parameters=("a=1", "b=1"))
    assert [word for word in found if word[1] == "="] == ["a=1", "b=1", "b=2", "c=2", "c=3"]


def test_quoted_word_may_go_over_two_parameters_of_the_hardware() -> None:
    assert words(machine=hardware(kernelParams=['dyndbg="file', 'x +p"']))[-7:-4] == ['dyndbg="file', "x", '+p"']
    with pytest.raises(ScriptError, match=r"Hardware default/m1: spec\.kernelParams has a quotation mark without"):
        words(machine=hardware(kernelParams=['a="b']))


def test_what_is_known_of_the_machine_is_filled_in() -> None:
    found = words("ipam={{.Ipam}} id={{.Namespace}}/{{.Name}}@{{.Address}} ${asset}", kernel_parameters=("m={{.MAC}}",))
    ipam = "52-54-00-00-00-01:50:10.0.0.5:255.255.255.0:10.0.0.1:m1:10.0.0.2,10.0.0.3::10.0.0.4"
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
def test_annotation_that_makes_no_words_names_osie_and_annotation(osie: str, problem: str) -> None:
    with pytest.raises(
        ScriptError, match=rf"OSIE default/hook: metadata\.annotations\[.*kernel-parameters\] {problem}"
    ):
        words(osie)


def test_machine_without_what_is_to_be_filled_in_is_told_so() -> None:
    bare = hardware(networkInterfaces={MAC: {}})
    with pytest.raises(ScriptError, match=r"has {{\.Ipam}}, and the machine has none"):
        words("ipam={{.Ipam}}", bare)
    with pytest.raises(ScriptError, match=r"--kernel-parameters has {{\.Name}}, and the machine has none"):
        Scripts(BootSettings(kernel_parameters=("n={{.Name}}",))).unregistered(MAC, ("default", "hook"), HERE)


@settings(max_examples=60, deadline=None)
@given(evil, evil)
@example("quiet", "&&")
@example("quiet", "a reboot=1")
def test_neither_osie_nor_what_is_filled_in_adds_a_command_or_a_word(osie: str, name: str) -> None:
    machine = named(name)
    for origin in ORIGINS:
        expected = commands(SCRIPTS.compile(MAC, machine, origin, "quiet").text)
        try:
            found = SCRIPTS.compile(MAC, machine, origin, f"{osie} {{{{.Name}}}}").text
        except ScriptError:
            continue
        assert commands(found) == expected
        assert len(name.split()) == 1


FIELDS = ("ip", "netmask", "gateway", "hostname", "vlanId", "nameservers", "timeservers")
LISTS = ("nameservers", "timeservers")
WORDS = "site={{.Hostname}} ip={{.IP}}"
OSIE_WORDS = 'ipam={{.Ipam}} id={{.AgentID}} at={{.Address}} q="a b"'


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


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*FIELDS, "agent-id", "kernelParams", "osie", "name", "words of the OSIE"]), evil)
@example("hostname", "${x}")
@example("words of the OSIE", 'a="')
@example("kernelParams", 'a="b')
@example("agent-id", "m1 init=/bin/sh")
@example("nameservers", "10.0.0.2:x init=/bin/sh")
def test_whatever_stands_in_one_field_the_words_of_the_others_are_what_they_were(field: str, text: str) -> None:
    dhcp = DHCP | ({field: [text] if field in LISTS else text} if field in FIELDS else {})
    annotations = {AGENT_ID_ANNOTATION: text} if field == "agent-id" else {}
    params = [text, "last=1"] if field == "kernelParams" else ["last=1"]
    spec: dict[str, Any] = {"networkInterfaces": {MAC: {"dhcp": dhcp}}, "kernelParams": params}
    spec |= {"osie": {"name": text or "x"}} if field == "osie" else {}
    osie = f"{OSIE_WORDS} {text}" if field == "words of the OSIE" else OSIE_WORDS
    try:
        machine = hardware(annotations, **spec)
        machine = machine.model_copy(update={"metadata": named(text).metadata}) if field == "name" else machine
        scripts = Scripts(BootSettings(kernel_parameters=tuple(WORDS.split())))
        script = scripts.compile(MAC, machine, HERE, osie).text
        harmless = scripts.compile(MAC, hardware(kernelParams=["last=1"]), HERE, OSIE_WORDS).text
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


def test_agent_is_called_as_the_hardware_says_and_the_card_stays_the_card() -> None:
    found = words(machine=hardware({AGENT_ID_ANNOTATION: "rack1-u7"}))
    assert {"worker_id=rack1-u7", f"hw_addr={MAC}"} <= set(found)
    with pytest.raises(
        ScriptError, match=r"Hardware default/m1: metadata\.annotations\[tinkerbell\.org/agent-id\] must"
    ):
        words(machine=hardware({AGENT_ID_ANNOTATION: "a b"}))


@pytest.mark.parametrize(
    ("logs", "osie", "told"),
    [
        (LogsTo.NOBODY, HOOKOS, False),
        (LogsTo.HOOKOS, HOOKOS, True),
        (LogsTo.HOOKOS, "docker_registry=10.0.0.1", True),
        (LogsTo.HOOKOS, "quiet", False),
        (LogsTo.ALL, "quiet", True),
    ],
)
def test_only_machines_whose_lines_are_received_are_told_to_send_them(logs: LogsTo, osie: str, told: bool) -> None:
    assert ("syslog_host=10.0.0.1" in words(osie, logs=logs)) is told
