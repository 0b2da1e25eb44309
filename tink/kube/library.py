"""kubernetes-asyncio, as much of it as reads kubeconfigs and connects.

`import kubernetes_asyncio` imports a class for each kind of object and each call of Kubernetes: nine hundred modules, a
third of a second of processor time at every start and 35 MB that stay, and nothing here uses one of them.
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
    """What is used of it; the names are theirs."""

    api_client: type[Any]
    configuration: type[Any]
    config: Any
    """The module: load_incluster_config, ConfigException, kube_config."""

    def kubeconfig_loader(self, path: str, content: dict[str, Any], context: str | None) -> Any:
        """Return the loader of one kubeconfig, whose `load_and_set` fills a configuration.

        load_kube_config() takes a list of paths with colons in between, as KUBECONFIG has them, so it does not find a
        file with a colon in its name. Like that function with persist_config=False, this one never writes the file.
        """
        parts = self.config.kube_config
        # Files that the kubeconfig names are relative to its own directory: the node has its path for that.
        return parts.KubeConfigLoader(
            config_dict=parts.ConfigNode("kubeconfig", content, path), config_base_path=None, active_context=context
        )


@cache
def library() -> Library:
    """It is imported when it is first asked for: `tinkedge --help` reads no kubeconfig. Raises ImportError."""
    if _CLIENT in sys.modules:
        return _whole()  # somebody else has paid for all of it
    try:
        return _parts()
    except (ImportError, AttributeError):  # another version may be laid out otherwise
        return _whole()


def _whole() -> Library:
    client, config = importlib.import_module(_CLIENT), importlib.import_module(f"{_PACKAGE}.config")
    return Library(client.ApiClient, client.Configuration, config)


def _parts() -> Library:
    """The same modules, in packages whose `__init__` does not run. Who imports the library later gets a whole one."""
    try:
        for name in (_PACKAGE, _CLIENT):
            spec = find_spec(name)
            if spec is None:
                raise ImportError(f"{name} is not there")
            sys.modules[name] = module_from_spec(spec)
        # ApiClient looks for classes here when it is to make objects of answers.
        sys.modules[_MODELS] = ModuleType(_MODELS)
        client = sys.modules[_CLIENT]
        client.Configuration = importlib.import_module(f"{_CLIENT}.configuration").Configuration  # type: ignore[attr-defined]
        client.ApiClient = importlib.import_module(f"{_CLIENT}.api_client").ApiClient  # type: ignore[attr-defined]
        config = importlib.import_module(f"{_PACKAGE}.config")
        return Library(client.ApiClient, client.Configuration, config)
    finally:
        for name in [name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}.")]:
            del sys.modules[name]
