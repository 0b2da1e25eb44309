"""The adapter of kubernetes-asyncio: the parts of it that read kubeconfigs and connect.

`import kubernetes_asyncio` imports a class for each kind of object and each call of Kubernetes: nine hundred modules,
which take a third of a second of processor time at every start and 35 MB of memory, and none of which is used here. So
its few useful modules are imported without the packages' `__init__`. A test fails if a new version has another layout.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_PACKAGE = "kubernetes_asyncio"
_CLIENT = f"{_PACKAGE}.client"
_MODELS = f"{_CLIENT}.models"


@dataclass(frozen=True)
class Library:
    """The used parts of the library, under its own names."""

    api_client: type[Any]
    configuration: type[Any]
    config: Any
    """The module `config`: load_incluster_config, ConfigException, kube_config."""

    def kubeconfig_loader(self, path: str, content: dict[str, Any], context: str | None) -> Any:
        """Return the loader of one kubeconfig, whose `load_and_set` fills a configuration.

        The library's load_kube_config() takes a list of paths separated by colons, like KUBECONFIG, so it does not find
        a file with a colon in its name. Like it with persist_config=False, this loader never writes the file.
        """
        parts = self.config.kube_config
        # The paths in a kubeconfig are relative to its directory, which the node derives from its own path.
        return parts.KubeConfigLoader(
            config_dict=parts.ConfigNode("kubeconfig", content, path), config_base_path=None, active_context=context
        )


@cache
def library() -> Library:
    """Import the library at the first call, because `tinkedge --help` reads no kubeconfig. Raises ImportError."""
    if _CLIENT in sys.modules:
        return _whole()  # other code has imported all of it
    try:
        return _parts()
    except (ImportError, AttributeError):  # another version may have another layout
        return _whole()


def _whole() -> Library:
    client, config = importlib.import_module(_CLIENT), importlib.import_module(f"{_PACKAGE}.config")
    return Library(client.ApiClient, client.Configuration, config)


def _parts() -> Library:
    """Import the modules in packages whose `__init__` does not run; a later plain import gets the whole library."""
    try:
        for name in (_PACKAGE, _CLIENT):
            spec = find_spec(name)
            if spec is None:
                raise ImportError(f"{name} is not installed")
            sys.modules[name] = module_from_spec(spec)
        # ApiClient looks up classes here when it converts answers to objects.
        sys.modules[_MODELS] = ModuleType(_MODELS)
        client = sys.modules[_CLIENT]
        client.Configuration = importlib.import_module(f"{_CLIENT}.configuration").Configuration  # type: ignore[attr-defined]
        client.ApiClient = importlib.import_module(f"{_CLIENT}.api_client").ApiClient  # type: ignore[attr-defined]
        config = importlib.import_module(f"{_PACKAGE}.config")
        return Library(client.ApiClient, client.Configuration, config)
    finally:
        for name in [name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}.")]:
            del sys.modules[name]
