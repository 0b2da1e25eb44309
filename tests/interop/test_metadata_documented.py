"""The commands of docs/metadata.md, with the real kubectl against a running `tinkedge up`, and the machines' answers.

Other tests try the configuration files of that page with cloud-init: `test_cloud_init`, `test_cloud_init_asking`.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.cloud_init.rack import BASE, MetadataRack, Registered
from tests.interop.rack import ADDRESS, IN_EDGE
from tests.waiting import wait_until

PAGE = (Path(__file__).resolve().parents[2] / "docs/metadata.md").read_text()
FIRST = Registered("machine-1", "52:54:00:00:0d:01", "172.31.77.51")
SECOND = Registered("machine-2", "52:54:00:00:0d:02", "172.31.77.52")
SECRET = "machine-1-userdata"
KEPT_SECONDS = 10.0
WORD = "#cloud-config\n# of the Secret\n"


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataRack]:
    with MetadataRack(tmp_path_factory.mktemp("rack")) as running:
        running.up("--disable", "dhcp", "--disable", "tftp")
        running.register(FIRST, SECOND)
        yield running


def documented(start: str) -> str:
    """Return the command of the page that begins with `start`."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"    {start}"))
    return line.strip()


def typed(rack: MetadataRack, command: str, userdata: bytes) -> None:
    """Run a command of the page in a directory with a file `user-data`."""
    (rack.directory / "user-data").write_bytes(userdata)
    process = rack.run(
        *(IN_EDGE, "env", f"KUBECONFIG={rack.directory}/data/kubeconfig", f"HOME={rack.directory}"),
        *("bash", "-euc", f"cd {shlex.quote(str(rack.directory))}; {command}"),
    )
    assert process.popen.returncode == 0, process.err


def get(rack: MetadataRack, machine: Registered, path: str) -> tuple[int, bytes]:
    """Return status and body of the machine's request."""
    body = rack.directory / "body"
    process = rack.run(machine.name, "curl", "-s", "-o", body, "-w", "%{http_code}", "--max-time", "15", BASE + path)
    return int(process.out), body.read_bytes()


def test_gzip_of_the_page_arrives_as_gzip(rack: MetadataRack) -> None:
    userdata = b"#cloud-config\n" + b"# many words\n" * 1000
    typed(rack, documented("kubectl patch hw"), userdata)
    wait_until(lambda: get(rack, FIRST, "/latest/user-data")[0] == 200)
    status, body = get(rack, FIRST, "/latest/user-data")
    assert (status, body[:2], gzip.decompress(body)) == (200, b"\x1f\x8b", userdata)


def test_secret_of_the_page_reaches_its_machine_only_and_a_changed_one_within_seconds(rack: MetadataRack) -> None:
    typed(rack, documented("kubectl annotate hw"), b"")

    def answer() -> tuple[int, bytes]:
        return get(rack, FIRST, "/2009-04-04/user-data")

    # Without the Secret, the machine must not boot without its user data.
    wait_until(lambda: answer()[0] == 503)
    assert f"Secret default/{SECRET} (key userData or value) does not exist: create it" in answer()[1].decode()
    assert "user-data" in get(rack, FIRST, "/2009-04-04/")[1].decode().split("\n")
    (refused,) = (event for event in rack.journey(FIRST) if event["outcome"] == "failed")
    assert SECRET in refused["message"]
    wait_until(lambda: SECRET in rack.process.err)

    typed(rack, documented("kubectl create secret"), WORD.encode())
    wait_until(lambda: answer() == (200, WORD.encode()))
    assert get(rack, FIRST, "/nocloud/machine-1/user-data") == (200, WORD.encode())
    assert get(rack, SECOND, "/nocloud/machine-1/user-data")[0] == 403
    assert get(rack, SECOND, "/2009-04-04/user-data")[0] == 404

    rack.kubectl("patch", "secret", SECRET, "-p", json.dumps({"stringData": {"userData": "#!/bin/true"}}))
    wait_until(lambda: answer() == (200, b"#!/bin/true"), answer, within=KEPT_SECONDS + 20, every=0.3)
    assert "of the Secret" not in rack.process.err + json.dumps(rack.journey(FIRST))


def test_listing_and_old_metadata_match_the_page(rack: MetadataRack) -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    storage = json.dumps(json.loads(shown)["metadata"]["instance"]["storage"])
    rack.kubectl("annotate", "hw", "machine-1", f"tinkerbell.org/storage={storage}")
    wait_until(lambda: b"/dev/sda1" in get(rack, FIRST, "/metadata")[1])
    for theirs, ours in (("192.168.1.10", FIRST.address), ("192.168.1.1", ADDRESS)):
        shown = shown.replace(f'"{theirs}"', f'"{ours}"')
    metadata: Any = json.loads(get(rack, FIRST, "/metadata")[1])
    assert metadata == json.loads(shown)

    (url,) = re.findall(r"`curl http://192\.168\.1\.1:7080(\S*)`", PAGE)
    assert get(rack, FIRST, url)[1].decode().split("\n")[:2] == ["hostname", "instance-id"]
