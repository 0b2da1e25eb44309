"""Selects the runtime that the settings name.

`oci` (runc and crun) is for the small OSIE, `docker` for one with a container engine, `process` for tests and
simulation. Each is imported only when it is selected: HTTP and TLS modules and aiohttp take time to load on a slow
machine, and the OSIE has no aiohttp at all.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tink.agent.model import AgentSettingsError
from tink.agent.runtimes.runtime import Runtime
from tink.agent.settings import AgentSettings

if TYPE_CHECKING:
    from tink.agent.images import Credentials, Registries


def make_runtime(settings: AgentSettings) -> Runtime:
    """Return the runtime that `settings` name. Raises AgentSettingsError if its program is not installed."""
    if settings.runtime == "process":
        from tink.agent.runtimes.process import ProcessRuntime

        return ProcessRuntime(settings.state_dir)
    registries = _registries(settings)
    if settings.runtime == "docker":
        try:
            from tink.agent.runtimes.docker import DockerRuntime
        except ModuleNotFoundError as error:
            raise AgentSettingsError(
                f"runtime: docker needs the Python package {error.name}: pip install 'tinkedge[docker]'"
            ) from error
        return DockerRuntime(settings.docker_host, settings.agent_id, registries)
    from tink.agent.images import ImageStore
    from tink.agent.runtimes.oci import ContainerRuntime

    program = shutil.which(settings.runtime)
    if program is None:
        raise AgentSettingsError(f"runtime: the program {settings.runtime} is not on PATH; the OSIE must have it")
    return ContainerRuntime(program, settings.state_dir, ImageStore(settings.state_dir, registries))


def _registries(settings: AgentSettings) -> Registries:
    from tink.agent.images import Credentials, Registries
    from tink.registry.login import read_config
    from tink.registry.names import RegistryError

    credentials: tuple[Credentials, ...] = ()
    if settings.registry_username:
        user = Credentials(settings.docker_registry, settings.registry_username, settings.registry_password)
        credentials = (user,)
    if (path := settings.registry_config) is not None:
        try:
            credentials += read_config(path.read_bytes())
        except OSError as error:
            raise AgentSettingsError(f"registry config: {path}: {error.strerror}") from error
        except RegistryError as error:
            raise AgentSettingsError(f"registry config: {path}: {error}") from error
    return Registries(
        settings.insecure_registries,
        credentials,
        settings.registry_authorities,
        settings.plain_registries,
        settings.proxies,
    )
