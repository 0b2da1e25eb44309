"""`tinkedge agent`: runs inside the OSIE. Imports click, `tink.agent` and leaves of `tink`."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from edge.commands.options import log_level as log_level_option
from edge.settings import FilePath, types
from tink.agent import AgentError, from_kernel_command_line, run
from tink.printable import escaped

_FILE = FilePath(exists=True, dir_okay=False)


class AgentFormatter(logging.Formatter):
    """A formatter for the machine's console: `agent: message`, and below it the indented lines of an exception.

    Servers, registries and actions choose parts of the text. The formatter keeps them from starting a line of their own
    and from moving the cursor.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return "agent: " + "\t".join(map(escaped, record.message.split("\t")))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return "\n".join(f"    {escaped(line)}" for line in super().formatException(ei).splitlines())


@click.command()
@click.option("--agent-id", help="Who this machine is: the MAC that it booted from, or its Hardware's name.")
@click.option("--server", help="The workflow server, host:port.")
@click.option(
    "--kernel-command-line",
    type=_FILE,
    help="Read what is not given as an option from this file; in the OSIE, /proc/cmdline.",
)
@click.option(
    "--runtime",
    type=click.Choice(["runc", "crun", "docker", "process"]),
    default="runc",
    help="What runs actions; docker is also Podman.",
)
@click.option(
    "--docker-host",
    envvar="DOCKER_HOST",
    default="",
    help="The container engine's socket, a path or unix:// URL. Default: /run/docker.sock, /run/podman/podman.sock.",
)
@click.option("--state-dir", type=FilePath(), default=Path("/run/tinkedge"), help="Images, containers, volumes.")
@click.option(
    "--insecure-registry",
    multiple=True,
    help="Host, host:port or network of registries whose certificates are not checked, and that may speak plain HTTP. "
    "Repeatable.",
)
@click.option(
    "--registry-ca",
    type=types.registry_ca,
    multiple=True,
    help="HOST[:PORT]=FILE: certificates (PEM) that sign that of a registry. Repeatable.",
)
@click.option(
    "--registry-config",
    type=_FILE,
    help="Docker's config.json or Podman's auth.json: credentials of registries, or of repositories in them.",
)
@click.option("--docker-registry", help="The registry, HOST[:PORT][/PATH], that the user and password belong to.")
@click.option("--registry-username", help="Its user name.")
@click.option("--registry-password", help="Its password; better given as TINKEDGE_REGISTRY_PASSWORD.")
@click.option(
    "--tls/--no-tls", default=None, help="Speak TLS with the server. Default: as the kernel command line says."
)
@click.option("--tls-roots", type=_FILE, help="The authorities (PEM) that the server's certificate must be of.")
@click.option("--tls-cert", type=_FILE, help="This machine's certificate (PEM), for a server that asks for one.")
@click.option("--tls-key", type=_FILE, help="Its private key (PEM).")
@click.option(
    "--token",
    envvar="TINKEDGE_TOKEN",
    help="What the server knows this machine by; better given as TINKEDGE_TOKEN, for others see what commands run.",
)
@click.option(
    "--after-workflow", default="", help="A command to run when a Workflow has ended and the server knows it."
)
@log_level_option
def agent(
    kernel_command_line: Path | None,
    insecure_registry: tuple[str, ...],
    registry_ca: tuple[tuple[str, Path], ...],
    after_workflow: str,
    log_level: str,
    **flags: Any,
) -> None:
    """The agent: takes Workflows from the server and runs their actions on this machine.

    HTTP_PROXY, HTTPS_PROXY and NO_PROXY, on the kernel command line or in the environment, are for registries, and are
    passed on to actions.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(AgentFormatter())
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    try:
        command = tuple(shlex.split(after_workflow))
    except ValueError as error:
        raise click.BadParameter(f"{error}: {after_workflow}", param_hint="--after-workflow") from error
    try:
        settings = from_kernel_command_line(
            # Whoever wrote the command line may have used any encoding; what is for the agent is ASCII.
            kernel_command_line.read_text(errors="replace") if kernel_command_line is not None else "",
            os.environ,
            insecure_registries=insecure_registry or None,
            registry_cas=registry_ca or None,
            after_workflow=command,
            **flags,
        )
    except AgentError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(run(settings))
