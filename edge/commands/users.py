"""`tinkedge kubeconfig` and `tinkedge users`: the users of the embedded API, each with tokens of their own."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from edge.commands.options import data_dir
from edge.commands.progress import errors_shown
from edge.settings import CommandGroup, FilePath, parsed

_DAYS = {"h": 1 / 24, "d": 1, "w": 7, "y": 365}
_ROLES = ("cluster-admin", "admin", "edit", "view", "tinkedge-edge", "tinkedge-edge-discovery", "tinkedge-server")
"""The roles of tink.kubeapi, repeated here because it takes a tenth of a second to import."""
_MAX_DAYS = 100 * 365


@parsed("time")
def _lifetime(text: str) -> timedelta | None:
    """Parse a lifetime: 12h, 90d, 4w, 1y, or `never`, which is None."""
    if text == "never":
        return None
    match = re.fullmatch(r"([1-9]\d{0,5})([hdwy])", text.strip())
    if match is None or int(match[1]) * _DAYS[match[2]] > _MAX_DAYS:
        raise ValueError(f"{text!r} is no time such as 12h, 90d, 4w, 1y, or never")
    return timedelta(days=int(match[1]) * _DAYS[match[2]])


@parsed("url")
def _server(text: str) -> str:
    """Parse the URL of the API, and return it with a port and without a slash at the end: https://10.0.0.5:6443."""
    url = text.rstrip("/")
    if not re.fullmatch(r"https://(\[[0-9a-fA-F:]+\]|[^\s/:@?#\[\]]+)(:\d{1,5})?", url):
        raise ValueError(f"{text!r} is no URL such as https://10.0.0.5:6443")
    return url if re.search(r":\d+$", url) else f"{url}:6443"


@click.command()
@click.option("--user", "name", required=True, help="Name of the user, such as alice or alice@example.org.")
@click.option(
    "--role",
    type=click.Choice(_ROLES),
    help="Role of a new user, as Kubernetes' role of this name; the last three are for a `tinkedge edge`, one with "
    "--discover, or a `server` on another host.",
)
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Limit the role to this namespace. Repeatable.")
@click.option("--expires", type=_lifetime, default="90d", help="Lifetime of the token: 12h, 90d, 4w, 1y, or never.")
@click.option(
    "--server",
    type=_server,
    help="URL at which the user reaches the API. Default: the first --api-name or --api-address of the settings, or "
    "loopback.",
)
@click.option("--out", type=FilePath(dir_okay=False), help="File to write. Default: NAME.kubeconfig.")
@click.option("--stdout", "to_stdout", is_flag=True, help="Write to standard output.")
@click.option("--force", is_flag=True, help="Replace --out if it exists.")
@data_dir("Data directory of `tinkedge up`.")
@click.option("--api-address", multiple=True, help="As for `tinkedge up`.")
@click.option("--api-name", multiple=True, help="As for `tinkedge up`.")
@click.option("--api-port", type=click.IntRange(1, 65535), default=6443, help="As for `tinkedge up`.")
def kubeconfig(
    name: str,
    role: str | None,
    namespaces: tuple[str, ...],
    expires: timedelta | None,
    server: str | None,
    out: Path | None,
    *,
    to_stdout: bool,
    force: bool,
    data_dir: Path,
    api_address: tuple[str, ...],
    api_name: tuple[str, ...],
    api_port: int,
) -> None:
    """Write a kubeconfig for a user of the embedded API, with a new token for that user.

    It is valid at once, even if the API does not run now. Only this file has the token. Each call makes another token:
    give the new one to your colleague, then revoke the old one (tinkedge users revoke). Run it as root or as the user
    that tinkedge runs as.
    """
    from tink.files import private_files
    from tink.kubeapi import issue_token, revoke_token, user_kubeconfig

    target = out or Path(f"{name}.kubeconfig")
    if not to_stdout and target.exists() and not force:
        raise click.UsageError(f"{target} exists already: give another --out, or --force")
    url = server or _default_server(api_name, api_address, api_port)
    with _as_owner(data_dir):
        now = datetime.now(UTC).replace(microsecond=0)
        until = None if expires is None else now + expires
        credential, token = issue_token(data_dir, name, role or "", namespaces, now, until)
        content = user_kubeconfig(data_dir, url, name, token, namespaces[0] if namespaces else "default")
    try:
        if to_stdout:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        else:
            private_files.write(target, content)
    except OSError as error:
        with _as_owner(data_dir):
            revoke_token(data_dir, name, credential.id)  # The user has not received it.
        raise click.ClickException(f"{target}: {error.strerror}") from error
    end = "does not expire" if until is None else f"expires {until:%Y-%m-%d %H:%M} UTC"
    where = "" if to_stdout else f"{target}: "
    click.echo(f"{where}token {credential.id} of {name}, {end}, for {url}", err=True)
    if warning := _tls_problem(url, data_dir / "pki" / "ca.crt"):
        click.echo(f"note: {warning}", err=True)


def _default_server(names: tuple[str, ...], addresses: tuple[str, ...], port: int) -> str:
    places = [*names, *(each for each in addresses if each != "0.0.0.0"), "127.0.0.1"]  # noqa: S104 - not listened at
    return f"https://[{places[0]}]:{port}" if ":" in places[0] else f"https://{places[0]}:{port}"


def _tls_problem(url: str, authority: Path) -> str:
    """Connect to the URL. Return the problem that a client will have there, or an empty string."""
    import socket
    import ssl
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 6443
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with socket.create_connection((host, port), timeout=3) as raw, context.wrap_socket(raw, server_hostname=host):
            return ""
    except ssl.SSLCertVerificationError as error:
        return (
            f"{url} shows a certificate that is not for {host}: {error.verify_message}. Start tinkedge with --api-name "
            f"{host}, or --api-address if that is an address of this host"
        )
    except OSError as error:
        return (
            f"{url} is not reached from here: {error.strerror or error}. tinkedge listens there with --api-address; on "
            "loopback it is reached by ssh -L"
        )


@click.group(cls=CommandGroup)
def users() -> None:
    """List, change and revoke the users of the embedded API."""


@users.command("list")
@data_dir("Data directory of `tinkedge up`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")
def list_(data_dir: Path, *, as_json: bool) -> None:
    """List all users with the ids of their tokens. The tokens themselves are not stored."""
    from tink.kubeapi import USERS_FILE, read_users

    with _as_owner(data_dir):
        found = read_users(data_dir / USERS_FILE).users
    now = datetime.now(UTC)
    if as_json:
        shown = {
            name: {
                "role": user.role,
                "namespaces": list(user.namespaces),
                "tokens": [
                    {
                        "id": each.id,
                        "created": each.created.isoformat(),
                        "expires": each.expires.isoformat() if each.expires else None,
                        "expired": each.expired(now),
                    }
                    for each in user.credentials
                ],
            }
            for name, user in sorted(found.items())
        }
        click.echo(json.dumps(shown, indent=1))
        return
    rows = [("USER", "ROLE", "NAMESPACES", "TOKEN", "CREATED", "EXPIRES")]
    for name, user in sorted(found.items()):
        what = (name, user.role, ",".join(user.namespaces) or "all")
        for each in user.credentials:
            end = f"{each.expires:%Y-%m-%d %H:%M}" if each.expires is not None else "never"
            end += " (expired)" if each.expired(now) else ""
            rows.append((*what, each.id, f"{each.created:%Y-%m-%d}", end))
        rows += [] if user.credentials else [(*what, "none", "", "")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@users.command("revoke")
@click.argument("name")
@click.option(
    "--token", default="", help="Revoke only the token with this id. Default: the user and all tokens of the user."
)
@data_dir("Data directory of `tinkedge up`.")
def revoke(name: str, token: str, data_dir: Path) -> None:
    """Revoke tokens of a user. Within a second, a running server rejects their requests and ends their watches."""
    from tink.kubeapi import revoke_token

    with _as_owner(data_dir):
        revoke_token(data_dir, name, token)
    click.echo(f"{name}: token {token} is revoked" if token else f"{name} and all of the user's tokens are revoked")


@users.command("role")
@click.argument("name")
@click.argument("role", type=click.Choice(_ROLES))
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Limit the role to this namespace. Repeatable.")
@data_dir("Data directory of `tinkedge up`.")
def role_(name: str, role: str, namespaces: tuple[str, ...], data_dir: Path) -> None:
    """Change the role of a user. The user's kubeconfigs stay valid."""
    from tink.kubeapi import change_role

    with _as_owner(data_dir):
        change_role(data_dir, name, role, namespaces)
    click.echo(f"{name} is {role}" + (f" in {', '.join(namespaces)}" if namespaces else ""))


@contextmanager
def _as_owner(data_dir: Path) -> Iterator[None]:
    """Run as the owner of a data directory with an embedded API."""
    from tink.files.data_directory import as_owner

    with errors_shown(None, data_dir), as_owner(data_dir) if data_dir.is_dir() else nullcontext():
        if not (data_dir / "pki" / "ca.crt").is_file():
            raise click.ClickException(
                f"{data_dir} is no data directory with an embedded API: give --data-dir, or start tinkedge once"
            )
        yield
