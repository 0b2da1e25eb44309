"""The grub.cfg of a machine: the golden text, and what no value of a Hardware can do to it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipxe.grub import GrubScripts, quoted
from ipxe.scripts import BootSettings, Origin, ScriptError, Scripts
from tink.api.v1alpha2 import Hardware

MAC = "52:54:00:00:00:01"
HERE = Origin("10.0.0.1")
OVER_TFTP = Origin("10.0.0.1", tftp=True)


def hardware(**spec: Any) -> Hardware:
    return Hardware.model_validate(
        {
            "metadata": {"name": "m1", "namespace": "default"},
            "spec": {"networkInterfaces": {MAC: {}}, "osie": {"name": "lab"}} | spec,
        }
    )


def text_of(machine: Hardware, origin: Origin = HERE, settings: BootSettings | None = None) -> str:
    return GrubScripts(Scripts(settings or BootSettings())).compile(MAC, machine, origin).text


def lines_of(text: str, command: str) -> list[list[str]]:
    """The words of all such commands; single quotes mean to a shell what they mean to GRUB."""
    lines = (line.strip().removeprefix("if ").removesuffix("; then") for line in text.splitlines())
    return [shlex.split(line) for line in lines if line.startswith(f"{command} ")]


GOLDEN = """\
echo
echo 'tinkedge: default/m1 (52:54:00:00:00:01) boots OSIE default/lab'
for attempt in 1 2 3 4 5; do
  echo '(http,10.0.0.1:7080)/osie/lab/kernel'
  if linux '(http,10.0.0.1:7080)/osie/lab/kernel' 'grpc_authority=10.0.0.1:42113' 'tinkerbell_tls=false' \
'worker_id=52:54:00:00:00:01' 'hw_addr=52:54:00:00:00:01' 'tinkedge_sign=http://10.0.0.1:7080/sign/up' 'console=tty0' \
'console=ttyS0,115200' 'quiet'; then
    echo '(http,10.0.0.1:7080)/osie/lab/initrd'
    if initrd '(http,10.0.0.1:7080)/osie/lab/initrd'; then
      cat '(http,10.0.0.1:7080)/sign/starting'
      echo 'Starting the kernel'
      boot
    fi
  fi
  echo "Attempt $attempt of 5 failed, next one in 2 s"
  sleep 2
done
source '(http,10.0.0.1:7080)/grub/why.cfg'
echo 'FAILED: neither kernel and initrd could be loaded nor the reason'
echo 'The next boot device is tried in 10 s'
sleep 10
# Of versions that know it: an end with an error, after which UEFI firmware tries the next device.
exit 1
"""


def test_machine_that_came_by_http_loads_all_by_http() -> None:
    assert text_of(hardware(kernelParams=["quiet"])) == GOLDEN


def test_machine_that_came_by_tftp_can_do_without_http_for_grub_2_06_has_none() -> None:
    text = text_of(hardware(), OVER_TFTP)
    kernels = [words[1] for words in lines_of(text, "linux")]
    assert kernels == ["(http,10.0.0.1:7080)/osie/lab/kernel", "(tftp,10.0.0.1)/osie/lab/kernel"]
    assert [words[1] for words in lines_of(text, "initrd")] == [name[:-6] + "initrd" for name in kernels]
    assert [words[1] for words in lines_of(text, "source")] == [
        name[: name.index(")") + 1] + "/grub/why.cfg" for name in kernels
    ]
    first, second = (words[2:] for words in lines_of(text, "linux"))
    assert first == second


def test_machine_goes_on_with_another_edge_which_has_a_server_of_its_own() -> None:
    text = text_of(hardware(), Origin("10.0.0.1", others=(Origin("10.0.0.2", http_port=8080, grpc_port=42114),)))
    first, second = lines_of(text, "linux")
    assert (first[1][:20], second[1][:20]) == ("(http,10.0.0.1:7080)", "(http,10.0.0.2:8080)")
    assert (first[2], second[2]) == ("grpc_authority=10.0.0.1:42113", "grpc_authority=10.0.0.2:42114")


def test_token_is_of_the_moment_and_not_in_what_is_kept() -> None:
    settings = BootSettings(token=lambda mac: f"for-{mac}", metadata_token=lambda mac: f"data-{mac}")
    scripts = GrubScripts(Scripts(settings))
    kept = scripts.compile(MAC, hardware(), HERE)
    assert "for-52" not in kept.text
    (words,) = lines_of(scripts.to_send(MAC, kept), "linux")
    assert f"tinkerbell_token=for-{MAC}" in words
    assert f"tinkerbell_metadata=http://10.0.0.1:7080/machine/data-{MAC}" in words


def test_machine_without_a_hardware_boots_the_default_osie() -> None:
    script = GrubScripts(Scripts(BootSettings())).unregistered(MAC, ("infra", "lab"), HERE)
    assert script.osie == ("infra", "lab")
    assert "'tinkedge: a machine without a Hardware (52:54:00:00:00:01) boots OSIE infra/lab'" in script.text


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            {"ipxe": {"inline": "#!ipxe\nshell"}},
            "default/m1: spec.ipxe.inline is for iPXE, and this machine boots by GRUB",
        ),
        ({"ipxe": {"url": "http://x/y.ipxe"}}, "default/m1: spec.ipxe.url is for iPXE"),
        ({"osie": None}, "default/m1: spec.osie.name is not set"),
        ({"kernelParams": ["ip=${net0/ip}"]}, r"parameter ip=\$\{net0/ip\} has a setting of iPXE in it"),
        ({"kernelParams": ["x" * 2048]}, "spec.kernelParams makes a kernel command line of"),
        ({"kernelParams": ["a\nboot"]}, r"spec.kernelParams\[0\] has a line break"),
    ],
)
def test_what_has_no_meaning_for_grub_is_said_with_its_field(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScriptError, match=problem):
        text_of(hardware(**spec))


@given(
    st.text(st.characters(exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp", "Cf", "Cn", "Co")), min_size=1, max_size=40)
)
def test_no_parameter_is_more_than_words_of_the_command_line(parameter: str) -> None:
    try:
        text = text_of(hardware(kernelParams=[parameter]))
    except ScriptError:
        return
    (words,) = lines_of(text, "linux")
    assert words[-1] == parameter
    assert len(text.splitlines()) == len(GOLDEN.splitlines())


def test_reason_is_shown_line_by_line_whatever_is_in_it() -> None:
    text = GrubScripts(Scripts(BootSettings())).reason(MAC, 'it\'s "so"; reboot\nor $not\x1b[2J')
    shown = [words[1] for words in lines_of(text, "echo")]
    assert shown[1:3] == ['it\'s "so"; reboot', "or $not [2J"]


@pytest.mark.parametrize("text", ["", "'", "a'b''c", '$x `y` \\ "z"', "; reboot"])
def test_quoted_text_is_one_word(text: str) -> None:
    assert shlex.split(quoted(text)) == [text]


def test_ipv6_address_stands_in_brackets() -> None:
    text = text_of(hardware(), Origin("fd00::1", tftp=True))
    assert [words[1] for words in lines_of(text, "linux")] == [
        "(http,[fd00::1]:7080)/osie/lab/kernel",
        "(tftp,[fd00::1])/osie/lab/kernel",
    ]
