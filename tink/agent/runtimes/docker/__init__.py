"""Containers through a container engine: Docker's or Podman's, by the Docker Engine API on a unix socket.

`request` describes the container (pure), `engine` finds and speaks to the socket, `pull` brings images, `runtime` puts
them together. Imported only when `--runtime docker` is chosen: aiodocker and aiohttp cost time and memory.
"""

from __future__ import annotations

from tink.agent.runtimes.docker.runtime import DockerRuntime

__all__ = ["DockerRuntime"]
