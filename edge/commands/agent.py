"""`tinkedge agent`: the agent that runs inside the OSIE. It imports only click, `tink.agent` and leaves of `tink`."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from edge.commands.options import log_level as log_level_option
from edge.settings import FilePath, types
from tink.agent import AgentError, collect, from_kernel_command_line
from tink.printable import escaped

_FILE = FilePath(exists=True, dir_okay=False)


class AgentFormatter(logging.Formatter):
    """Formats records for the machine's console: `agent: message`, then the indented lines of an exception."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        # Texts of servers, registries and actions must not start a line or move the cursor.
        return "agent: " + "\t".join(map(escaped, record.message.split("\t")))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return "\n".join(f"    {escaped(line)}" for line in super().formatException(ei).splitlines())


def _print_inventory(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(json.dumps(collect(), indent=2))
        context.exit()


@click.command()
@click.option(
    "--agent-id",
    help="The identity of this machine: the MAC of the interface that it booted from, or the name of its Hardware.",
)
@click.option("--server", help="Address of the workflow server, HOST:PORT.")
@click.option(
    "--kernel-command-line",
    type=_FILE,
    help="File with values for the options that are not given; in the OSIE, /proc/cmdline.",
)
@click.option(
    "--runtime",
    type=click.Choice(["runc", "crun", "docker", "process"]),
    default="runc",
    help="The container runtime for actions; docker is Docker or Podman.",
)
@click.option(
    "--docker-host",
    envvar="DOCKER_HOST",
    default="",
    help="The container engine's socket, a path or unix:// URL. Default: /run/docker.sock, /run/podman/podman.sock.",
)
@click.option(
    "--state-dir", type=FilePath(), default=Path("/run/tinkedge"), help="Directory for images, containers and volumes."
)
@click.option(
    "--insecure-registry",
    multiple=True,
    help="Host, host:port or network of registries that may use plain HTTP, and whose certificates are not checked. "
    "Repeatable.",
)
@click.option(
    "--registry-ca",
    type=types.registry_ca,
    multiple=True,
    help="HOST[:PORT]=FILE: certificate authorities (PEM) of a registry. Repeatable.",
)
@click.option(
    "--registry-config",
    type=_FILE,
    help="Credentials for registries, or for repositories in them: Docker's config.json or Podman's auth.json.",
)
@click.option("--docker-registry", help="The registry, HOST[:PORT][/PATH], for the user name and the password.")
@click.option("--registry-username", help="User name for --docker-registry.")
@click.option("--registry-password", help="Password for --docker-registry; better set as TINKEDGE_REGISTRY_PASSWORD.")
@click.option("--tls/--no-tls", default=None, help="Use TLS to the server. Default: the kernel command line.")
@click.option("--tls-roots", type=_FILE, help="Certificate authorities (PEM) of the server.")
@click.option("--tls-cert", type=_FILE, help="Certificate (PEM) of this machine, for a server that asks for one.")
@click.option("--tls-key", type=_FILE, help="Private key (PEM) of --tls-cert.")
@click.option(
    "--token",
    envvar="TINKEDGE_TOKEN",
    help="The machine's token for the server; better set as TINKEDGE_TOKEN, because others can list command lines.",
)
@click.option(
    "--after-workflow",
    default="",
    help="Command to run after a Workflow has ended and the server has acknowledged that.",
)
@click.option(
    "--print-inventory",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    allow_from_autoenv=False,  # a variable or a settings file must not turn an agent into a command that exits
    callback=_print_inventory,
    help="Print the inventory of this machine as JSON, in the shape of status.inventory.inBand of a Hardware, and "
    "exit. Needs no server and changes nothing. LLDP neighbours are left out. Only root can read serial numbers.",
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
    """Receive Workflows from the server and run their actions on this machine.

    HTTP_PROXY, HTTPS_PROXY and NO_PROXY, on the kernel command line or in the environment, are used for registries and
    passed to actions.
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
            # Other words of the command line may have any encoding; the agent's words are ASCII.
            kernel_command_line.read_text(errors="replace") if kernel_command_line is not None else "",
            os.environ,
            insecure_registries=insecure_registry or None,
            registry_cas=registry_ca or None,
            after_workflow=command,
            **flags,
        )
    except AgentError as error:
        raise click.UsageError(str(error)) from error
    from tink.agent import run  # imports gRPC, which the inventory does not need

    sys.exit(run(settings))
