"""`tinkedge doctor` on a Tinkerbell that uses the same API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edge.doctor import Finding, Severity, check_tinkerbell
from tests.support.api import InProcessApi
from tink.kube.client import ApiError, KubeClient, UnreachableError
from tink.kube.resources import CRD

MACHINES = "machines.bmc.tinkerbell.org"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> InProcessApi:
    api = InProcessApi(serve_v1alpha1=True)

    @contextlib.asynccontextmanager
    async def connected() -> AsyncIterator[InProcessApi]:
        yield api

    async def connect(_kubeconfig: Path) -> Any:
        return connected()

    monkeypatch.setattr(KubeClient, "connect", connect)
    return api


def examined(directory: Path, *, is_embedded: bool = True, has_bmc: bool = True) -> list[Finding]:
    kubeconfig = directory / "kubeconfig"
    kubeconfig.touch()
    return list(check_tinkerbell(kubeconfig, is_embedded=is_embedded, serves_v1alpha1=is_embedded, has_bmc=has_bmc))


def test_api_of_this_release_has_no_finding(api: InProcessApi, tmp_path: Path) -> None:
    assert examined(tmp_path) == []
    api.fail("get", UnreachableError("away"))
    assert examined(tmp_path) == [], "check_osies reports it"
    assert list(check_tinkerbell(tmp_path / "no", is_embedded=True, serves_v1alpha1=True, has_bmc=True)) == []


def test_definition_that_lacks_fields_is_a_problem_with_the_remedy(api: InProcessApi, tmp_path: Path) -> None:
    definition = api.read(CRD, MACHINES, "")
    assert definition is not None
    del definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    api.put(definition)
    (found,) = examined(tmp_path)
    assert (found.severity, found.name) == (Severity.ERROR, f"Tinkerbell on the same API: {MACHINES}")
    assert found.seen.startswith("its v1alpha1 lacks spec, which the API removes from objects")
    assert found.remedy == "restart tinkedge, which applies its own definitions"
    (in_cluster,) = examined(tmp_path, is_embedded=False)
    assert "tinkedge crds --bmc | kubectl apply" in in_cluster.remedy
    assert examined(tmp_path, has_bmc=False) == []


def test_api_that_may_not_be_read_is_a_note(api: InProcessApi, tmp_path: Path) -> None:
    api.fail("list", ApiError(403, "Forbidden", "may not list"))
    (found,) = examined(tmp_path)
    assert found.severity is Severity.NOTE
    assert "may not list" in found.seen
