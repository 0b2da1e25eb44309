"""`tinkedge ...`: the one command; every service and tool of the stack is a subcommand.

A subcommand's module is imported only when it is called: `tinkedge --help` stays fast, and the agent, which runs on
slow machines with little memory, loads nothing of the servers. Every flag can also be given as the environment
variable TINKEDGE_<FLAG>, and those of services in a file (`edge.settings`).
"""

from __future__ import annotations

import gc
import importlib
import signal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from edge.settings import SERVICES, CommandGroup, explain, prepare

# name -> (module in edge.commands, what it does)
COMMANDS = {
    "up": ("serve.up", "The whole stack in one process."),
    "edge": ("serve.services", "DHCP, TFTP, HTTP and metadata, for a cluster."),
    "controller": ("serve.services", "The workflow controller, for a cluster."),
    "server": ("serve.services", "The gRPC server of the agents, for a cluster."),
    "apiserver": ("serve.services", "The embedded Kubernetes API alone."),
    "agent": ("agent", "Run the agent, inside the OSIE."),
    "prepare": ("prepare", "Make the files that machines boot and run, in the data directory."),
    "lab": ("lab", "Boot a QEMU machine through the whole path, in an isolated virtual rack."),
    "fleet": ("fleet", "Simulate thousands of machines, from power-on to the installed system."),
    "crds": ("crds", "Print the CustomResourceDefinitions."),
    "examples": (
        "examples",
        "Print an operating system's Hardware, Workflow, Template and OSIE, with your values.",
    ),
    "image": ("image", "Import, list and remove disk images of operating systems."),
    "render": ("render", "Show the rendered actions of a Workflow without running it."),
    "convert": ("convert", "Convert older and foreign resources to the current ones."),
    "metal3": ("metal3", "Keep Hardware in step with Metal3's BareMetalHosts."),
    "metal3-webhook": ("serve.services", "The conversion webhook of Metal3's BareMetalHost, for a cluster."),
    "metal3-migrate": ("metal3_migrate", "Move the storage of Metal3's BareMetalHosts to v1beta1."),
    "watch": ("watch", "Show machines and their journeys, live."),
    "page": ("page", "Print a link to the web page of a running edge."),
    "metadata-url": ("metadata_url", "Print signed URLs of a machine's metadata, for machines behind NAT."),
    "iso": ("iso", "Make a machine's boot medium, for a CD, a USB stick or a BMC."),
    "backup": ("backup", "Back up the data directory to one file, while everything runs."),
    "restore": ("restore", "Restore a data directory from a backup."),
    "move": ("move", "Move all objects to another API: from the embedded one to a cluster, and back."),
    "bundle": ("bundle", "Make, check and load one signed file for a site without internet access."),
    "kubeconfig": ("users", "Write a kubeconfig for a user of the embedded API, with a token of its own."),
    "users": ("users", "List, change and revoke the users of the embedded API."),
    "health": ("health", "Ask the services on this host whether they are alive and ready."),
    "config": ("config", "Check, show or write the file with settings."),
    "doctor": ("doctor", "Find what keeps this host from serving, and the remedy."),
}


class LazyGroup(CommandGroup):
    """Lists its subcommands without importing them."""

    words = MappingProxyType(
        {
            **dict.fromkeys(("start", "run", "serve"), "up"),
            "help": "--help",
            "version": "--version",
            "status": "health",
            "logs": "watch",
        }
    )

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the subcommand; None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in SERVICES and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            # It does not end a service that is still loading, either. No SIG_IGN: children would inherit that.
            signal.signal(signal.SIGHUP, lambda *_: None)
        # What modules make stays: to look for garbage in it, again and again, is a sixth of the time to start.
        gc.disable()
        module = importlib.import_module(f"edge.commands.{COMMANDS[cmd_name][0]}")
        gc.freeze()
        gc.enable()
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        command.context_settings.setdefault("show_default", True)
        prepare(cmd_name, command, lambda ctx, file: self._settings(ctx, cmd_name, file))
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. Raises click.UsageError, completed by `explain`."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise explain(error) from None

    def _settings(self, ctx: click.Context, name: str, file: Path | None) -> None:
        # Here and not above: `tinkedge --help` reads no file.
        from edge.settings import apply

        apply(ctx, name, file, self.command_named)

    def command_named(self, name: str) -> click.Command:
        """The subcommand. Raises click.UsageError if there is none of this name."""
        found = self.get_command(click.Context(self), name)
        if found is None:
            raise click.UsageError(f"there is no command {name}")
        return found

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list that `--help` ends with."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tinkedge")
def main() -> None:
    """The Tinkerbell v1alpha2 stack: netboot, metadata and workflows for bare metal.

    Every option of a command is also an environment variable: --data-dir is TINKEDGE_DATA_DIR. Those of services can
    stand in a file, too: see tinkedge config.
    """


if __name__ == "__main__":
    main()
