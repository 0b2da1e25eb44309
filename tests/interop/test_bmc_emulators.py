"""Emulators of BMCs by other projects, as second opinions: pyghmi's fakebmc (IPMI) and sushy-tools' emulator (Redfish).

    kubectl -- tinkedge up -- ipmitool -- fakebmc
                           -- Redfish --- sushy-emulator -- a web server with an image

All run on the loopback of one namespace: fakebmc listens at all addresses of its host.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.rack import IN_EDGE
from tests.interop.test_bmc import BmcHost
from tests.support.bmc import certificate
from tests.waiting import wait_until

pytestmark = pytest.mark.long

EMULATORS = Path(sys.prefix) / "bmc-emulators" / "bin"
IPMI_PORT, REDFISH_PORT, IMAGE_PORT = 6230, 8443, 8080
SYSTEM = "27946b59-9e44-4fa7-8e91-f3527a1ef094"
MAC = "52:54:00:12:34:56"
SUSHY = f"""
SUSHY_EMULATOR_LISTEN_IP = "127.0.0.1"
SUSHY_EMULATOR_LISTEN_PORT = {REDFISH_PORT}
SUSHY_EMULATOR_SSL_CERT = SUSHY_EMULATOR_SSL_KEY = "DIRECTORY/bmc.pem"
SUSHY_EMULATOR_AUTH_FILE = "DIRECTORY/users"
SUSHY_EMULATOR_STATE_DIR = "DIRECTORY"
SUSHY_EMULATOR_FAKE_DRIVER = True
SUSHY_EMULATOR_FAKE_SYSTEMS = [
    dict(uuid="{SYSTEM}", name="node", power_state="Off", external_notifier=False, nics=[dict(mac="{MAC}", ip="::1")])
]
"""
PXE_ONCE = {"bootDevice": {"device": "pxe", "efiBoot": True}}
PXE_ALWAYS = {"bootDevice": {"device": "pxe", "efiBoot": True, "persistent": True}}


class Site(BmcHost):
    """A host with `tinkedge up` and one emulator, whose Machine is `node-0`."""

    def emulator(self, name: str, *words: str | Path, listens: str) -> None:
        """Start an emulator, and wait until it has this socket (`udp:6230`)."""
        program = EMULATORS / name
        assert program.exists(), "deploy/setup.sh bmc-emulators installs it"
        self.process = self.start(IN_EDGE, program, *words, PYTHONUNBUFFERED="1")
        wait_until(lambda: listens in self.listening(), lambda: self.process.err, every=0.1)

    def machine(self, password: str, contactable: str = "True", *, user: str = "admin", **connection: Any) -> None:
        """Create the Machine and its Secret, and wait until its condition Contactable has this status."""
        about = {"name": "node-0", "namespace": "default"}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": about}
        machine = {"apiVersion": "bmc.tinkerbell.org/v1alpha1", "kind": "Machine", "metadata": about}
        connection = {"host": "127.0.0.1", "insecureTLS": False, "authSecretRef": about, **connection}
        items = [
            secret | {"stringData": {"username": user, "password": password}},
            machine | {"spec": {"connection": connection}},
        ]
        self.kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        done = self.kubectl.run(
            "wait", "--timeout=90s", f"--for=condition=Contactable={contactable}", "machine.bmc/node-0"
        )
        assert done.popen.returncode == 0, self.kubectl("get", "machine.bmc", "-o", "wide") + self.served.err

    def power(self) -> str:
        return self.command("power", "node-0", "status").out.strip()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site


IPMI: dict[str, Any] = {"preferredOrder": ["ipmitool"], "ipmitool": {"port": IPMI_PORT, "cipherSuite": "3"}}


def test_fakebmc_of_pyghmi_switches_power_and_its_lost_efi_bit_is_named(site: Site) -> None:
    site.emulator("fakebmc", "--port", str(IPMI_PORT), listens=f"udp:{IPMI_PORT}")
    site.machine("password", providerOptions=IPMI)
    assert site.power() == "off"
    assert site.job("soft", {"powerAction": "on"}, {"powerAction": "status"}, {"powerAction": "soft"}) == [
        "Completed: the BMC reports On",
        "Completed: the power is on",
        "Completed: the BMC reports Off",
    ]
    site.job("cycle", {"powerAction": "on"}, {"powerAction": "cycle"})
    assert site.process.out.splitlines() == [
        "powered on",
        "politely shut down the system",
        "powered on",
        "abruptly remove power",
        "powered on",
    ]
    assert site.power() == "on"

    # It keeps the device alone.
    (ended,) = site.job("once", PXE_ONCE)
    assert ended.startswith("Failed: the BMC accepted UEFI and reports Legacy (BootSourceOverrideMode); ")
    (ended,) = site.job("always", PXE_ALWAYS)
    assert ended.startswith("Failed: the BMC accepted Continuous, UEFI and reports Once, Legacy (")
    assert site.job("legacy", {"bootDevice": {"device": "cdrom"}}) == [
        "Completed: the BMC reports boot target Cd, enabled Once"
    ]
    checked = site.command("bmc", "check", "node-0").out
    assert "login         ok" in checked


@pytest.mark.parametrize(
    ("account", "options", "reason", "words"),
    [
        (("admin", "password"), {"port": IPMI_PORT}, "NotSupported", "it does not have cipher suite 17"),
        (("admin", "wrong"), IPMI["ipmitool"], "CredentialsRefused", "the password in the Secret is wrong for IPMI"),
        (("stranger", "password"), IPMI["ipmitool"], "BmcUnreachable", "check the user in the Secret"),
    ],
    ids=["cipher suite", "password", "user"],
)
def test_refusal_of_fakebmc_has_its_own_cause(
    site: Site, account: tuple[str, str], options: dict[str, Any], reason: str, words: str
) -> None:
    site.emulator("fakebmc", "--port", str(IPMI_PORT), listens=f"udp:{IPMI_PORT}")
    user, password = account
    providers = {"preferredOrder": ["ipmitool"], "ipmitool": options}
    site.machine(password, "False", user=user, providerOptions=providers)
    (condition,) = json.loads(site.kubectl("get", "machine.bmc", "node-0", "-o", "json"))["status"]["conditions"]
    assert (condition["reason"], words in condition["message"]) == (reason, True), condition


def test_sushy_emulator_switches_power_and_its_lie_about_once_is_named(site: Site) -> None:
    image = site.directory / "www" / "boot.iso"
    image.parent.mkdir()
    image.write_bytes(b"x" * 4096)
    web = site.start(IN_EDGE, sys.executable, "-m", "http.server", "--directory", image.parent, str(IMAGE_PORT))
    made = certificate("127.0.0.1")
    (site.directory / "bmc.pem").write_bytes(made.chain)
    hashed = site.run(
        IN_EDGE,
        EMULATORS / "python",
        "-c",
        "import bcrypt; print(bcrypt.hashpw(b'password', bcrypt.gensalt(4)).decode())",
    ).out
    (site.directory / "users").write_text(f"admin:{hashed}")
    config = site.directory / "sushy.py"
    config.write_text(SUSHY.replace("DIRECTORY", str(site.directory)))
    site.emulator("sushy-emulator", "--config", config, listens=f"tcp:{REDFISH_PORT}")
    site.machine(
        "password", certificateFingerprint=made.fingerprint, providerOptions={"redfish": {"port": REDFISH_PORT}}
    )
    assert site.power() == "off"
    assert site.job("always", PXE_ALWAYS, {"powerAction": "on"}, {"powerAction": "cycle"}) == [
        "Completed: the BMC reports boot target Pxe, enabled Continuous, mode UEFI",
        "Completed: the BMC reports On",
        "Completed: the BMC reports On",
    ]
    assert site.power() == "on"

    # Its System has Continuous, whatever was set.
    (ended,) = site.job("once", PXE_ONCE)
    assert ended.startswith("Failed: the BMC accepted Once and reports Continuous (BootSourceOverrideEnabled); ")

    url = f"http://127.0.0.1:{IMAGE_PORT}/boot.iso"
    insert, eject = ({"virtualMediaAction": {"kind": "CD", "mediaURL": each}} for each in (url, ""))
    assert site.job("media", insert, eject) == [
        f"Completed: the BMC reports {url} in Cd",
        "Completed: the BMC reports no medium of the kind CD",
    ]
    assert "GET /boot.iso" in web.err
    absent = {"virtualMediaAction": {"kind": "CD", "mediaURL": f"http://127.0.0.1:{IMAGE_PORT}/absent.iso"}}
    (ended,) = site.job("absent", absent)
    assert ended.startswith("Failed: ")
    assert "check that the BMC reaches the URL" in ended
