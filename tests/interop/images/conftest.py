"""What the tests of images share: a store, and a registry that misbehaves when it is told to."""

import pytest

from tests.interop.images.fake_registry import FakeRegistry, tar
from tink.agent.images.registry import Registries
from tink.agent.images.store import ImageStore


@pytest.fixture
def make_store(tmp_path):
    def make(registries=None, **more):
        store = ImageStore(tmp_path / "state", registries or Registries(), **more)
        tmp_path.joinpath("state").mkdir(exist_ok=True)
        store.prepare()
        return store

    return make


@pytest.fixture
def store(make_store):
    return make_store(architecture="amd64", sleep=lambda seconds: None)


@pytest.fixture
def fake():
    registry = FakeRegistry()
    yield registry
    registry.close()


@pytest.fixture
def big_layer():
    return tar(file=bytes(range(256)) * 8000)
