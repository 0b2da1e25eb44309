"""The controllers of Machines, Jobs and Tasks: read back, one failed login, restarts, Rufio's Lease, many Machines."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import pytest

from tests.support.api import InProcessApi
from tests.support.bmc import PASSWORD, ROOT, SYSTEM, USER, FakeBmc, Fault, MemoryTransport
from tests.support.objects import hardware
from tests.support.virtual_time import elapse
from tests.unit.bmc.rig import HOST, PXE, Rig, job, machine, power, secret
from tink.api.v1alpha2 import Raw
from tink.bmc.connections import BmcConnections
from tink.bmc.credentials import LoginMemory
from tink.bmc.model import BmcConnection, BmcCredentials, Observation, PowerState
from tink.bmc.redfish import Answer
from tink.kube.client import ApiError, UnreachableError
from tink.kube.objects import NamespacedName
from tink.kube.resources import EVENT, HARDWARE, JOB, LEASE, MACHINE, SECRET, TASK

virtual = pytest.mark.looptime


# --- Jobs and Tasks ---------------------------------------------------------------------------------------------------


@virtual
async def test_job_of_off_boot_device_and_on_is_completed_when_the_bmc_reports_each_effect() -> None:
    rig = Rig(machine(), secret(), bmc=FakeBmc(power="On", power_seconds=5.0))
    async with rig.running():
        rig.api.put(job("netboot", power("off"), PXE, power("on")))
        await rig.until_condition(JOB, "netboot", "Completed")
        assert rig.bmc.power == "On"
    assert rig.bmc.resets == ["ForceOff", "On"]
    assert rig.bmc.boots == ["Pxe"]
    tasks = rig.api.objects(TASK)
    assert [each["metadata"]["name"] for each in tasks] == [f"netboot-task-{number}" for number in range(3)]
    written = rig.api.read(JOB, "netboot")
    assert written is not None
    for each in tasks:
        assert each["metadata"]["labels"] == {"owner-name": "netboot"}
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", written["metadata"]["uid"], True)
        assert each["status"]["startTime"]
        assert each["status"]["completionTime"]
    assert [each["type"] for each in written["status"]["conditions"]] == ["Running", "Completed"]
    assert written["status"]["completionTime"]
    assert rig.bmc.open_sessions == 0


@virtual
async def test_failed_task_fails_its_job_with_the_cause_and_no_later_task_is_created() -> None:
    rig = Rig(machine(), secret())
    rig.hanging.add(HOST)
    async with rig.running():
        rig.api.put(job("j", power("on"), power("off")))
        failed = await rig.until_condition(JOB, "j", "Failed")
    assert failed["reason"] == "BmcUnreachable"
    assert failed["message"].startswith("task default/j-task-0 failed: no answer within 30 s")
    assert [each["metadata"]["name"] for each in rig.api.objects(TASK)] == ["j-task-0"]
    assert not rig.condition(JOB, "j", "Completed")


@virtual
async def test_job_of_a_missing_machine_reports_that_and_begins_when_the_machine_appears() -> None:
    rig = Rig(secret())
    async with rig.running():
        rig.api.put(job("j", power("on")))
        waiting = await rig.until_condition(JOB, "j", "Running", "False")
        assert waiting["reason"] == "MachineNotFound"
        rig.api.put(machine())
        await rig.until_condition(JOB, "j", "Completed")
        assert rig.condition(JOB, "j", "Running")["status"] == "True"


@virtual
async def test_medium_with_a_template_expression_fails_its_job_before_the_bmc_is_asked() -> None:
    rig = Rig(machine(), secret())
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        requests = len(rig.bmc.requests)
        rig.api.put(job("j", {"virtualMediaAction": {"kind": "CD", "mediaURL": "http://h/{{ .Hardware.OSIE.Name }}"}}))
        failed = await rig.until_condition(TASK, "j-task-0", "Failed")
        await rig.until_condition(JOB, "j", "Failed")
    assert failed["reason"] == "NotSupported"
    assert "mediaURL has a template expression" in failed["message"]
    assert len(rig.bmc.requests) == requests


@virtual
async def test_task_of_the_same_name_that_is_not_of_the_job_fails_it_and_stays_untouched() -> None:
    rig = Rig(machine(), secret())
    foreign = {
        "apiVersion": TASK.api_version,
        "kind": "Task",
        "metadata": {"name": "j-task-0", "namespace": "default"},
        "spec": {"task": power("status"), "connection": machine()["spec"]["connection"]},
    }
    rig.api.put(foreign)
    async with rig.running():
        rig.api.put(job("j", power("on")))
        assert (await rig.until_condition(JOB, "j", "Failed"))["reason"] == "TaskExists"
        await rig.until_condition(TASK, "j-task-0", "Completed")
    assert rig.bmc.resets == []


@virtual
async def test_task_that_was_created_before_the_informer_reports_it_is_used() -> None:
    rig = Rig(machine(), secret())
    async with rig.running():
        rig.api.fail("create", UnreachableError("the answer is lost"), of=TASK, done=True)
        rig.api.put(job("j", power("on")))
        await rig.until_condition(JOB, "j", "Completed")
    assert rig.bmc.resets == ["On"]


def stage(rig: Rig, name: str) -> str | None:
    task = rig.api.read(TASK, name) or {}
    reached: str | None = task.get("status", {}).get("stage")
    return reached


@virtual
async def test_restart_continues_a_power_cycle_after_the_off_which_is_not_repeated() -> None:
    rig = Rig(machine(), secret(), bmc=FakeBmc(power="On", power_seconds=10.0))
    async with rig.running():
        rig.api.put(job("cycle", power("cycle")))
        await rig.until(lambda: rig.bmc.resets == ["ForceOff", "On"])
        assert stage(rig, "cycle-task-0") == "off"
    await elapse(15)  # the machine powers on while tinkedge is stopped
    async with rig.running():
        await rig.until_condition(JOB, "cycle", "Completed")
    assert rig.bmc.resets == ["ForceOff", "On"]
    assert rig.bmc.power == "On"


@virtual
async def test_restart_does_not_repeat_a_reset_that_the_bmc_has_accepted() -> None:
    rig = Rig(machine(), secret(), bmc=FakeBmc(power="On", power_seconds=10.0))
    async with rig.running():
        rig.api.put(job("reset", power("reset")))
        await rig.until(lambda: stage(rig, "reset-task-0") == "sent")
        assert not rig.condition(JOB, "reset", "Completed")
    async with rig.running():
        await rig.until_condition(JOB, "reset", "Completed")
    assert rig.bmc.resets == ["ForceRestart"]


@virtual
async def test_end_of_a_task_that_the_api_has_not_stored_is_written_later_without_another_operation() -> None:
    rig = Rig(machine(), secret(), bmc=FakeBmc(power="On"))
    async with rig.running():
        gate = rig.api.hold("patch", of=TASK)
        rig.api.put(job("j", power("reset")))
        await gate.reached.wait()
        rig.api.fail("patch", *[UnreachableError("away")] * 3, of=TASK)
        gate.open()
        await rig.until_condition(JOB, "j", "Completed")
    assert rig.bmc.resets == ["ForceRestart"]


@virtual
@pytest.mark.parametrize("deleted", [(JOB, "j"), (TASK, "j-task-0")], ids=["the Job", "the Task"])
async def test_deletion_of_a_job_or_task_ends_the_operation_and_the_session(deleted: tuple[Any, str]) -> None:
    rig = Rig(machine(), secret(), bmc=FakeBmc(power="On", faults=[Fault.RESET_IGNORED]))
    async with rig.running():
        rig.api.put(job("j", power("soft")))
        await rig.until(lambda: rig.bmc.resets and rig.bmc.open_sessions)
        rig.api.remove(*deleted)
        await elapse(1)
        assert rig.bmc.open_sessions == 0
        if deleted[0] is TASK:
            assert (await rig.until_condition(JOB, "j", "Failed"))["reason"] == "TaskDeleted"
        rig.api.put(job("k", power("status")))
        await rig.until_condition(JOB, "k", "Completed")
    assert rig.bmc.resets == ["GracefulShutdown"]


@virtual
async def test_tasks_of_one_bmc_run_one_at_a_time_and_those_of_others_do_not_wait() -> None:
    rig = Rig(machine(), machine("bmc2", "192.0.2.20"), secret(), bmc=FakeBmc(power="On", power_seconds=15.0))
    async with rig.running(task_workers=2):
        rig.api.put(job("first", power("off")))
        await rig.until(lambda: rig.bmc.resets)
        rig.api.put(job("second", power("on")))
        rig.api.put(job("other", power("on"), machine="bmc2"))
        await rig.until_condition(JOB, "other", "Completed")
        assert rig.condition(TASK, "first-task-0", "Completed") == {}
        assert rig.condition(TASK, "second-task-0", "Completed") == {}
        assert rig.bmc.open_sessions == 1
        await rig.until_condition(JOB, "second", "Completed")
    assert rig.bmc.resets == ["ForceOff", "On"]


@virtual
async def test_running_task_shows_what_it_waits_for() -> None:
    rig = Rig(machine(), secret(), bmc=FakeBmc(power="On", faults=[Fault.POWER_LATE]))
    async with rig.running():
        rig.api.put(job("j", power("off")))
        running = await rig.until_condition(TASK, "j-task-0", "Running")
        assert running["message"] == ""
        await rig.until(lambda: rig.condition(TASK, "j-task-0", "Running")["message"])
        assert "off" in rig.condition(TASK, "j-task-0", "Running")["message"].lower()
        await rig.until_condition(JOB, "j", "Completed")
    task = rig.api.read(TASK, "j-task-0") or {}
    assert [each["type"] for each in task["status"]["conditions"]] == ["Running", "Completed"]


@virtual
async def test_machine_shows_the_new_power_state_soon_after_a_task() -> None:
    rig = Rig(machine(), secret())
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        assert (rig.api.read(MACHINE, "bmc1") or {})["status"]["powerState"] == "off"
        rig.api.put(job("j", power("on")))
        await rig.until(lambda: (rig.api.read(MACHINE, "bmc1") or {})["status"]["powerState"] == "on", within=30)


@virtual
async def test_ended_job_with_a_time_to_live_is_deleted_when_that_has_passed() -> None:
    rig = Rig(machine(), secret())
    async with rig.running():
        rig.api.put(job("j", power("on"), **{"tinkerbell.org/ttl-seconds-after-finished": "600"}))
        await rig.until_condition(JOB, "j", "Completed")
        await elapse(590)
        assert rig.api.read(JOB, "j") is not None
        await rig.until(lambda: rig.api.read(JOB, "j") is None, within=60)


# --- credentials ------------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("fault", [(), (Fault.LOCK_OUT,)], ids=["plain", "with lock-out"])
async def test_wrong_password_costs_one_failed_login_over_polls_tasks_and_restarts(fault: tuple[Fault, ...]) -> None:
    rig = Rig(machine(), secret("wrong"), bmc=FakeBmc(faults=fault))
    for number in range(3):
        async with rig.running():
            refused = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
            assert refused["reason"] == "CredentialsRefused"
            assert "Secret default/bmc-auth" in refused["message"]
            rig.api.put(job(f"j{number}", power("on")))
            assert (await rig.until_condition(JOB, f"j{number}", "Failed"))["reason"] == "CredentialsRefused"
            await elapse(900)
    assert rig.bmc.failed_logins == 1
    assert all(protocol == "redfish" for _, protocol, _ in rig.tried), "the password is not tried by IPMI"


@virtual
async def test_changed_secret_is_tried_within_a_minute_and_the_refusal_is_forgotten() -> None:
    rig = Rig(machine(), secret("wrong"))
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        rig.api.put(secret("wrong again"))
        await rig.until(lambda: rig.bmc.failed_logins == 2, within=60)
        rig.api.put(secret())
        loop = asyncio.get_running_loop()
        changed = loop.time()
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        assert loop.time() - changed < 60
        await elapse(5)
    annotations = (rig.api.read(MACHINE, "bmc1") or {})["metadata"].get("annotations", {})
    assert "tinkerbell.org/credentials-refused" not in annotations
    assert rig.bmc.failed_logins == 2


RETRY = "tinkerbell.org/retry-login"


async def annotate(rig: Rig, name: str, value: str | None, machine: str = "bmc1") -> None:
    await rig.api.patch(MACHINE, machine, "default", {"metadata": {"annotations": {name: value}}})


def login_of(rig: Rig, name: str = "bmc1", namespace: str = "default") -> dict[str, Any]:
    """Return status.login of a Machine."""
    found: dict[str, Any] = (rig.api.read(MACHINE, name, namespace) or {}).get("status", {}).get("login", {})
    return found


@virtual
async def test_each_new_value_of_the_annotation_permits_one_more_login_and_nothing_else_does() -> None:
    rig = Rig(machine(), secret("wrong"))
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        await annotate(rig, RETRY, "monday")
        await rig.until(lambda: rig.bmc.failed_logins == 2, within=30)
        await elapse(900)
    for value, logins in (("monday", 2), (None, 2), ("monday", 2), ("tuesday", 3), ("tuesday", 3)):
        async with rig.running():
            await annotate(rig, RETRY, value)
            await elapse(300)
            assert rig.bmc.failed_logins == logins
    rig.bmc.accounts = {USER: "wrong"}
    async with rig.running():
        await annotate(rig, RETRY, "wednesday")
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        assert (login_of(rig)["redfish"], login_of(rig)["retry"]) == ("Accepted", "wednesday")
    async with rig.running():
        await elapse(900)
        assert rig.condition(MACHINE, "bmc1", "Contactable")["status"] == "True"
    assert rig.bmc.failed_logins == 3


@virtual
async def test_tool_that_removes_all_annotations_again_and_again_permits_no_login() -> None:
    rig = Rig(machine(), secret("wrong"))
    for _ in range(3):
        async with rig.running():
            await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
            for _ in range(30):
                await rig.api.patch(MACHINE, "bmc1", "default", {"metadata": {"annotations": None}})
                await elapse(10)
    assert rig.bmc.failed_logins == 1


@virtual
async def test_refusal_that_an_earlier_release_has_noted_in_an_annotation_is_not_repeated() -> None:
    rig = Rig(secret("wrong"))
    version = (rig.api.read(SECRET, "bmc-auth") or {})["metadata"]["resourceVersion"]
    old = machine()
    old["metadata"]["annotations"] = {
        "tinkerbell.org/credentials-refused": f"{HOST}:443:623 default/bmc-auth@{version}"
    }
    rig.api.put(old)
    async with rig.running():
        refused = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert refused["reason"] == "CredentialsRefused"
        await annotate(rig, "tinkerbell.org/credentials-refused", None)
    async with rig.running():
        await elapse(900)
    assert rig.tried == []


@virtual
async def test_machine_of_the_same_bmc_and_secret_knows_the_refusal_after_a_restart() -> None:
    rig = Rig(machine(), secret("wrong"))
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
    rig.api.put(machine("blade"))
    async with rig.running():
        await rig.until_condition(MACHINE, "blade", "Contactable", "False")
        rig.api.remove(MACHINE, "bmc1")
    async with rig.running():
        await elapse(900)
    assert rig.bmc.failed_logins == 1


@virtual
async def test_login_that_a_stop_interrupts_gets_its_result_before_the_process_ends() -> None:
    rig = Rig(machine(), secret())
    rig.seconds = 2.0
    async with rig.running():
        await rig.until(lambda: login_of(rig).get("redfish") == "Begun")
    assert login_of(rig)["redfish"] == "Accepted"
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable")


@virtual
async def test_unknown_result_of_a_login_blocks_the_bmc_until_a_user_permits_another() -> None:
    rig = Rig(machine(), secret())
    version = (rig.api.read(SECRET, "bmc-auth") or {})["metadata"]["resourceVersion"]
    begun = {"version": f"{HOST}:443:623 default/bmc-auth@{version}", "redfish": "Begun"}
    rig.api.change(MACHINE, "bmc1", status={"login": begun})
    async with rig.running():
        unclear = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert unclear["reason"] == "LoginUnclear"
        assert unclear["message"] == (
            f"tinkedge stopped while it logged in to the BMC {HOST}, so it does not know the result. The next login is "
            "tried when Secret default/bmc-auth changes, or the Machine's annotation tinkerbell.org/retry-login gets a "
            "new value"
        )
        rig.api.put(job("j", power("on")))
        assert (await rig.until_condition(JOB, "j", "Failed"))["reason"] == "LoginUnclear"
        assert rig.tried == []
        await annotate(rig, RETRY, "2026-12-01")
        await rig.until_condition(MACHINE, "bmc1", "Contactable")


@virtual
async def test_bmc_out_of_reach_at_the_first_login_is_tried_again_after_a_restart() -> None:
    rig = Rig(machine(), secret())
    rig.hanging.add(HOST)
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        writes = rig.api.count("patch", of=MACHINE)
        await elapse(1800)
        assert rig.api.count("patch", of=MACHINE) == writes, "no password is sent, so nothing is noted"
    rig.hanging.clear()
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable")


@virtual
async def test_other_replica_that_has_noted_a_refusal_is_believed_although_the_informer_is_late() -> None:
    rig = Rig(machine(), secret("wrong"))
    async with rig.running():
        gate = rig.api.hold("get", of=SECRET)
        await gate.reached.wait()
        version = (rig.api.read(SECRET, "bmc-auth") or {})["metadata"]["resourceVersion"]
        refused = {"version": f"{HOST}:443:623 default/bmc-auth@{version}", "redfish": "Refused"}
        rig.informers[MACHINE].hold()
        rig.api.change(MACHINE, "bmc1", status={"login": refused})
        gate.open()
        await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
    assert rig.bmc.failed_logins == 0


# --- a process that is killed -----------------------------------------------------------------------------------------


class Life:
    """The life of a process that is killed at the step number `end`. A dead process has no effect any more.

    The steps are before and after each call of the API and each request to the BMC.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        self.steps = 0
        self.is_over = asyncio.Event()

    async def step(self) -> None:
        self.steps += 1
        if self.steps >= self.end:
            self.is_over.set()
            await asyncio.Event().wait()

    async def take(self, work: Callable[[], Awaitable[Any]]) -> Any:
        await self.step()
        answer = await work()
        await self.step()
        return answer


class MortalApi(InProcessApi):
    """An API to which a process that is killed sends nothing more."""

    life = Life(1 << 30)

    async def get(self, *arguments: Any) -> Raw:
        found: Raw = await self.life.take(partial(super().get, *arguments))
        return found

    async def list(self, *arguments: Any, **options: Any) -> Raw:
        found: Raw = await self.life.take(partial(super().list, *arguments, **options))
        return found

    async def create(self, *arguments: Any) -> Raw:
        created: Raw = await self.life.take(partial(super().create, *arguments))
        return created

    async def patch(self, *arguments: Any, **options: Any) -> Raw:
        patched: Raw = await self.life.take(partial(super().patch, *arguments, **options))
        return patched


class MortalTransport(MemoryTransport):
    """A connection to a BMC over which a process that is killed sends nothing more."""

    def __init__(self, bmc: FakeBmc, life: Life) -> None:
        super().__init__(bmc)
        self._life = life

    async def exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        answer: Answer = await self._life.take(partial(super().exchange, method, path, headers, body))
        return answer


class MortalRig(Rig):
    """A rig whose process can be killed."""

    def __init__(self, *objects: Raw) -> None:
        self.mortal_api = MortalApi()
        super().__init__(*objects, api=self.mortal_api)

    def transport(self, bmc: FakeBmc) -> MortalTransport:
        return MortalTransport(bmc, self.mortal_api.life)


async def kill_at(step: int, *objects: Raw) -> tuple[MortalRig, bool]:
    """Kill a process at a step, and let another one work. Return False if the first one came to no such step."""
    rig = MortalRig(*objects)
    life = rig.mortal_api.life = Life(step)
    async with rig.running():
        killed = asyncio.ensure_future(life.is_over.wait())
        await asyncio.wait([killed], timeout=5)
        killed.cancel()
    was_killed = life.is_over.is_set()
    rig.mortal_api.life = Life(1 << 30)
    async with rig.running():
        await elapse(75)  # two polls of a refused Machine
    return rig, was_killed


@virtual
@pytest.mark.parametrize("has_job", [False, True], ids=["poll", "Job"])
async def test_process_that_is_killed_at_any_step_costs_no_second_failed_login(has_job: bool) -> None:
    objects = [machine(), secret("wrong"), *([job("j", power("on"))] if has_job else [])]
    step, logins = 0, set()
    while True:
        step += 1
        rig, was_killed = await kill_at(step, *objects)
        logins.add(rig.bmc.failed_logins)
        assert rig.bmc.failed_logins <= 1, f"killed at step {step}"
        assert rig.condition(MACHINE, "bmc1", "Contactable")["reason"] in ("CredentialsRefused", "LoginUnclear")
        if not was_killed:
            break
    assert logins == {0, 1}
    assert step > 20


@virtual
async def test_process_that_is_killed_during_an_accepted_login_blocks_only_in_that_moment() -> None:
    step, blocked = 0, []
    while True:
        step += 1
        rig, was_killed = await kill_at(step, machine(), secret())
        if rig.condition(MACHINE, "bmc1", "Contactable")["status"] != "True":
            assert rig.condition(MACHINE, "bmc1", "Contactable")["reason"] == "LoginUnclear"
            blocked.append(step)
        if not was_killed:
            break
    # From the note that the login begins, over the login, to the note that it was accepted.
    assert blocked == list(range(blocked[0], blocked[0] + 4))


@virtual
async def test_task_without_a_job_that_a_kill_interrupts_costs_no_second_failed_login() -> None:
    task = {
        "apiVersion": TASK.api_version,
        "kind": "Task",
        "metadata": {"name": "t", "namespace": "default"},
        "spec": {"task": power("on"), "connection": machine()["spec"]["connection"]},
    }
    step = 0
    while True:
        step += 1
        rig, was_killed = await kill_at(step, task, secret("wrong"))
        assert rig.bmc.failed_logins <= 1, f"killed at step {step}"
        assert rig.condition(TASK, "t", "Failed")["reason"] in ("CredentialsRefused", "LoginUnclear")
        if not was_killed:
            break


@virtual
async def test_two_machines_with_two_wrong_secrets_for_one_bmc_cost_one_login_each() -> None:
    reference = {"name": "other-auth", "namespace": "default"}
    rig = Rig(machine(), machine("twin", authSecretRef=reference), secret("wrong"), secret("bad", name="other-auth"))
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        await rig.until_condition(MACHINE, "twin", "Contactable", "False")
        await elapse(900)
    async with rig.running():
        await elapse(900)
    assert rig.bmc.failed_logins == 2


@virtual
async def test_machine_of_another_tenant_neither_suppresses_nor_permits_a_login() -> None:
    rig = Rig(machine(), secret("wrong"))
    version = (rig.api.read(SECRET, "bmc-auth") or {})["metadata"]["resourceVersion"]
    login = f"{HOST}:443:623 default/bmc-auth@{version}"
    rig.api.put(machine("evil", namespace="tenant"))
    refused = {"version": login, "redfish": "Refused"}
    rig.api.change(MACHINE, "evil", "tenant", status={"login": refused})
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert rig.bmc.failed_logins == 1, "it was tried"
        await rig.api.patch(MACHINE, "evil", "tenant", {"metadata": {"annotations": {RETRY: "now"}}})
        await elapse(900)
    assert rig.bmc.failed_logins == 1, "it was not tried again"


@virtual
async def test_password_is_nowhere_but_in_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for password in (PASSWORD, "wr0ng-and-s3cret"):
        rig = Rig(machine(), secret(password))
        async with rig.running():
            rig.api.put(job("j", power("on")))
            await rig.until(lambda rig=rig: rig.condition(JOB, "j", "Completed") or rig.condition(JOB, "j", "Failed"))
            await elapse(60)
            assert rig.api.objects(EVENT)
            everything = rig.everything_written() + "".join(map(str, map(rig.api.objects, (JOB, TASK, MACHINE, EVENT))))
        assert password not in everything
        assert password not in caplog.text + repr(rig.manager.__dict__)


@virtual
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "Secret default/bmc-auth does not exist"),
        (secret("with a line break\n"), "password has a line break"),
        (secret("x" * 2000), "password is longer than 1024 characters"),
    ],
)
async def test_unusable_secret_is_named_and_costs_no_connection(made: dict[str, object] | None, message: str) -> None:
    rig = Rig(machine(), *([made] if made else []))
    async with rig.running():
        missing = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert missing["reason"] == "CredentialsMissing"
        assert message in missing["message"]
        rig.api.put(secret())
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
    assert rig.bmc.failed_logins == 0


@virtual
async def test_secret_of_another_namespace_is_used_only_if_it_permits_that() -> None:
    reference = {"name": "bmc-auth", "namespace": "vault"}
    rig = Rig(machine(authSecretRef=reference), secret(namespace="vault"))
    async with rig.running():
        missing = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert "another namespace" in missing["message"]
        assert rig.tried == []
        rig.api.put(secret(namespace="vault", **{"tinkerbell.org/bmc-namespaces": "other, default"}))
        await rig.until_condition(MACHINE, "bmc1", "Contactable")


@virtual
async def test_task_gets_the_secret_of_another_namespace_only_through_a_job_of_its_machine() -> None:
    rig = Rig(machine(), secret())
    stranger = {
        "apiVersion": TASK.api_version,
        "kind": "Task",
        "metadata": {"name": "steal", "namespace": "tenant"},
        "spec": {"task": power("on"), "connection": machine(host="192.0.2.66")["spec"]["connection"]},
    }
    async with rig.running():
        rig.api.put(stranger)
        rig.api.put(job("capt", power("on"), namespace="tenant"))
        await rig.until(lambda: rig.condition(JOB, "capt", "Completed", "tenant"))
        await rig.until(lambda: rig.condition(TASK, "steal", "Failed", "tenant"))
    assert {host for _, _, host in rig.tried} == {HOST}
    assert rig.condition(TASK, "steal", "Failed", "tenant")["reason"] == "CredentialsMissing"


# --- Machines ---------------------------------------------------------------------------------------------------------


@virtual
async def test_poll_writes_only_what_has_changed() -> None:
    rig = Rig(machine(), secret())
    async with rig.running(poll_interval=300.0):
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        writes = rig.api.count("patch", of=MACHINE)
        await elapse(3600)
        assert rig.api.count("patch", of=MACHINE) == writes == 3, "the login begins, it is accepted, the BMC answers"
        polls = len(rig.tried)
        assert 10 <= polls <= 15
        rig.hanging.add(HOST)
        lost = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert (lost["reason"], (rig.api.read(MACHINE, "bmc1") or {})["status"]["powerState"]) == (
            "BmcUnreachable",
            "unknown",
        )
        assert "ipmitool is not installed" in lost["message"]
        rig.hanging.clear()
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        await elapse(30)
    reasons = [each["reason"] for each in rig.api.objects(EVENT)]
    assert sorted(reasons) == ["BmcAnswers", "BmcUnreachable"]


def paths(rig: Rig) -> list[str]:
    """The methods and paths of all requests so far, without the numbers of sessions; the record is empty after it."""
    requests = [f"{method} {path.removeprefix(ROOT)}" for method, path, _ in rig.bmc.requests]
    rig.bmc.requests.clear()
    return [re.sub(r"/Sessions/[0-9]+", "/Sessions/N", each) for each in requests]


FIRST_POLL = [
    "GET /",
    "POST /SessionService/Sessions",
    "GET /Systems",
    "GET /Systems/1",
    "GET /Managers/1",
    "DELETE /SessionService/Sessions/N",
]
LATER_POLL = ["POST /SessionService/Sessions", "GET /Systems/1", "DELETE /SessionService/Sessions/N"]


@virtual
async def test_later_polls_are_three_requests_and_everything_is_read_once_a_day() -> None:
    rig = Rig(machine(), secret())
    async with rig.running(poll_interval=300.0):
        await elapse(10)
        assert paths(rig) == FIRST_POLL
        await elapse(3000)
        later = paths(rig)
        assert later == LATER_POLL * (len(later) // 3)
        await elapse(86_400)
        assert paths(rig).count("GET /Managers/1") == 1


@virtual
async def test_everything_is_read_again_after_a_failed_poll_and_by_each_task() -> None:
    rig = Rig(machine(), secret())
    async with rig.running(poll_interval=300.0):
        await elapse(600)
        assert paths(rig)[-3:] == LATER_POLL
        rig.bmc.overlay[SYSTEM] = {"PowerState": "On"} | dict.fromkeys(map(str, range(2000)), [0] * 30)
        await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        del rig.bmc.overlay[SYSTEM]
        paths(rig)
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        assert paths(rig) == FIRST_POLL
        rig.api.put(job("j", power("status")))
        await rig.until_condition(JOB, "j", "Completed")
        assert paths(rig)[: len(FIRST_POLL)] == FIRST_POLL


@virtual
async def test_inventory_reads_the_version_of_the_firmware_again() -> None:
    rig = Rig(machine(), secret(), hardware(bmcRef={"name": "bmc1"}))
    async with rig.running(poll_interval=300.0, inventory_interval=3600.0):
        await elapse(600)
        paths(rig)
        await elapse(4000)
        requests = paths(rig)
        assert requests.count("GET /Managers/1") == 2, "by the poll and by the inventory"
        assert requests.count("POST /SessionService/Sessions") > 10


@virtual
async def test_busy_bmc_stays_contactable_until_it_refuses_three_times() -> None:
    rig = Rig(machine(), secret())
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        rig.bmc.faults.add(Fault.LIMIT_REACHED)
        tried = len(rig.tried)
        await rig.until(lambda: len(rig.tried) == tried + 2)
        await elapse(5)
        assert rig.condition(MACHINE, "bmc1", "Contactable")["status"] == "True"
        assert (await rig.until_condition(MACHINE, "bmc1", "Contactable", "False"))["reason"] == "BmcBusy"


@virtual
async def test_twenty_of_two_hundred_machines_that_hang_do_not_delay_the_others() -> None:
    hosts = [f"192.0.2.{number}" for number in range(200)]
    rig = Rig(secret(), *(machine(f"bmc{number}", host) for number, host in enumerate(hosts)))
    rig.hanging.update(hosts[::10])
    async with rig.running(poll_workers=24, poll_interval=300.0):
        await elapse(600)
        for number, host in enumerate(hosts):
            wanted = "False" if host in rig.hanging else "True"
            assert rig.condition(MACHINE, f"bmc{number}", "Contactable")["status"] == wanted
        rig.tried.clear()
        await elapse(700)
    polls = Counter(host for _, _, host in rig.tried)
    assert min(polls[host] for host in hosts if host not in rig.hanging) >= 2, "in 700 s, with an interval of 300 s"


@virtual
async def test_machines_that_do_not_answer_get_only_a_part_of_the_workers() -> None:
    hosts = [f"192.0.2.{number}" for number in range(60)]
    rig = Rig(secret(), *(machine(f"bmc{number}", host) for number, host in enumerate(hosts)))
    rig.hanging.update(hosts[:40])
    async with rig.running(poll_workers=4, poll_interval=120.0):
        await elapse(900)
        rig.tried.clear()
        await elapse(600)
    polls = Counter(host for _, _, host in rig.tried)
    assert min(polls[host] for host in hosts[40:]) >= 4, "in 600 s, with an interval of 120 s"
    assert sum(polls[host] for host in hosts[:40]) >= 10


@virtual
async def test_untrusted_certificate_is_not_followed_by_ipmi() -> None:
    rig = Rig(machine(), secret())
    rig.untrusted.add(HOST)
    async with rig.running():
        refused = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
    assert refused["reason"] == "CertificateNotTrusted"
    assert {protocol for _, protocol, _ in rig.tried} == {"redfish"}


@virtual
async def test_polls_after_a_restart_are_spread_over_the_interval() -> None:
    hosts = [f"192.0.2.{number}" for number in range(60)]
    rig = Rig(secret(), *(machine(f"bmc{number}", host) for number, host in enumerate(hosts)))
    async with rig.running(poll_interval=600.0):
        await rig.until(lambda: len(rig.tried) == 60, within=60)
        await elapse(5)
    rig.tried.clear()
    async with rig.running(poll_interval=600.0):
        begun = asyncio.get_running_loop().time()
        await rig.until(lambda: len({host for _, _, host in rig.tried}) == 60, within=660)
    by_minute = [int((time - begun) // 60) for time, _, _ in rig.tried]
    assert max(map(by_minute.count, by_minute)) < 25


@virtual
async def test_hardware_that_names_a_missing_machine_gets_an_event() -> None:
    rig = Rig(machine("other"), secret(), hardware(bmcRef={"name": "gone"}))
    async with rig.running():
        await elapse(60)
    (event,) = [each for each in rig.api.objects(EVENT) if each["reason"] == "MachineNotFound"]
    assert event["involvedObject"]["kind"] == "Hardware"
    assert "default/gone" in event["message"]


def power_of(rig: Rig, name: str) -> str | None:
    """Return status.power of a Hardware."""
    found = rig.api.read(HARDWARE, name)
    assert found is not None
    power: str | None = found.get("status", {}).get("power")
    return power


@virtual
async def test_power_state_of_a_machine_is_in_the_status_of_each_hardware_that_names_it() -> None:
    others = [
        hardware("m2", "52:54:00:00:00:02", "192.0.2.2", bmcRef={"name": "bmc1"}),
        hardware("m3", "52:54:00:00:00:03", "192.0.2.3"),
    ]
    rig = Rig(machine(), secret(), hardware(bmcRef={"name": "bmc1"}), *others, bmc=FakeBmc(power="On"))
    async with rig.running():
        await rig.until(lambda: power_of(rig, "m1") == power_of(rig, "m2") == "on")
        assert power_of(rig, "m3") is None
        rig.api.put(job("j", power("off")))
        await rig.until(lambda: power_of(rig, "m1") == power_of(rig, "m2") == "off")
        writes = rig.api.count("patch", of=HARDWARE)
        await elapse(7200)
        assert rig.api.count("patch", of=HARDWARE) == writes, "only changes are written"
        rig.hanging.add(HOST)
        await rig.until(lambda: power_of(rig, "m1") == "unknown", within=3600)


@virtual
async def test_power_state_goes_with_the_reference_to_the_machine_or_with_the_machine() -> None:
    others = [hardware("m2", "52:54:00:00:00:02", "192.0.2.2", bmcRef={"name": "bmc1"})]
    rig = Rig(machine(), secret(), hardware(bmcRef={"name": "bmc1"}), *others, bmc=FakeBmc(power="On"))
    async with rig.running():
        await rig.until(lambda: power_of(rig, "m1") == power_of(rig, "m2") == "on")
        obj = rig.api.read(HARDWARE, "m1")
        assert obj is not None
        rig.api.put(obj | {"spec": {key: value for key, value in obj["spec"].items() if key != "bmcRef"}})
        await rig.until(lambda: power_of(rig, "m1") is None)
        rig.api.change(HARDWARE, "m1", spec={"bmcRef": {"name": "bmc1"}})
        await rig.until(lambda: power_of(rig, "m1") == "on")
        rig.api.remove(MACHINE, "bmc1")
        await rig.until(lambda: power_of(rig, "m1") is None and power_of(rig, "m2") is None)


@virtual
async def test_power_state_that_changed_while_no_process_ran_is_written_at_the_start() -> None:
    rig = Rig(machine(), secret(), hardware(bmcRef={"name": "bmc1"}), bmc=FakeBmc(power="On"))
    rig.api.change(HARDWARE, "m1", status={"power": "off"})
    async with rig.running():
        await rig.until(lambda: power_of(rig, "m1") == "on")


# --- Rufio's Lease ----------------------------------------------------------------------------------------------------

LEASE_NAME = "e74dec1a.bmc.tinkerbell.org"


FORMER_LEASE_NAME = "e74dec1a.tinkerbell.org"


def lease(
    renewed: int, namespace: str = "rufio-system", holder: str = "rufio-7d9f_4f6c", name: str = LEASE_NAME
) -> dict[str, object]:
    return {
        "apiVersion": LEASE.api_version,
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": f"2026-11-30T18:{renewed // 60:02}:{renewed % 60:02}.000000Z",
        },
    }


def waits_for_rufio(rig: Rig) -> float:
    found = (sample for metric in rig.manager.collect() for sample in metric.samples)
    return next(sample.value for sample in found if sample.name == "tinkedge_bmc_waits_for_rufio")


async def renew(rig: Rig, namespace: str = "rufio-system", name: str = LEASE_NAME) -> None:
    for renewed in range(0, 3600, 2):
        rig.api.put(lease(renewed, namespace, name=name))
        await elapse(2)


@virtual
@pytest.mark.parametrize("name", [LEASE_NAME, FORMER_LEASE_NAME])
@pytest.mark.parametrize("namespace", ["rufio-system", "default"])
async def test_control_waits_while_a_rufio_renews_its_lease_and_begins_after_that(
    namespace: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(machine(), secret(), lease(0, namespace, name=name))
    rufio = asyncio.create_task(renew(rig, namespace, name))
    async with rig.running():
        await elapse(300)
        assert rig.tried == []
        assert "Rufio" in rig.manager.note
        assert "rufio-7d9f_4f6c" in rig.manager.note
        assert waits_for_rufio(rig) == 1
        assert re.findall("BMC control waits: the Rufio (?:rufio-system/|default/)?rufio-7d9f_4f6c works", caplog.text)
        rufio.cancel()
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        assert rig.manager.note == ""
        assert waits_for_rufio(rig) == 0
        own = rig.api.read(LEASE, LEASE_NAME)
        assert own is not None
        assert own["spec"]["holderIdentity"].startswith("tinkedge_")
    own = rig.api.read(LEASE, LEASE_NAME)
    assert own is not None
    assert not own["spec"].get("holderIdentity"), "released at the stop"


@virtual
@pytest.mark.parametrize(
    ("namespace", "name"),
    [("rufio-system", LEASE_NAME), ("rufio-system", FORMER_LEASE_NAME), ("default", FORMER_LEASE_NAME)],
)
async def test_rufio_that_starts_later_with_a_lease_of_its_own_stops_control(namespace: str, name: str) -> None:
    rig = Rig(machine(), secret())
    async with rig.running(poll_interval=30.0):
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        rufio = asyncio.create_task(renew(rig, namespace, name))
        await rig.until(lambda: rig.manager.note, within=30)
        await elapse(15)
        rig.tried.clear()
        await elapse(120)
        assert rig.tried == []
        rufio.cancel()
        await rig.until(lambda: rig.tried, within=90)


@virtual
async def test_control_works_where_leases_of_all_namespaces_may_not_be_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(machine(), secret())
    rig.api.fail("list", *[ApiError(403, "Forbidden", "no rights")] * 6, of=LEASE)
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        await elapse(30)
    for name in (LEASE_NAME, FORMER_LEASE_NAME):
        assert caplog.text.count(f"BMC control can't notice a Rufio that holds the Lease {name}") == 1


@virtual
async def test_secret_that_may_not_be_read_is_a_condition_with_the_missing_right() -> None:
    rig = Rig(machine(), secret())
    rig.api.fail("get", ApiError(403, "Forbidden", "no rights"), of=SECRET)
    async with rig.running():
        missing = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert missing["reason"] == "CredentialsMissing"
        assert "needs the verb get on secrets in namespace default" in missing["message"]
        await rig.until_condition(MACHINE, "bmc1", "Contactable")


@virtual
async def test_another_tinkedge_in_another_namespace_is_no_obstacle() -> None:
    rig = Rig(machine(), secret(), lease(0, "site-b", "tinkedge_pod-1_0123"))
    async with rig.running():
        await rig.until(lambda: rig.tried, within=5)


@virtual
async def test_lease_is_not_taken_before_there_is_anything_to_control() -> None:
    rig = Rig()
    async with rig.running():
        await elapse(600)
        assert rig.api.objects(LEASE) == []
        rig.api.put(secret())
        rig.api.put(machine())
        await rig.until_condition(MACHINE, "bmc1", "Contactable")


# --- inventory --------------------------------------------------------------------------------------------------------


def inventory_of(rig: Rig, name: str = "m1") -> dict[str, Any]:
    stored = rig.api.read(HARDWARE, name) or {}
    found: dict[str, Any] = stored.get("status", {}).get("inventory", {}).get("outOfBand", {})
    return found


@virtual
async def test_inventory_is_written_once_an_interval_and_when_the_annotation_asks_for_it() -> None:
    rig = Rig(machine(), secret(), hardware(bmcRef={"name": "bmc1"}))
    async with rig.running(inventory_interval=7200.0):
        await rig.until(lambda: inventory_of(rig))
        found = inventory_of(rig)
        assert found["product"]["serialNumber"] == rig.bmc.serial
        assert found["collectionMethod"] == "redfish"
        rig.bmc.serial = "NEW1"
        await elapse(1800)
        assert rig.api.count("patch", of=HARDWARE) == 2, "the power, too"
        await rig.api.patch(
            MACHINE, "bmc1", "default", {"metadata": {"annotations": {"tinkerbell.org/refresh-inventory": "true"}}}
        )
        await rig.until(lambda: inventory_of(rig)["product"]["serialNumber"] == "NEW1", within=60)
        await elapse(5)
        assert "refresh-inventory" not in str((rig.api.read(MACHINE, "bmc1") or {})["metadata"])
        writes = rig.api.count("patch", of=HARDWARE)
        await elapse(9000)
        assert rig.api.count("patch", of=HARDWARE) == writes + 1


@virtual
async def test_inventory_of_a_hardware_that_forbids_it_and_of_a_bmc_that_lacks_documents() -> None:
    forbids = hardware("m2", "52:54:00:00:00:02", "192.0.2.2", bmcRef={"name": "bmc1"})
    forbids["metadata"]["annotations"] = {"tinkerbell.org/disable-outofband-inventory": "true"}
    bmc = FakeBmc(faults=[Fault.ETHERNET_404])
    rig = Rig(machine(), secret(), hardware(bmcRef={"name": "bmc1"}), forbids, bmc=bmc)
    async with rig.running():
        await rig.until(lambda: inventory_of(rig))
        assert inventory_of(rig)["product"]
        assert inventory_of(rig, "m2") == {}


# --- IPMI -------------------------------------------------------------------------------------------------------------


class SlowIpmi:
    """A client by IPMI whose calls take a second each. It counts the calls that run at once."""

    protocol = "ipmi"
    running = most = 0

    async def __aenter__(self) -> SlowIpmi:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def observe(self, *, boot: bool = False, media: bool = False) -> Observation:
        SlowIpmi.running += 1
        SlowIpmi.most = max(SlowIpmi.most, SlowIpmi.running)
        await elapse(1)
        SlowIpmi.running -= 1
        return Observation(PowerState.ON)


@virtual
async def test_calls_by_ipmi_are_limited_because_each_is_a_child_process() -> None:
    connections = BmcConnections(LoginMemory(), clients={"ipmi": lambda *_: SlowIpmi()})

    async def poll(number: int) -> PowerState:
        connection = BmcConnection(host=f"192.0.2.{number}", protocols=("ipmi",))
        async with connections.open(NamespacedName("default", "m"), connection, BmcCredentials("u", "p", "v")) as bmc:
            return (await bmc.observe()).power

    assert await asyncio.gather(*map(poll, range(150))) == [PowerState.ON] * 150
    assert SlowIpmi.most == 32
