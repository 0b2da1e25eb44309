"""Boot options of a Workflow: values that can't work are refused by their field, and none can be changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import InProcessApi
from tink.api import rules, v1alpha2
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError
from tink.kube.resources import WORKFLOW

AT = "spec.bootOptions"
CUSTOM = f"{AT}.custombootConfig.preparingActions"


def workflow(options: Any) -> Raw:
    metadata = {"name": "w", "namespace": "default"}
    spec = {"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}}
    if options is not None:
        spec["bootOptions"] = options
    return {"apiVersion": v1alpha2.API_VERSION, "kind": "Workflow", "metadata": metadata, "spec": spec}


def custom(*actions: Raw) -> Raw:
    return {"bootMode": "customboot", "custombootConfig": {"preparingActions": [*actions]}}


def medium(url: str) -> Raw:
    return {"virtualMediaAction": {"kind": "CD", "mediaURL": url}}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"toggleAllowNetboot": True},
        {"toggleAllowNetboot": True, "bootMode": "netboot"},
        {"bootMode": "isoboot"},
        {"bootMode": "isoboot", "isoURL": "http://192.168.1.1/x.iso"},
        {"bootMode": "isoboot", "isoURL": "{{ .Hardware.Instance.Userdata }}"},
        custom({"powerAction": "off"}, medium("http://h/{{ .Hardware.OSIE.Name }}.iso"), {"powerAction": "on"}),
        {"custombootConfig": {"postActions": [{"powerAction": "off"}]}},
    ],
)
async def test_boot_options_are_stored_and_read_as_written(options: Raw) -> None:
    stored = await InProcessApi().create(WORKFLOW, workflow(options))
    read = v1alpha2.Workflow.model_validate(stored).spec.boot_options
    assert stored["spec"]["bootOptions"] == options
    assert read is not None
    assert read.model_dump(by_alias=True, exclude_none=True, mode="json") == options


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"bootMode": "iso"}, f"{AT}.bootMode", 'supported values: "netboot", "isoboot", "customboot"'),
        ({"bootMode": "customboot"}, CUSTOM, rules.NAMES_PREPARING_ACTIONS.message),
        (custom(), CUSTOM, rules.NAMES_PREPARING_ACTIONS.message),
        (
            {"bootMode": "customboot", "custombootConfig": {"postActions": [{"powerAction": "off"}]}},
            CUSTOM,
            rules.NAMES_PREPARING_ACTIONS.message,
        ),
        (custom({}), f"{CUSTOM}[0]", rules.NAMES_ACTION.message),
        (custom(medium("nfs://h/x.iso")), f"{CUSTOM}[0].virtualMediaAction.mediaURL", rules.MEDIA_URL.message),
        (custom(*[{"powerAction": "on"}] * 65), CUSTOM, "must have at most 64 items"),
        *(
            ({"bootMode": "isoboot", "isoURL": url}, f"{AT}.isoURL", rules.ISO_URL.message)
            for url in ("nfs://h/x.iso", "/x.iso", "http://", "http://h/a b", "http://h/{x}}\n")
        ),
        ({"bootMode": "isoboot", "isoURL": "http://h/" + "x" * 2048}, f"{AT}.isoURL", "may not be more than 2048"),
    ],
)
async def test_boot_options_that_can_not_work_are_refused_by_their_field(options: Raw, field: str, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        await InProcessApi().create(WORKFLOW, workflow(options))
    assert refused.value.status == 422
    assert f"{field}: " in str(refused.value)
    assert words in str(refused.value)


@pytest.mark.parametrize("state", ["Pending", "Running", "Failed"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, {"bootMode": "netboot"}),
        ({"bootMode": "netboot"}, {"bootMode": "isoboot"}),
        ({"bootMode": "netboot"}, None),
    ],
)
async def test_boot_options_can_not_be_changed_in_any_state(before: Any, after: Any, state: str) -> None:
    api = InProcessApi()
    await api.create(WORKFLOW, workflow(before))
    await api.patch(WORKFLOW, "w", "default", {"status": {"state": state}}, subresource="status")
    change = {"spec": {"bootOptions": after}}
    with pytest.raises(ApiError, match="bootOptions can't be changed: create another Workflow"):
        await api.patch(WORKFLOW, "w", "default", change)
    await api.patch(WORKFLOW, "w", "default", {"spec": {"timeout": 5}})


async def booted_by_bmc(state: str, boot: Raw) -> InProcessApi:
    api = InProcessApi()
    await api.create(WORKFLOW, workflow({"bootMode": "netboot"}))
    status = {"state": state, "boot": boot}
    await api.patch(WORKFLOW, "w", "default", {"status": status}, subresource="status")
    return api


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("Pending", "once BMC control boots the machine: delete the Workflow and create another"),
        ("Running", r"once the Workflow has left Pending \(it is Running\): create another Workflow"),
    ],
)
async def test_hardware_is_fixed_from_the_first_way_of_the_boot_on_with_one_message(state: str, words: str) -> None:
    api = await booted_by_bmc(state, {"way": "pxe", "attempt": 1})
    with pytest.raises(ApiError, match=f"spec.hardwareRef: Forbidden: hardwareRef can't be changed {words}"):
        await api.patch(WORKFLOW, "w", "default", {"spec": {"hardwareRef": {"name": "other"}}})
    await api.patch(WORKFLOW, "w", "default", {"spec": {"hardwareRef": {"name": "h"}, "timeout": 5}})


async def test_hardware_can_be_changed_while_the_boot_has_not_begun() -> None:
    api = await booted_by_bmc("Pending", {})
    await api.patch(WORKFLOW, "w", "default", {"spec": {"hardwareRef": {"name": "other"}}})
