"""The state directory: for the agent's user alone, for what actions get in their environment is in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tink.agent.agent import only_agent_in
from tink.agent.images.registry import Registries
from tink.agent.images.store import ImageStore
from tink.agent.runtimes.oci.runc import ContainerRuntime
from tink.agent.runtimes.process import ProcessRuntime


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def closed(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o700


async def test_state_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    with only_agent_in(tmp_path / "agent"):
        assert closed(tmp_path / "agent")
    await ProcessRuntime(tmp_path / "process").prepare()
    assert closed(tmp_path / "process")
    state = tmp_path / "runc"
    await ContainerRuntime("crun", state, ImageStore(state, Registries())).prepare()
    assert closed(state)
    assert closed(state / "run")


def test_state_directory_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with only_agent_in(tmp_path):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
