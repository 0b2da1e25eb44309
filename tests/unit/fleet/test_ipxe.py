"""The fleet runs iPXE scripts as iPXE does: those that the edge renders, and the corners of the language."""

from __future__ import annotations

from typing import Any

import pytest

from edge.fleet.protocols.ipxe import Answer, Boot, ConfigureNetwork, Exit, Fetch, Interpreter, Sleep, Wanted
from ipxe.scripts import BootSettings, Origin, Scripts
from tink.api.v1alpha2 import Hardware

MAC = "02:f1:ee:00:00:01"


def carried_out(text: str, answers: dict[str, Any] | None = None) -> tuple[Exit, list[Wanted]]:
    """How a script ends, and what it wanted: a fetch is answered by the end of its URL, or by what it is for."""
    wanted: list[Wanted] = []
    script = Interpreter(text, {"mac": MAC, "filename": "http://10.9.0.1/auto.ipxe"}).run()
    answer: Answer = None
    try:
        while True:
            wanted.append(step := script.send(answer))
            given = answers or {}
            if isinstance(step, Fetch):
                answer = next(
                    (value for key, value in given.items() if step.url.endswith(key)), given.get(step.what, "")
                )
            else:
                answer = isinstance(step, ConfigureNetwork)
    except StopIteration as end:
        found: Exit = end.value
        return found, wanted


def rendered(**spec: Any) -> str:
    hardware = Hardware.model_validate(
        {
            "metadata": {"name": "m1", "namespace": "default"},
            "spec": {"networkInterfaces": {MAC: {}}, "osie": {"name": "lab"}} | spec,
        }
    )
    scripts = Scripts(BootSettings(token=lambda _mac: "secret"))
    return scripts.to_send(MAC, scripts.compile(MAC, hardware, Origin("10.9.0.1")))


def test_script_of_the_edge_boots_kernel_and_initrd():
    found, wanted = carried_out(rendered())
    fetched = [step.url.partition("?")[0].rpartition("/")[2] for step in wanted if isinstance(step, Fetch)]
    assert fetched == ["kernel", "initrd", "starting"]
    assert found.booted is not None
    assert found.booted.initrds == ("http://10.9.0.1:7080/osie/lab/initrd",)
    words = found.booted.command_line.split()
    assert {"tinkerbell_token=secret", f"worker_id={MAC}", "grpc_authority=10.9.0.1:42113"} <= set(words)


def test_script_of_the_edge_tries_again_and_asks_for_the_reason():
    why = "#!ipxe\necho the disk is full\nexit 1\n"
    found, wanted = carried_out(rendered(), {"/kernel": None, "?failed": why})
    urls = [step.url for step in wanted if isinstance(step, Fetch)]
    assert urls.count("http://10.9.0.1:7080/osie/lab/kernel") == 5
    assert sum(isinstance(step, Sleep) for step in wanted) == 4
    assert (found.booted, found.status, found.said) == (None, 1, "the disk is full")


def test_script_of_the_edge_asks_for_another_edge_where_this_one_is_gone():
    found, wanted = carried_out(rendered(), {"/kernel": None, "?failed": None, "auto.ipxe": None})
    assert any(isinstance(step, ConfigureNetwork) for step in wanted)
    assert found.booted is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("iseq a a && echo yes || echo no", "yes"),
        ("iseq a b && echo yes || echo no", "no"),
        ("iseq a b || iseq b b && echo yes", "yes"),
        ("isset ${nothing} ||\necho goes on", "goes on"),
        ("set x ${mac}\necho ${x} ${net0/mac}", f"{MAC} {MAC}"),
        ("set n:int32 4\ninc n\ninc n 2\necho ${n}", "7"),
        ("set a b\nset b c\necho ${${a}}", "c"),
        ("goto there\necho no\n:there\necho yes", "yes"),
        ("set x a b\necho ${x:uristring}", "a%20b"),
        ("echo one ; echo two", "two"),
    ],
)
def test_language_is_that_of_ipxe(line, said):
    found, _ = carried_out(f"#!ipxe\n{line}\n")
    assert (found.said, found.status) == (said, 0)


@pytest.mark.parametrize("line", ["nonsense", "iseq a b", "goto nowhere", "boot", "sleep soon"])
def test_command_that_fails_ends_the_script(line):
    found, _ = carried_out(f"#!ipxe\n{line}\nkernel http://10.9.0.1/kernel\nboot\n")
    assert (found.booted, found.status) == (None, 1)


def test_freeing_one_image_keeps_the_kernel():
    found, _ = carried_out("#!ipxe\nkernel http://h/k a=b\nimgfetch --name sign http://h/s\nimgfree sign\nboot\n")
    assert found.booted == Boot("http://h/k", "a=b", ())


def test_chained_script_goes_on_with_the_same_settings():
    found, _ = carried_out("#!ipxe\nset x 1\nchain --replace http://h/next\n", {"next": "#!ipxe\necho ${x}\nexit 3\n"})
    assert (found.said, found.status) == ("1", 3)


@pytest.mark.parametrize("text", [":again\ngoto again\n", "chain http://h/self ||\n"])
def test_script_without_an_end_is_ended(text):
    found, _ = carried_out(f"#!ipxe\n{text}", {"self": "#!ipxe\nchain http://h/self\n"})
    assert found.booted is None
