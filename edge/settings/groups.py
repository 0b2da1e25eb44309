"""The order in which people are shown the options: what everybody needs first, the rest by what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

import click

from edge.settings.options import key

REST: Final = "Other options"

_GROUPS: Final = {
    "First of all": "interface public-ip data-dir kubeconfig manifests dhcp-mode osie-dir disable log-level config",
    "Network": """
        http-port peer peer-group reports-key upstream-edge downstream-edges legacy-ports
        known-by-address trusted-proxies ipv6 public-ipv6 router-advertisements ipv6-router decline-quarantine relays
    """,
    "Netboot": """
        netboot-when default-osie boot-path boot-file ipxe-dir shim-dir tftp-dir rpi-dir tftp-single-port
        insecure-registry registry-ca kernel-parameters syslog
    """,
    "Metadata": "imds-tokens link-metadata metadata-nat metadata-tokens metadata-token-key metadata-token-lifetime",
    "Workflows and agents": """
        scheduled-timeout cancelling-timeout action-timeout reference-timeout hardware-gone-timeout reboot-grace
        agent-auth agent-token-key agent-token-lifetime grpc-port grpc-address grpc-authority grpc-tls-cert
        grpc-tls-key grpc-tls-ca grpc-client-ca grpc-connections-per-address grpc-memory
        older-agents workflow-history-limit
    """,
    "API and webhooks": """
        namespaces hardware-selector api-address api-name api-port leader-elect lease-namespace
        webhook-url webhook-service webhook-port webhook-failure-policy webhook-configuration
    """,
    "Metal3": "metal3 context once resync osie bmc consumed netboot-unmanaged empty-checksum-type",
    "Storage and cache": "cache-size allow-upstream checkpoint checkpoint-secrets checkpoint-key",
    "Operators": "admin-address admin-port admin-token-file metrics-address health-address otlp-endpoint",
    "Logging": "log-format",
    "Advanced": "fast-path",
    "The agent": """
        agent-id server kernel-command-line runtime docker-host state-dir registry-config docker-registry
        registry-username registry-password tls tls-roots tls-cert tls-key token after-workflow
    """,
}

GROUPS: Final = {group: tuple(names.split()) for group, names in _GROUPS.items()}


def group_of(name: str) -> str:
    """The group of an option, by its key."""
    return next((group for group, names in GROUPS.items() if name in names), REST)


def place_in_group(name: str) -> int:
    """Where an option stands within its group."""
    names = GROUPS.get(group_of(name), ())
    return names.index(name) if name in names else 0


class CommandGroup(click.Group):
    """A group that names the nearest commands when it has none of the name that was given."""

    words: Mapping[str, str] = MappingProxyType({})
    """The commands to suggest for words that are commands of other programs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with. Raises click.UsageError."""
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names and not ctx.resilient_parsing:
            nearest = [self.words[args[0]]] if args[0] in self.words else get_close_matches(args[0], names)
            near = " or ".join(f"'{name}'" for name in nearest)
            raise click.UsageError(f"No such command '{args[0]}'.{f' Did you mean {near}?' if near else ''}", ctx)
        return super().resolve_command(ctx, args)


class GroupedCommand(click.Command):
    """A command whose `--help` has its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The groups in their order, and --help at the end."""
        records: dict[str, list[tuple[int, tuple[str, str]]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                name = key(param)
                records.setdefault(group_of(name), []).append((place_in_group(name), record))
        for group in (*GROUPS, REST):
            if group in records:
                with formatter.section(group):
                    formatter.write_dl([record for _, record in sorted(records[group], key=lambda each: each[0])])
