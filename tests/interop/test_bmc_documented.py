"""docs/bmc.md and deploy/examples/bmc: the tests type their commands in order, with kubectl, against a fake BMC.

The manifests get the address and the account of the fake BMC.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interop.rack import IN_EDGE, TINKEDGE
from tests.interop.test_bmc import BmcSite
from tests.support.bmc import PASSWORD, USER
from tests.support.objects import hardware
from tests.waiting import wait_until

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "bmc.md"
EXAMPLES = ROOT / "deploy" / "examples"
_BLOCK = re.compile(r"^ *```yaml\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def chapter(heading: str) -> str:
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, heading
    return section


def manifests(heading: str) -> list[str]:
    """Return the manifests of a chapter."""
    return [textwrap.dedent(block) for block in _BLOCK.findall(chapter(heading))]


def commands(heading: str) -> list[str]:
    """Return the commands of a chapter: the indented lines that are no manifests."""
    found = re.findall(r"^ {4,7}(\S.*)$", _BLOCK.sub("", chapter(heading)), re.MULTILINE)
    assert found, heading
    return found


class Site(BmcSite):
    """A host with `tinkedge up` and a fake BMC on its loopback, and an operator who types commands."""

    def build(self) -> None:
        super().build()
        about = yaml.safe_load(self.bmc.out.splitlines()[0])
        self.port, self.fingerprint = about["port"], about["fingerprint"]
        self.bin = self.directory / "bin"
        self.bin.mkdir()
        (self.bin / "tinkedge").write_text(f'#!/bin/sh\nexec {" ".join(TINKEDGE)} "$@"\n')
        (self.bin / "tinkedge").chmod(0o755)
        (self.bin / "kubectl").symlink_to(str(shutil.which("kubectl")))

    def type(self, line: str) -> str:
        """Execute a line of the page and return its output. Raises AssertionError if it fails."""
        kubeconfig = self.directory / "data" / "kubeconfig"
        typed = f"set -eo pipefail\ncd {self.directory}\n{line.replace('192.168.2.10:443', f'127.0.0.1:{self.port}')}"
        path = f"PATH={self.bin}:/usr/bin:/bin:/usr/local/bin"
        names = [f"{name}={kubeconfig}" for name in ("KUBECONFIG", "TINKEDGE_KUBECONFIG")]
        process = self.run(IN_EDGE, "env", path, *names, "bash", "-c", typed)
        assert process.popen.returncode == 0, (line, process.out, process.err, self.served.err)
        return process.out

    def save(self, name: str, text: str) -> None:
        """Write a manifest of the page to a file, for the fake BMC."""
        (self.directory / name).write_text(yaml.safe_dump_all(map(self._here, yaml.safe_load_all(text))))

    def _here(self, document: dict[str, Any]) -> dict[str, Any]:
        if document["kind"] == "Secret":
            document["stringData"] = {"username": USER, "password": PASSWORD}
        elif document["kind"] == "Machine":
            document["spec"]["connection"] |= {
                "host": "127.0.0.1",
                "certificateFingerprint": self.fingerprint,
                "providerOptions": {"redfish": {"port": self.port}},
            }
        return document


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site


def test_commands_of_the_page_work_in_their_order(site: Site) -> None:
    site.kubectl.apply(yaml.safe_dump(hardware("machine-1", "52:54:00:12:34:56")))
    site.save("bmc.yaml", manifests("Your first BMC")[0])
    site.save("netboot.yaml", manifests("Jobs")[0])

    fingerprint, *others = commands("Your first BMC")
    assert site.type(fingerprint).rpartition("=")[2].strip().replace(":", "").lower() == site.fingerprint
    said = "".join(map(site.type, others))
    assert "machine-1-bmc" in said
    assert "login         ok" in said

    status, on, cycle = commands("Power, now")
    assert site.type(status).strip() in ("on", "off")
    site.type(on)
    site.type(cycle)
    assert site.state()["power"] == "On"

    said = "".join(map(site.type, commands("Jobs")))
    assert {f"netboot-machine-1-task-{number}" for number in range(3)} <= set(said.split())
    wait_until(lambda: "Pxe" in site.state()["boots"], lambda: site.bmc.out)

    annotate, get = commands("Inventory")
    site.type(annotate)
    wait_until(lambda: site.type(get) == "52:54:00:00:00:01", lambda: site.served.err, every=0.5)
    assert site.state()["failed_logins"] == 0


def test_machine_of_the_example_is_booted_by_its_bmc_before_its_workflow(site: Site) -> None:
    """The edge's report of the DISCOVER is written by the test: the fake BMC has no machine."""
    site.kubectl.apply((EXAMPLES / "debian" / "debian.yaml").read_text())
    site.save("machine.yaml", (EXAMPLES / "bmc" / "machine.yaml").read_text())
    site.type("kubectl apply -f machine.yaml")

    def workflow() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(site.kubectl("get", "workflow", "install-machine-1", "-o", "json"))
        return found

    def reason() -> str:
        conditions = workflow().get("status", {}).get("conditions", [])
        return next((each["reason"] for each in conditions if each["type"] == "BootPrepared"), "")

    def card() -> dict[str, Any]:
        (found,) = json.loads(site.kubectl("get", "hardware", "machine-1", "-o", "json"))["spec"][
            "networkInterfaces"
        ].values()
        return dict(found)

    wait_until(lambda: reason() == "WaitingForDiscover", lambda: site.served.err, every=0.3)
    wait_until(lambda: site.state()["boots"] == ["Pxe"], lambda: site.bmc.out)
    assert card()["disableNetboot"] is False
    shown, boot, *_ = commands("Boot before a Workflow")
    assert "boot: pxe, attempt 1: " in site.type(shown)
    assert json.loads(site.type(boot))["way"] == "pxe"

    last = {"at": "2099-01-01T00:00:00Z", "client": "Netboot", "mac": "00:00:5e:00:53:61"}
    patch = ["patch", "hardware", "machine-1", "--subresource=status", "--type=merge", "-p"]
    site.kubectl(*patch, json.dumps({"status": {"lastBoot": last}}))
    site.kubectl("wait", "--for=condition=BootPrepared", "--timeout=120s", "workflow/install-machine-1")
    assert reason() == "Booted"

    site.kubectl("delete", "workflow", "install-machine-1")
    wait_until(lambda: card()["disableNetboot"] is True, lambda: site.served.err, every=0.3)
    assert site.state()["resets"] == ["ForceOff", "On"]
    assert site.state()["failed_logins"] == 0
