"""The command `tinkedge`. Every service and tool of the stack is a subcommand.

A subcommand's module is imported only when it is called. So `tinkedge --help` stays fast, and the agent, which runs on
slow machines with little memory, loads nothing of the servers.
"""

from __future__ import annotations

import gc
import importlib
import signal
import sys
from types import MappingProxyType
from typing import Any

import click

from edge.settings import SERVICES, CommandGroup, apply, explain, prepare
from tink.errors import TinkedgeError

COMMANDS = {
    "up": ("serve", "Run the whole stack on one host."),
    "edge": ("serve", "Run DHCP, TFTP, HTTP and metadata, for a cluster."),
    "controller": ("serve", "Run the workflow controller, for a cluster."),
    "server": ("serve", "Run the gRPC server of the agents, for a cluster."),
    "apiserver": ("serve", "Run the embedded Kubernetes API alone."),
    "agent": ("agent", "Run the agent, inside the OSIE."),
    "prepare": ("prepare", "Make the files that machines boot and run, in the data directory."),
    "lab": ("lab", "Boot a real QEMU machine through the whole path, in an isolated virtual rack."),
    "fleet": ("fleet", "Simulate machines by the thousand, from power-on to the installed system."),
    "crds": ("crds", "Print the CustomResourceDefinitions."),
    "examples": ("examples", "Print an operating system's Hardware, Workflow, Template and OSIE, with your values."),
    "image": ("image", "Fetch and check disk images of operating systems, and serve them to machines."),
    "render": ("render", "Show the actions of a Workflow, without running it."),
    "convert": ("convert", "Convert older and foreign resources to those of today."),
    "metal3": ("metal3", "Keep Hardware in step with Metal3's BareMetalHosts."),
    "metal3-webhook": ("serve", "Run the conversion webhook of Metal3's BareMetalHost, for a cluster."),
    "metal3-migrate": ("metal3_migrate", "Move stored objects of Metal3's BareMetalHost to v1beta1."),
    "power": ("power", "Switch a machine on or off by its BMC, or show its power state."),
    "bmc": ("bmc", "Show what works on the BMC of a machine, and its known faults."),
    "discover": ("discover", "Show and approve machines that no Hardware describes; lists of expected machines."),
    "watch": ("watch", "Show the journeys of machines, live."),
    "page": ("page", "Print a link to the web page of a running edge."),
    "metadata-url": ("metadata_url", "Print signed URLs of a machine's metadata, for machines behind NAT."),
    "iso": ("iso", "Make a machine's boot medium, for a CD, a USB stick or a BMC."),
    "backup": ("backup", "Save the data directory as one file, while everything runs."),
    "restore": ("restore", "Restore a data directory from a backup."),
    "move": ("move", "Move all objects to another API: from the embedded one to a cluster, and back."),
    "bundle": ("bundle", "Make, check and load one signed file for a site without a route."),
    "kubeconfig": ("users", "Make a kubeconfig for a user of the embedded API, with a token of its own."),
    "users": ("users", "List, change and revoke the users of the embedded API."),
    "health": ("health", "Check that the services on this host are alive and ready."),
    "config": ("config", "Check the settings file, show its values, or write a new one."),
    "doctor": ("doctor", "Find what keeps this host from serving, and the remedy."),
}
"""Each command with its module in `edge.commands` and its help."""


class LazyGroup(CommandGroup):
    """A group that lists its subcommands without importing them."""

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
        """Return the names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the subcommand. Return None if it does not exist."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in SERVICES and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            # SIGHUP must not end a service that is still loading. Not by SIG_IGN: child processes would inherit that.
            signal.signal(signal.SIGHUP, lambda *_: None)
        # The objects of modules are never garbage. Searching them again and again takes a sixth of the start time.
        gc.disable()
        module = importlib.import_module(f"edge.commands.{COMMANDS[cmd_name][0]}")
        gc.freeze()
        gc.enable()
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        command.context_settings.setdefault("show_default", True)
        prepare(cmd_name, command, lambda ctx, file: apply(ctx, cmd_name, file, self.command_named))
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. Raises click.UsageError, completed by `explain`.

        An expected error of any package ends the process with its message.
        """
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise explain(error) from None
        except TinkedgeError as error:
            click.ClickException(str(error)).show()
            sys.exit(error.exit_status)

    def command_named(self, name: str) -> click.Command:
        """Return the subcommand. Raises click.UsageError if it does not exist."""
        found = self.get_command(click.Context(self), name)
        if found is None:
            raise click.UsageError(f"there is no command {name}")
        return found

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list at the end of `--help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tinkedge")
def main() -> None:
    """The Tinkerbell v1alpha2 stack: netboot, metadata and workflows for bare metal.

    Every option of a command is also an environment variable: --data-dir is TINKEDGE_DATA_DIR. The options of services
    are keys of a settings file, too: see tinkedge config.
    """


if __name__ == "__main__":
    main()
