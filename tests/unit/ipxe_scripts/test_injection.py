"""Whatever stands in a Hardware or in a reason: iPXE runs the commands of our templates, and no others.

`commands` reads a script as iPXE does (src/image/script.c: lines, continued by a backslash, and labels; then
src/core/exec.c: words, `&&`, `||`, `;` and comments). Each script must have the same commands as one made of harmless
values.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ipxe.scripts import BootSettings, Origin, ScriptError, Scripts
from tink.api.v1alpha2 import Hardware

MAC = "52:54:00:00:00:01"
SCRIPTS = Scripts(BootSettings())
ORIGINS = (Origin("10.0.0.1"), Origin("10.0.0.1", tftp=True))
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


def hardware(name: str = "m1", **spec: Any) -> Hardware:
    card: dict[str, Any] = {"dhcp": {"ip": "10.0.0.5", "vlanId": spec.pop("vlan", None)}}
    return Hardware.model_validate(
        {
            "metadata": {"name": name, "namespace": name},
            "spec": {"networkInterfaces": {MAC: card}, "osie": {"name": "lab"}} | spec,
        }
    )


def same(harmless: Hardware, given_one: Hardware) -> None:
    for origin in ORIGINS:
        expected = commands(SCRIPTS.compile(MAC, harmless, origin).text)
        with suppress(ScriptError):  # which is shown by a script of its own
            assert commands(SCRIPTS.compile(MAC, given_one, origin).text) == expected


@pytest.mark.parametrize("vlan", [None, "100"])
@settings(max_examples=50, deadline=None)
@given(st.lists(evil, max_size=3), evil)
@example(["a &&", "b"], "x")
@example(["\\"], "lab\\")
def test_boot_script_runs_its_own_commands_only(vlan: str | None, parameters: list[str], text: str) -> None:
    harmless = hardware(vlan=vlan, kernelParams=["quiet"])
    same(harmless, hardware(name=text, vlan=vlan, kernelParams=parameters, osie={"name": text or "x"}))


@pytest.mark.parametrize("vlan", [None, "100"])
@settings(max_examples=50, deadline=None)
@given(evil)
@example("x\\")
def test_script_that_goes_on_to_a_url_runs_its_own_commands_only(vlan: str | None, text: str) -> None:
    harmless = hardware(vlan=vlan, ipxe={"url": "http://10.0.0.2/x"})
    with suppress(ValueError):  # the schema's: no such Hardware is served
        same(harmless, hardware(name=text, vlan=vlan, ipxe={"url": f"http://10.0.0.2/{text}"}))


@settings(max_examples=100, deadline=None)
@given(st.lists(evil, min_size=1, max_size=4).map("\n".join))
@example("it ends so \\\nand goes on")
@example("\\")
def test_reason_is_shown_and_nothing_else_is_done(reason: str) -> None:
    script = SCRIPTS.reason(MAC, reason)
    ours = commands(SCRIPTS.reason(MAC, ""))
    at = ours.index((":give_up", ())) if (":give_up", ()) in ours else 2
    shown = len(commands(script)) - len(ours)
    assert commands(script) == [*ours[:at], *[("", ("echo",))] * shown, *ours[at:]]


def test_reason_without_end_does_not_fill_the_stack_of_ipxe() -> None:
    longest = max(SCRIPTS.reason(MAC, "a " * 100_000).splitlines(), key=len)
    assert len(longest.split()) < 250


@settings(max_examples=40, deadline=None)
@given(evil)
def test_error_that_names_a_value_is_shown_and_not_obeyed(text: str) -> None:
    """A ScriptError quotes what is wrong, and goes to the screen."""
    try:
        SCRIPTS.compile(MAC, hardware(name=text, kernelParams=[text]), ORIGINS[0])
    except ScriptError as error:
        names = {name for _, names in commands(SCRIPTS.reason(MAC, str(error))) for name in names}
        assert names == {"echo", "imgfree", "sleep", "exit"}
