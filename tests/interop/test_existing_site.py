"""Requests of machines at a site that had Smee and Hegel, against a real `tinkedge up` in a rack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rack import ADDRESS, IN_EDGE, Kubectl
from tests.interop.test_up import EXAMPLES, IN_MACHINE, MACHINE, Rack
from tests.waiting import wait_until

STRANGE = "172.31.77.60"
HOOKOS = "tink_worker_image=10.0.0.1:5000/tink-agent:v0.25.0"
"""The word by which the test finds its agent."""


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    with Rack(tmp_path_factory.mktemp("existing")) as rack:
        process = rack.up(
            rack.directory / "data",
            *("--kernel-parameters", "id={{.Name}}"),
            *("--legacy-ports", "50061", "--netboot-when", "allowed"),
        )
        rack.ready(process)
        kubectl = Kubectl(rack, rack.directory / "data/kubeconfig")
        kubectl("apply", "-f", EXAMPLES)
        wait_until(lambda: f" worker_id={MACHINE} " in got(rack, ":7080/auto.ipxe"))
        assert "udp:514" not in rack.listening(), "no machine logs to this edge"
        kubectl("annotate", "osie", "--all", f"tinkerbell.org/kernel-parameters={HOOKOS}")
        rack.run(IN_MACHINE, "ip", "address", "add", f"{STRANGE}/24", "dev", "eth0")
        yield rack


def got(rack: Rack, url: str, *options: str) -> str:
    return rack.run(IN_MACHINE, "curl", "-s", "--max-time", "15", *options, f"http://{ADDRESS}{url}").out


def test_script_and_metadata_are_at_the_old_ports_and_paths(rack: Rack) -> None:
    for url in (":7080/auto.ipxe", f":50061/{MACHINE}/auto.ipxe", ":50061/ipxe/script/auto.ipxe"):
        wait_until(lambda url=url: f" worker_id={MACHINE} " in got(rack, url), lambda url=url: got(rack, url))
        # The same machine, from an address without a Hardware.
        assert MACHINE not in got(rack, url, "--interface", STRANGE)
    for word in (HOOKOS, f"syslog_host={ADDRESS}", "id=lab-machine"):
        wait_until(lambda word=word: f" {word} " in got(rack, ":7080/auto.ipxe"))
    assert '"instance"' in got(rack, ":50061/metadata")
    assert "git_rev" in got(rack, ":7080/healthcheck")


def test_syslog_lines_are_stored_for_known_machines_only(rack: Rack) -> None:
    wait_until(lambda: HOOKOS in got(rack, ":7080/auto.ipxe"))
    wait_until(lambda: "udp:514" in rack.listening())
    data = rack.directory / "data"
    kept = data / "machine-logs" / f"{MACHINE.replace(':', '-')}.log"

    def send(form: str, text: str) -> None:
        # `logger` sends from the address that the route prefers: the machine's first.
        rack.run(IN_MACHINE, "logger", "-n", ADDRESS, "-P", "514", "-d", form, "-t", "image2disk", text)

    def logged() -> str:
        send("--rfc3164", "wrote 1 GiB")
        send("--rfc5424", "wrote 2 GiB")
        return kept.read_text() if kept.exists() else ""

    wait_until(lambda: "image2disk: wrote 2 GiB" in logged())
    assert "notice image2disk: wrote 1 GiB\n" in kept.read_text()
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    watching = rack.tinkedge(IN_EDGE, "watch", "--logs", "--data-dir", data, MACHINE)
    wait_until(lambda: "log       notice image2disk: wrote 1 GiB" in watching.out, lambda: watching.out + watching.err)
    watching.end()
    forged = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
    forged += f"s.bind(('{STRANGE}', 0)); s.sendto(b'<13>x: forged', ('{ADDRESS}', 514))"
    rack.run(IN_MACHINE, "python3", "-c", forged)
    metrics = ["curl", "-s", "http://127.0.0.1:7081/metrics"]
    wait_until(lambda: 'tinkedge_syslog_lines_total{outcome="stranger"} 1.0' in rack.run(IN_EDGE, *metrics).out)
    assert [path.name for path in sorted(Path(kept.parent).iterdir())] == [kept.name]
    assert "forged" not in kept.read_text()
