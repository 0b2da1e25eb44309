"""BMCs that lie, in front of a real machine: it netboots by itself, or the true cause is named, and nothing false.

`tests/boot/bmc_rig.py` has the machine, the BMC and `tinkedge up`; all tests of this file share one.
`TINKEDGE_RECORD=1 python -m pytest tests/boot/test_bmc_lies.py` writes docs/engineering/bmc-faults.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.boot.bmc_rig import LINUX, NAMED_AFTER_SECONDS, NEXT_AFTER_SECONDS, Case, Outcome
from tests.support.bmc import PASSWORD, Fault
from tink.bmc.boot import PROGRESS_REASONS

pytestmark = pytest.mark.long

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engineering" / "bmc-faults.md"
_HEAD = f"""# BMCs that lie, and what is reported

A simulated BMC with one fault stands in front of a QEMU that starts from its disk unless the BMC makes it netboot. A
Workflow with `bootOptions.bootMode: netboot` is created for it, with a real `tinkedge up`. The machine netboots, or the
condition `BootPrepared` of the Workflow names the cause. The seconds count from the creation of the Workflow, in one
run on two processors, with `--bmc-boot-named-after {NAMED_AFTER_SECONDS}` and
`--bmc-boot-next-after {NEXT_AFTER_SECONDS}`. No other problem is reported. After each case, BMC control has released
the deleted Workflow, and the BMC has neither a boot device nor a medium left.
`TINKEDGE_RECORD=1 python -m pytest tests/boot/test_bmc_lies.py` writes this page.

| the BMC | s | outcome | failed logins |
|---|---|---|---|
"""
_WRONG_PASSWORD = "not-the-password"
_MAC = r"52:54:00:77:00:[0-9a-f]{2}"
_NAMED_SECONDS = 60.0
"""A cause is named within this time from the first event of the Workflow, by the clock of `tinkedge up`."""


def lie(name: str, *faults: Fault, **fields: Any) -> Case:
    return Case(name, tuple(each.name for each in faults), **fields)


_NO_DISCOVER = (
    rf"pxe, attempt \d+: the BMC reports On, no boot override any more, no DISCOVER from {_MAC}; possible causes: "
    r"cable, VLAN, or wrong MAC; network boot disabled in the firmware's setup; "
    r"the installed system started and sent no DHCP packet"
)
_OVERDUE = r"pxe, attempt \d+: [a-z ]+ takes longer than 10 s"
"""True of any step after that time, by the clock of `tinkedge up`."""
_BUSY_REASON, _BAD_REASON = "BmcBusy", "BadAnswer"
_STORM = r"it answers 503 to GET /redfish/v1/: ServiceTemporarilyUnavailable"

LIES = (
    lie("is honest"),
    lie(
        "accepts the boot device and ignores it",
        Fault.BOOT_IGNORED,
        reason="RequestIgnored",
        cause="the BMC accepted Pxe, Once and reports None, Disabled",
    ),
    lie(
        "turns Once into Continuous",
        Fault.WRONG_ENABLED,
        reason="RequestIgnored",
        cause="the BMC accepted Once and reports Continuous",
    ),
    lie(
        "starts tasks that never end",
        Fault.TASK_NEVER_ENDS,
        reason="StepOverdue",
        cause=r"the task /redfish/v1/TaskService/Tasks/\d+ has not ended after 45 s \(TaskState Running\)",
    ),
    lie(
        "has no session left",
        Fault.LIMIT_REACHED,
        reason=_BUSY_REASON,
        cause=r"it answers 503 to POST /redfish/v1/SessionService/Sessions: RAC0218",
    ),
    lie("answers 503 to everything for 15 s", Fault.STORM_503, settings={"fault_seconds": 15}, also=(_STORM,)),
    lie("changes the power 10 s late", Fault.POWER_LATE, settings={"fault_seconds": 10}),
    lie("loses the boot device at each start", Fault.BOOT_LOST, reason="NoDiscover", cause=_NO_DISCOVER),
    lie("loses the boot device at the first start", Fault.BOOT_LOST, heals=True, also=(_NO_DISCOVER,)),
    lie(
        "loses the boot device of a machine whose system sends a DISCOVER",
        Fault.BOOT_LOST,
        has_linux=True,
        power="Off",
        reason="OverrideLost",
        cause=rf"the last boot seen by DHCP is of the installed operating system \(from {_MAC}\), no netboot; "
        r"the BMC reports no boot override any more; possible causes: it was lost",
    ),
    lie("demands an ETag", Fault.ETAG_REQUIRED),
    lie("redirects each request to a path of its own", Fault.REDIRECT_SAME),
    lie(
        "redirects to another host",
        Fault.REDIRECT_OTHER,
        reason=_BAD_REASON,
        cause=r"it redirects to 'https://other\.invalid/redfish/v1/Systems/1', which is elsewhere",
    ),
    lie(
        "sends half of its JSON",
        Fault.CUT_JSON,
        reason=_BAD_REASON,
        cause=r"the answer to GET /redfish/v1/Systems/1 is not JSON in UTF-8 \(\d+ bytes, ",
    ),
    lie(
        "has another certificate",
        fingerprint="ab" * 32,
        reason="CertificateNotTrusted",
        cause=r"its certificate has the fingerprint [0-9a-f]{64}, not the Machine's certificateFingerprint",
    ),
    lie(
        "locks the account after one wrong password",
        Fault.LOCK_OUT,
        password=_WRONG_PASSWORD,
        further=35,  # the Secret is read again after 30 s
        reason="CredentialsRefused",
        cause=r"it refuses the user or the password, or the account is locked\. The next login is tried when Secret "
        r"default/m\d+ changes",
    ),
)


class Rig:
    """The process of `tests/boot/bmc_rig.py`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.boot.bmc_rig"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "ready\n", "tinkedge up is not ready, see standard error"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def run(self, case: Case) -> Outcome:
        """Carry out a case."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(case)) + "\n")
        self._process.stdin.flush()
        line = self._line()
        assert line, "the rig has ended, see standard error"
        return Outcome(**json.loads(line))

    def close(self) -> None:
        """End the rig, and wait until its rack is removed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(60) == 0


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def page() -> Iterator[list[str]]:
    """The rows of the page, which is written at the end if all lies are in it."""
    rows: list[str] = []
    yield rows
    if os.environ.get("TINKEDGE_RECORD") and len(rows) == len(LIES):
        PAGE.write_text(_HEAD + "\n".join(rows) + "\n")


def problems(outcome: Outcome) -> list[str]:
    """Return the sentences about problems: of conditions, and of the journey."""
    found = []
    for _, kind, reason, message in outcome.sentences:
        is_problem = kind == "Workflow BootPrepared=False" and reason not in PROGRESS_REASONS
        is_problem |= kind == "Machine Contactable=False" or kind.startswith("journey ")
        if is_problem and message not in found:
            found.append(message)
    return found


def assert_cleaned_up(outcome: Outcome) -> None:
    """Check that BMC control has released the deleted Workflow, and left no boot device and no medium."""
    about = json.dumps(asdict(outcome), indent=1)
    assert outcome.is_released, about
    assert (outcome.override, outcome.medium) == ("Disabled", None), about


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(each, id=re.sub(r"\W+", "-", each.name), marks=[pytest.mark.smoke] if each is LIES[0] else [])
        for each in LIES
    ],
)
def test_machine_netboots_or_the_true_cause_is_named(lie: Case, rig: Rig, page: list[str]) -> None:
    assert LINUX.exists() or not lie.has_linux, "no disk image in the cache: run tests/boot/test_lab.py first"
    outcome = rig.run(lie)
    about = json.dumps(asdict(outcome), indent=1)
    print(about)
    if lie.cause:
        assert outcome.named is not None, about
        assert outcome.named <= _NAMED_SECONDS, about
        assert outcome.netbooted is None, about
    else:
        assert outcome.netbooted is not None, about
        assert outcome.is_done, about
    true = [each for each in (lie.cause, *lie.also, _OVERDUE) if each]
    false = [each for each in problems(outcome) if not any(re.search(pattern, each) for pattern in true)]
    assert not false, about
    assert outcome.failed_logins == (1 if lie.password != PASSWORD else 0)
    assert outcome.open_sessions == 0, about
    assert lie.password not in about, "in a condition, the journey or the log"
    assert_cleaned_up(outcome)
    seconds, sentence = outcome.netbooted, ""
    if lie.cause:
        seconds, sentence = next(
            (at, message)
            for at, kind, reason, message in outcome.sentences
            if kind == "Workflow BootPrepared=False" and reason == lie.reason and re.search(lie.cause, message)
        )
    end = f"`{lie.reason}`: {_example(sentence).strip()}" if sentence else "netboots"
    page.append(f"| {lie.name} | {seconds:.0f} | {end} | {outcome.failed_logins} |")


@pytest.mark.parametrize(
    ("case", "way", "step"),
    [
        (
            Case("UEFI HTTP boot", (Fault.HTTP_URI.name,), targets=("None", "Hdd"), firmware="uefi"),
            "http",
            "binary ok: boot program ipxe.efi sent over HTTP",
        ),
        (Case("virtual CD", targets=("None", "Cd", "Hdd")), "cd", "medium ok: boot medium boot.iso"),
    ],
    ids=["http", "cd"],
)
def test_machine_netboots_by_another_way_if_its_bmc_has_no_pxe(rig: Rig, case: Case, way: str, step: str) -> None:
    outcome = rig.run(case)
    about = json.dumps(asdict(outcome), indent=1)
    assert outcome.netbooted is not None, about
    assert [message for _, _, reason, message in outcome.sentences if reason == "Booted" and message.startswith(way)]
    assert any(step in line for line in outcome.journey), about
    assert_cleaned_up(outcome)


def _example(sentence: str) -> str:
    """Replace the names and addresses of the test by examples."""
    sentence = re.sub(r"52:54:00:77:00:..", "52:54:00:12:34:56", sentence).replace("127.0.0.1", "192.168.2.10")
    return re.sub(r"\b[0-9a-f]{64}\b", lambda found: f"{found[0][:8]}…", re.sub(r"\bm\d+\b", "m1", sentence))
