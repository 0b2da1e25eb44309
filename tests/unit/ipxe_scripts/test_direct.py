"""What GRUB and U-Boot fetch: the golden texts, and what no value of a Hardware can do to them."""

from __future__ import annotations

import shlex
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipxe import grub, uboot
from ipxe.grub import GrubScripts
from ipxe.scripts import BootSettings, Origin, ScriptError, Scripts
from ipxe.uboot import ExtlinuxScripts, UBootScripts, config_name, machine_of, script_image
from tests.support import objects
from tests.support.objects import MAC
from tink.api.v1alpha2 import Hardware

HERE = Origin("10.0.0.1")
OVER_TFTP = Origin("10.0.0.1", tftp=True)
GOLDEN = Path(__file__).with_name("golden")
OTHERS = (Origin("10.0.0.2", http_port=8080, grpc_port=42114),)
UBOOT = [ExtlinuxScripts, UBootScripts]


def hardware(**spec) -> Hardware:
    return Hardware.model_validate(objects.hardware(ip=None, **{"osie": {"name": "lab"}, **spec}))


def text_of(kind, machine: Hardware, origin: Origin = HERE) -> str:
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
    text = text_of(GrubScripts, hardware(), Origin(address, tftp=True))
    servers = [f"(http,{host}:7080)", f"(tftp,{host})"]
    for command, file in (("linux", "/osie/lab/kernel"), ("initrd", "/osie/lab/initrd"), ("source", "/grub/why.cfg")):
        assert [words[1] for words in lines_of(text, command)] == [server + file for server in servers]
    first, second = (words[2:] for words in lines_of(text, "linux"))
    assert first == second


def test_machine_goes_on_with_another_edge_which_has_a_server_of_its_own():
    first, second = lines_of(text_of(GrubScripts, hardware(), Origin("10.0.0.1", others=OTHERS)), "linux")
    assert (first[1][:20], second[1][:20]) == ("(http,10.0.0.1:7080)", "(http,10.0.0.2:8080)")
    assert (first[2], second[2]) == ("grpc_authority=10.0.0.1:42113", "grpc_authority=10.0.0.2:42114")
    # U-Boot's commands take no IPv6 address.
    others = (*OTHERS, Origin("2001:db8::2"))
    text = text_of(UBootScripts, hardware(), Origin("10.0.0.1", tftp=True, others=others))
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


def test_file_of_pxelinux_cfg_says_whose_it_is():
    assert config_name(MAC) == "01-52-54-00-00-00-01"
    assert machine_of(config_name(MAC)) == MAC
    assert machine_of("01-52-54-00-AB-00-01") == "52:54:00:ab:00:01"
    for name in ("default", "0A000032", "01-52-54-00-00-00", "20-52-54-00-00-00-01", "01-52-54-00-00-00-01-x"):
        assert machine_of(name) is None
