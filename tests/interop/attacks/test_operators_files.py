"""A machine on the link reads another machine's own directory of `--tftp-dir`, by links and by unusual names.

    edge's namespace: `tinkedge up --tftp-dir` on 172.31.77.1
    "near":           the machine whose MAC names the directory
    "stranger":       another machine

Both machines have a Hardware.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.test_edge_modes import ADDRESSES, MACS, Edge, dashed, running
from tests.waiting import wait_until

SECRET = b"for the machine near alone"
OWN = dashed(MACS["near"])

NAMES = {
    "its name": f"{OWN}/keys",
    "a link to the file": "link",
    "a link to the directory": "by-name/near/keys",
    "a link to the root": f"all/{OWN}/keys",
    "behind the own name": f"{dashed(MACS['stranger'])}/{OWN}/keys",
    "behind a made-up name": f"02-00-00-00-00-01/{OWN}/keys",
    "behind a serial number": f"1a2b3c4d/{OWN}/keys",
}


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    directory = tmp_path_factory.mktemp("operators-files")
    files = directory / "tftp"
    (files / OWN).mkdir(parents=True)
    (files / OWN / "keys").write_bytes(SECRET)
    (files / "link").symlink_to(f"{OWN}/keys")
    (files / "by-name").mkdir()
    (files / "by-name" / "near").symlink_to(f"../{OWN}")
    (files / "all").symlink_to(".")
    with running(directory, "--tftp-dir", files) as edge:
        for name in ("near", "stranger"):
            edge.machine(name, address=ADDRESSES[name])
            edge.register(name, ADDRESSES[name])
        yield edge


@pytest.mark.parametrize("way", NAMES)
def test_other_machine_reads_nothing_of_a_machines_own_directory(edge: Edge, way: str) -> None:
    content, output = edge.tftp("stranger", NAMES[way], "busybox")
    assert content == b"", output
    assert "its own machine only" in output or "no such file" in output


@pytest.mark.parametrize("way", [way for way in NAMES if way != "behind the own name"])
def test_machine_reads_its_own_directory_by_any_of_these_names(edge: Edge, way: str) -> None:
    content, output = edge.tftp("near", NAMES[way], "busybox")
    assert content == SECRET, output


def test_attempt_is_recorded_on_the_journey_of_the_machine_that_owns_the_file(edge: Edge) -> None:
    edge.tftp("stranger", "link", "busybox")
    wait_until(lambda: any(ADDRESSES["stranger"] in line for line in edge.journey(MACS["near"], "info")))
