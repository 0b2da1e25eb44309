"""Remedies for a failed or refused step, for the messages that the edge's recorders write."""

from __future__ import annotations

import pytest

from edge.journey.events import JourneyEvent, Outcome, Step
from edge.journey.expectations.rules.remedies import remedy

FAILED, REFUSED = Outcome.FAILED, Outcome.REFUSED
OSIE = "OSIE default/lab: kernelUrl http://mirror/kernel: "


def checks(step: Step, outcome: Outcome, message: str) -> str:
    return "; ".join(remedy(JourneyEvent(0.0, "52:54:00:00:00:01", step, outcome, message))[1])


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("outcome", [FAILED, REFUSED])
def test_every_failed_or_refused_step_has_checks(step: Step, outcome: Outcome) -> None:
    if step is not Step.SEEN:  # being heard can't fail
        assert checks(step, outcome, "words that no pattern knows")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("404 Not Found", "correct that field of the OSIE"),
        ("403 Forbidden", "let this host read the file"),
        ("503 Service Unavailable", "with curl"),
        ("no connection: Connection refused", "with curl"),
        ("connection broke after 100002 bytes", "with curl"),
        ("host name no-such-host.invalid can't be resolved", "/etc/resolv.conf"),
        ("its TLS certificate is not trusted by this host", "trusted certificates"),
        ("wrong SHA-256: the OSIE says 0, but what came has 1", "sha256sum"),
        ("the upstream answered with a web page (text/html), not a file", "open the URL"),
        ("3000000 bytes are more than the whole cache may hold, 2000000 (see --cache-size)", "--cache-size"),
        ("stopped sending after 5 bytes", "with curl"),
    ],
)
@pytest.mark.parametrize("step", [Step.KERNEL, Step.INITRD])
def test_file_that_the_upstream_does_not_give_says_where_to_look(step: Step, message: str, says: str) -> None:
    assert says in checks(step, FAILED, OSIE + message)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("TemplateError: Template default/m1: no entry for key", "correct the Template"),
        (
            "ImagePullFailed: image r:5000/a:1: the registry has no such image, or no such tag (HTTP 404)",
            "push that image",
        ),
        ("ImagePullFailed: image r:5000/a:1: it requires a user and password", "user and password"),
        ("ImagePullFailed: image r:5999/a:1: r:5999: Connection refused", "--registry-ca"),
        ("ActionTimeout: the action 'write' did not complete within 2 s", "longer timeout"),
        ("AgentLost: its agent has not been heard", "its console shows why"),
        ("NonZeroExit: exit code 3", "kubectl describe workflow"),
    ],
)
def test_workflow_that_failed_says_what_to_correct(message: str, says: str) -> None:
    assert says in checks(Step.WORKFLOW, FAILED, f"workflow default/m1: Failed: {message}")


@pytest.mark.parametrize(
    ("step", "outcome", "message", "says"),
    [
        (Step.DHCP, REFUSED, "local boot: spec.networkInterfaces[x].disableNetboot is true", "set that field to false"),
        (Step.AGENT, REFUSED, "10.0.0.5: its token is not signed with a key of this server", "gets a new token"),
        (Step.AGENT, REFUSED, "10.0.0.5 asked as 'x': no Hardware has the MAC address or name 'x'", "register it"),
        (Step.SCRIPT, FAILED, "no boot: OSIE default/x, which Hardware m1 names, does not exist", "create that OSIE"),
        (
            Step.METADATA,
            FAILED,
            "metadata request from 10.0.0.29, which is not an address of this machine",
            "correct dhcp.ip",
        ),
        (Step.BOOT, FAILED, "iPXE could not start the kernel", "https://ipxe.org/"),
        (Step.TFTP, FAILED, "TFTP transfer of snponly.efi failed, no answer for 16 s", "its screen may show why"),
    ],
)
def test_refusal_or_failure_has_a_remedy(step: Step, outcome: Outcome, message: str, says: str) -> None:
    assert says in checks(step, outcome, message)


def test_message_that_has_its_own_remedy_gets_no_second_one() -> None:
    own = "accepted the offer of another DHCP server, 10.0.0.2, so it may not boot from this edge. Stop that server"
    assert checks(Step.DHCP, FAILED, own) == ""


def test_missing_osie_of_a_discovered_machine_names_the_rule() -> None:
    def of(hardware: str) -> str:
        return checks(
            Step.SCRIPT, FAILED, f"no boot: OSIE default/nowhere, which Hardware {hardware} names, does not exist"
        )

    assert "osie= of the rule of --discover" in of("discovery-52-54-00-12-34-56")
    assert of("m1") == "create that OSIE, or correct spec.osie.name of the Hardware"
