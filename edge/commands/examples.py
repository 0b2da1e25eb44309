"""`tinkedge examples`: the operating systems of deploy/examples as one file each, with the values of a machine.

The files in deploy/examples are complete and pass the checks of the API. Their values are placeholders: addresses and
MACs of the ranges for documentation (RFC 5737, RFC 7042 section 2.1.1). The command replaces them in the part of the
file above "Nothing to edit below", and lists those that are left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import yaml

from edge.commands import one_machine
from edge.settings import FilePath, parsed, types
from tink.mac import from_any
from tink.net.addresses import join_host_port

_MARK: Final = "# Nothing to edit below."
_DATA_DIR: Final = "/var/lib/tinkedge"
_EDGE: Final = "192.0.2.1"
_PORT: Final = 7080
_KEY: Final = "ssh-ed25519 AAAA-your-key-here you@example.org"
_DISK: Final = "/dev/sda"
_WORDS: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_NUMBER: Final = re.compile(r"[0-9-]+(e[0-9-]+)?|0[box][0-9a-f]+", re.ASCII)
"""Words that kubectl does not read as text unless they are quoted (YAML 1.1 and 1.2)."""
_MAX_KEY_BYTES: Final = 64 << 10
_KEY_LINE: Final = re.compile(r"((?:sk-)?(?:ssh|ecdsa)-[a-z0-9@.-]+) ([A-Za-z0-9+/]{32,}={0,2})(?:\s+(.*))?")
_COMMENT: Final = re.compile(r"[\w@.+:-]{1,100}", re.ASCII)


@parsed("mac")
def _mac(text: str) -> str:
    """Parse a MAC address in any of the usual spellings."""
    found = from_any(text)
    if found is None:
        raise ValueError(f"{text!r} is no MAC address: write it like 52:54:00:12:34:56")
    if int(found[:2], 16) & 1:
        raise ValueError(f"{text} is a multicast address, which no network card has")
    return found


@parsed("netmask")
def _netmask(text: str) -> str:
    """Parse a netmask in dotted form, such as 255.255.255.0."""
    try:
        mask = IPv4Address(text)
        network = IPv4Network(f"0.0.0.0/{mask}")
    except (AddressValueError, NetmaskValueError):
        raise ValueError(f"{text!r} is no netmask: write it like 255.255.255.0") from None
    if network.netmask != mask:  # IPv4Network takes 0.0.0.255, too
        raise ValueError(f"{text!r} is no netmask: write it like 255.255.255.0")
    return text


@parsed("device")
def _disk(text: str) -> str:
    """Parse the path of a disk on the machine."""
    if not re.fullmatch(r"/dev/[A-Za-z0-9][A-Za-z0-9_.:/-]*", text, re.ASCII):
        raise ValueError(f"{text!r} is no disk: write the kernel's path, like /dev/sda or /dev/nvme0n1")
    return text


@parsed("name")
def _name(text: str) -> str:
    """Parse a name for the Hardware, which is also the host name of the machine."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text, re.ASCII):
        raise ValueError(f"{text!r} is no host name: use lower-case letters, digits and '-' in between, 63 at most")
    if text in _WORDS or _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is a number or a word of YAML: use another name")
    return text


@parsed("url")
def _image(text: str) -> str:
    """Parse the URL of a disk image, or its name in DATA_DIR/files of the edge."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", text, re.ASCII):
        return text
    if not re.fullmatch(r"(https?|oci|oci\+http)://[^\s\"'\\<>#]+", text):
        raise ValueError(f"{text!r} is neither the URL of an image nor the name of a file in DATA_DIR/files")
    return text


@parsed("hex")
def _sha256(text: str) -> str:
    """Parse a SHA-256 in hexadecimal digits."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ValueError(f"{text[:80]!r} is no SHA-256: 64 hexadecimal digits")
    return text.lower()


class _Value(NamedTuple):
    """A value of the examples."""

    option: str
    places: str  # a regular expression, without groups, that matches the value in the file
    what: str
    is_needed: bool = False  # the placeholder fits no machine; False: it is a default that fits many


def _exactly(text: str) -> str:
    """Return the pattern of a placeholder that is not a part of a longer word, name or address."""
    return rf"(?<![\w.]){re.escape(text)}(?![\w]|[.]\d)"


def _values(example: str, text: str) -> dict[str, _Value]:
    """Return the values of an example by the parameters of the command, in the order of their options."""
    hardware = next(yaml.safe_load_all(text))
    ((mac, interface),) = hardware["spec"]["networkInterfaces"].items()
    found = {
        "mac": _Value("--mac", _exactly(mac), "the network card that boots", is_needed=True),
        "ip": _Value("--ip", _exactly(interface["dhcp"]["ip"]), "the machine's address", is_needed=True),
        "netmask": _Value("--netmask", _exactly(interface["dhcp"]["netmask"]), "of that network"),
        "gateway": _Value("--gateway", _exactly(interface["dhcp"]["gateway"]), "the router there", is_needed=True),
        "nameserver": _Value("--nameserver", r"(?<= nameservers: )\[[^\]\n]*\]", "DNS servers"),
        "disk": _Value("--disk", f"{_exactly(_DISK)}|(?<==)sda\\b", "ERASED by the installation"),
        "edge": _Value("--edge", f"{_exactly(f'{_EDGE}:{_PORT}')}|{_exactly(_EDGE)}", "the edge", is_needed=True),
        "ssh_key": _Value("--ssh-key", re.escape(_KEY), "who may log in", is_needed=True),
        "image": _Value("--image", r"(?<= image: )http://\S+", "the disk image"),
        "sha256": _Value("--sha256", r'(?<= sha256: )"[^"\n]*"', "of the image"),
        "partition": _Value("--partition", r'(?<= partition: )"[^"\n]*"', "the number of a partition in it"),
        "name": _Value("--name", _exactly(f"{example}-1"), "of the Hardware, and the host name"),
    }
    head = text.partition(_MARK)[0]
    return {key: value for key, value in found.items() if re.search(value.places, head)}


_SHOWN: Final = ("mac", "ip", "netmask", "gateway", "nameserver", "disk", "partition", "edge", "ssh_key")
"""Values that the command lists if they are left as they are; `partition` belongs to a given `image`."""


def _files() -> dict[str, Path]:
    """Return the files of deploy/examples by the names of the examples."""
    from edge.building.builder import recipes

    found = sorted((recipes() / "examples").glob("*/*.yaml"))
    return {file.stem: file for file in found if file.stem == file.parent.name and _title(file)}


def _title(file: Path) -> str:
    """Return the title of an example from its first line; empty if the file is no example."""
    with file.open() as opened:
        name, colon, title = opened.readline().removeprefix("# ").partition(": ")
    return title.strip() if colon and name == file.stem else ""


def _public_key(file: Path) -> str:
    """Return the one public key in a file, with its comment if that is plain. Raises click.BadParameter."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_KEY_BYTES).decode(errors="replace")
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="--ssh-key") from error
    if "PRIVATE KEY" in text:
        raise click.BadParameter(f"{file} is a private key: give the public one, {file}.pub", param_hint="--ssh-key")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) != 1 or (found := _KEY_LINE.fullmatch(lines[0])) is None:
        has = f"has {len(lines)} lines" if len(lines) != 1 else "begins otherwise"
        message = f"{file}: one line like 'ssh-ed25519 AAAA... you@host' is needed, and the file {has}"
        raise click.BadParameter(message, param_hint="--ssh-key")
    words = [word for word in (found[3] or "").split() if _COMMENT.fullmatch(word)]
    return " ".join([found[1], found[2], *words])


def _replacements(given: Mapping[str, Any], values: Mapping[str, _Value]) -> dict[str, str]:
    """Return the text of each given value, by its parameter. Raises click.UsageError."""
    texts: dict[str, str] = {key: str(value) for key, value in given.items() if value and key in values}
    if given["ssh_key"]:
        texts["ssh_key"] = _public_key(given["ssh_key"])
    servers = given["nameserver"] or ([given["gateway"]] if given["gateway"] else [])
    if servers:
        texts["nameserver"] = f"[{', '.join(servers)}]"
    if image := given["image"]:
        host = join_host_port(given["edge"] or _EDGE, given["http_port"])
        texts["image"] = image if "://" in image else f"http://{host}/files/{image}"
    for key in ("sha256", "partition"):
        if given[key]:
            texts[key] = f'"{given[key]}"'
    return texts


def _filled(text: str, texts: Mapping[str, str], values: Mapping[str, _Value], given: Mapping[str, Any]) -> str:
    """Return the example with these values. Each place is replaced once: a value may look like another placeholder."""
    head, mark, rest = text.partition(_MARK)
    keys = [key for key in values if key in texts]

    def replaced(match: re.Match[str]) -> str:
        key, found = keys[(match.lastindex or 1) - 1], match[0]
        if key == "edge" and ":" in found:
            return join_host_port(texts[key], given["http_port"])
        if key == "disk" and not found.startswith("/"):
            return texts[key].removeprefix("/dev/")
        return texts[key]

    if keys:
        head = re.sub("|".join(f"({values[key].places})" for key in keys), replaced, head)
    data_dir = given["data_dir"].absolute()
    uri = f"{data_dir.as_uri()}/"
    return re.sub(f"(file://)?{_DATA_DIR}/", lambda match: uri if match[1] else f"{data_dir}/", head + mark + rest)


def _problems(text: str) -> list[str]:
    """Return the reasons for which the API would reject the objects."""
    from edge.commands.render import checkers

    found = []
    for each in yaml.safe_load_all(text):
        named = each | {"metadata": {**each["metadata"], "namespace": "default"}}
        problems = checkers()[each["kind"]].check(named).problems
        found += [f"{each['kind']} {each['metadata']['name']}: {problem}" for problem in problems]
    return found


def _left(text: str, texts: Mapping[str, str], values: Mapping[str, _Value]) -> Iterator[str]:
    """Yield the lines that list the placeholders and defaults which are left."""
    head = text.partition(_MARK)[0]
    for is_needed, title in ((True, "Still to edit, or to give as options:"), (False, "Right for this machine?")):
        rows = []
        for key in _SHOWN:
            value = values.get(key) if key != "partition" or "image" in texts else None
            if value is not None and key not in texts and value.is_needed == is_needed:
                match = re.search(value.places, head)
                rows.append((value.option, match[0] if match else "", value.what))
        if rows:
            yield title
            widths = [max(len(row[at]) for row in rows) for at in (0, 1)]
            yield from (f"  {option:<{widths[0]}}  {found:<{widths[1]}}  {what}" for option, found, what in rows)


def _write(text: str, output: Path | None, *, force: bool) -> None:
    """Print an example, or write it to a file. Raises click.ClickException."""
    from tink.files import private_files

    if output is None:
        click.echo(text, nl=False)
        return
    if output.is_file() and not force:
        raise click.ClickException(f"{output} exists already, perhaps with your changes: --force replaces it")
    try:
        with private_files.stream(output, private=False) as out:
            out.write(text.encode())
    except OSError as error:
        raise click.ClickException(f"{output}: {error.strerror}") from error


@click.command()
@click.argument(
    "name",
    required=False,
    default="",
    shell_complete=lambda _ctx, _param, begun: [name for name in _files() if name.startswith(begun)],
)
@click.option("--mac", type=_mac, help="MAC address of the network card that the machine boots with.")
@click.option("--ip", type=types.ipv4, help="Address of the machine.")
@click.option("--netmask", type=_netmask, help="Netmask of its network, such as 255.255.255.0.")
@click.option("--gateway", type=types.ipv4, help="The machine's router.")
@click.option("--nameserver", type=types.ipv4, multiple=True, help="DNS server. Repeatable. Default: the --gateway.")
@click.option("--disk", type=_disk, help="Disk that is erased and installed, such as /dev/nvme0n1.")
@click.option("--ssh-key", type=FilePath(dir_okay=False), help="File with the SSH public key that may log in.")
@click.option("--name", "hostname", type=_name, help="Name of the Hardware, and host name.")
@click.option("--image", type=_image, help="URL of the disk image, or its name in `tinkedge image list`.")
@click.option("--sha256", type=_sha256, help="Checksum of the image.")
@click.option("--partition", type=click.IntRange(1, 128), help="Number of the image's partition that is written to.")
@click.option(
    "--public-ip",
    "--edge",
    "public_ip",
    type=types.ip_address,
    help="Address of the edge, as the machine reaches it. Default: that of --interface.",
)
@one_machine.interface
@one_machine.http_port
@click.option(
    "--data-dir",
    type=FilePath(readable=False),
    default=Path(_DATA_DIR),
    help="Data directory of the edge, with the files of the OSIE.",
)
@click.option("-o", "--output", type=FilePath(dir_okay=False), help="Write to this file.")
@click.option("--force", is_flag=True, help="Replace --output if it exists.")
def examples(
    name: str,
    hostname: str | None,
    public_ip: str | None,
    interface: tuple[tuple[str, str], ...],
    output: Path | None,
    force: bool,
    **given: Any,
) -> None:
    """List the examples, or print the one that is called NAME as YAML for kubectl apply -f -.

    An example is an operating system for one machine: Hardware, Workflow, Template and OSIE in one file, with the
    values to edit at its top. Options replace values. The others stay placeholders, which fit no real machine; standard
    error lists them.
    """
    files = _files()
    if not name:
        width = max(map(len, files), default=0)
        for each, file in files.items():
            click.echo(f"{each:<{width}}  {_title(file)}")
        click.echo("\nPrint one: tinkedge examples NAME --mac MAC --ip IP ... (all options: --help)", err=True)
        return
    if name not in files:
        raise click.BadParameter(f"there is no example {name}; there are: {', '.join(files)}", param_hint="NAME")
    text = files[name].read_text()
    values = _values(name, text)
    address, source = one_machine.known_address(public_ip, interface, given["ip"] or "")
    given |= {"edge": address, "name": hostname}
    for key in ("disk", "ssh_key", "image", "sha256", "partition"):
        if given[key] and key not in values:
            raise click.UsageError(f"the example {name} has no place for --{key.replace('_', '-')}")
    texts = _replacements(given, values)
    filled = _filled(text, texts, values, given)
    problems = _problems(filled)
    is_half_given = ("ip" in texts) != ("gateway" in texts)  # the placeholder of the other is in another network
    if problems and not is_half_given:
        raise click.ClickException(f"the API would reject the example {name}: {'; '.join(problems)}")
    _write(filled, output, force=force)
    if output is not None:
        click.echo(f"{output}: kubectl apply -f {output}", err=True)
    if source:
        click.echo(f"The edge is {address}, {source}; --edge gives another.", err=True)
    for line in (*_left(filled, texts, values), *(f"The API rejects it so far: {problem}" for problem in problems)):
        click.echo(line, err=True)
