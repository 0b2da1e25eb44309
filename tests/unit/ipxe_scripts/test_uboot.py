"""What U-Boot fetches: the golden texts, the image around a script, and what no value of a Hardware can do to them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipxe.scripts import BootSettings, Origin, ScriptError, Scripts
from ipxe.uboot import ExtlinuxScripts, UBootScripts, config_name, machine_of, quoted, script_image
from tests.unit.ipxe_scripts.test_grub import MAC, OVER_TFTP, hardware

BOTH = pytest.mark.parametrize("kind", [ExtlinuxScripts, UBootScripts])
Kind = type[ExtlinuxScripts | UBootScripts]

WORDS = (
    "grpc_authority=10.0.0.1:42113 tinkerbell_tls=false worker_id=52:54:00:00:00:01 hw_addr=52:54:00:00:00:01 "
    "tinkedge_sign=http://10.0.0.1:7080/sign/up console=tty0 console=ttyS0,115200 quiet"
)

CONFIG = f"""\
default tinkedge
label tinkedge
  menu label tinkedge: default/m1 (52:54:00:00:00:01) boots OSIE default/lab
  kernel osie/lab/kernel
  initrd osie/lab/initrd
  append {WORDS}
"""

SCRIPT = f"""\
echo 'tinkedge: default/m1 (52:54:00:00:00:01) boots OSIE default/lab'
if test -n "${{fdt_addr}}"; then setenv tinkedge_fdt "${{fdt_addr}}"; else setenv tinkedge_fdt "${{fdtcontroladdr}}"; fi
setenv tinkedge_failed
for attempt in 1 2 3 4 5; do
  if test -z "${{tinkedge_failed}}" && tftpboot ${{kernel_addr_r}} osie/lab/kernel; then
    if tftpboot ${{ramdisk_addr_r}} osie/lab/initrd; then
      setenv bootargs '{WORDS}'
      setenv tinkedge_initrd "${{ramdisk_addr_r}}:${{filesize}}"
      echo 'Starting the kernel'
      booti ${{kernel_addr_r}} ${{tinkedge_initrd}} ${{tinkedge_fdt}}
      bootz ${{kernel_addr_r}} ${{tinkedge_initrd}} ${{tinkedge_fdt}}
      bootm ${{kernel_addr_r}} ${{tinkedge_initrd}} ${{tinkedge_fdt}}
      setenv tinkedge_failed yes
    fi
  fi
  if test -z "${{tinkedge_failed}}"; then
    echo "Attempt ${{attempt}} of 5 failed"
    sleep 2
  fi
done
echo 'FAILED: why stands above'
false
"""


def text_of(kind: Kind, machine: Any, origin: Origin = OVER_TFTP, settings: BootSettings | None = None) -> str:
    return kind(Scripts(settings or BootSettings())).compile(MAC, machine, origin).text


@pytest.mark.parametrize(("kind", "golden"), [(ExtlinuxScripts, CONFIG), (UBootScripts, SCRIPT)])
def test_machine_is_told_the_same_in_both_languages(kind: Kind, golden: str) -> None:
    assert text_of(kind, hardware(kernelParams=["quiet"])) == golden


def test_script_goes_on_with_another_edge_which_has_a_server_of_its_own() -> None:
    others = (Origin("10.0.0.2", http_port=8080, grpc_port=42114), Origin("2001:db8::2"))
    text = text_of(UBootScripts, hardware(), Origin("10.0.0.1", tftp=True, others=others))
    kernels = [line.split()[-2].rstrip(";") for line in text.splitlines() if "tftpboot ${kernel" in line]
    assert kernels == ["osie/lab/kernel", "10.0.0.2:osie/lab/kernel"]
    assert "setenv bootargs 'grpc_authority=10.0.0.2:42114 " in text


@BOTH
def test_token_is_of_the_moment_and_not_in_what_is_kept(kind: Kind) -> None:
    scripts = kind(Scripts(BootSettings(token=lambda mac: f"for-{mac}", metadata_token=lambda mac: f"data-{mac}")))
    kept = scripts.compile(MAC, hardware(), OVER_TFTP)
    assert "for-52" not in kept.text
    sent = scripts.to_send(MAC, kept)
    assert f" tinkerbell_token=for-{MAC} " in sent
    assert f" tinkerbell_metadata=http://10.0.0.1:7080/machine/data-{MAC} " in sent


@BOTH
def test_machine_without_a_hardware_boots_the_default_osie(kind: Kind) -> None:
    script = kind(Scripts(BootSettings())).unregistered(MAC, ("infra", "lab"), OVER_TFTP)
    assert script.osie == ("infra", "lab")
    assert "tinkedge: a machine without a Hardware (52:54:00:00:00:01) boots OSIE infra/lab" in script.text


@BOTH
@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"ipxe": {"inline": "#!ipxe\nshell"}}, "spec.ipxe.inline is for iPXE, and this machine boots by U-Boot"),
        ({"osie": None}, "default/m1: spec.osie.name is not set"),
        ({"kernelParams": ["ip=${net0/ip}"]}, r"parameter ip=\$\{net0/ip\} has a setting of iPXE in it"),
        ({"kernelParams": ["x=$(reset)"]}, r"parameter x=\$\(reset\) has the character \$ in it, .* to U-Boot"),
        ({"kernelParams": ["x='; reset; '"]}, "has the character ' in it"),
        ({"kernelParams": ["x\\n"]}, "has the character"),
        ({"kernelParams": ["a\nboot"]}, r"spec.kernelParams\[0\] has a line break"),
    ],
)
def test_what_means_something_else_to_u_boot_is_said(kind: Kind, spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScriptError, match=problem):
        text_of(kind, hardware(**spec))


REASON = "it's $(reset) ${x}\n'; reset\n\x1b[2J\\"


def test_reason_is_one_entry_that_starts_nothing_not_even_the_machines_own_command() -> None:
    text = ExtlinuxScripts(Scripts(BootSettings())).reason(MAC, REASON)
    assert text.splitlines()[-1] == "  localboot -1"
    assert [line.split()[0] for line in text.splitlines()] == ["default", "label", "menu", "localboot"]
    assert f"tinkedge does not boot {MAC} from the network: it's $(reset)" in text


def test_reason_is_shown_line_by_line_and_never_obeyed() -> None:
    text = UBootScripts(Scripts(BootSettings())).reason(MAC, REASON)
    *lines, last = text.splitlines()
    assert last == "false"
    assert len(lines) == 4
    for line in lines:
        assert (line[:6], line[-1], line.count("'")) == ("echo '", "'", 2)
        assert line.isprintable()


@given(st.text(max_size=30))
def test_quoted_text_is_one_word(text: str) -> None:
    word = quoted(text)
    assert (word[0], word[-1], word.count("'")) == ("'", "'", 2)


def test_image_is_a_legacy_script_with_both_checksums() -> None:
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


def test_file_of_pxelinux_cfg_says_whose_it_is() -> None:
    assert config_name(MAC) == "01-52-54-00-00-00-01"
    assert machine_of(config_name(MAC)) == MAC
    assert machine_of("01-52-54-00-AB-00-01") == "52:54:00:ab:00:01"
    for name in ("default", "0A000032", "01-52-54-00-00-00", "20-52-54-00-00-00-01", "01-52-54-00-00-00-01-x"):
        assert machine_of(name) is None
