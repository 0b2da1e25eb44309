"""Lists of expected machines: CSV in ConfigMaps, one line a machine, and the line that a machine's facts fit. Pure.

    name,serial,mac,ip,gateway,osie,disks
    rack7-01,5CG2071XYZ,b0:26:28:11:22:33,10.7.0.11/24,10.7.0.1,hook,2x480GB SSD

Suppliers send such lists, and a person edits them in a spreadsheet. So the header decides the order, usual spellings of
columns are known, and a line that can't be used is reported with its number while the others count. `COLUMNS` describes
the columns. Every key of a ConfigMap with the label `tinkerbell.org/expected-machines: "true"` is one list, and its
machines belong to the ConfigMap's namespace.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from ipaddress import IPv4Address, IPv4Interface, ip_address
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from tink.api import bounds, patterns, rules
from tink.api.inventory import clean_text, mac_address, serial_number
from tink.api.v1alpha2 import FirmwareMode, Raw, as_mapping
from tink.discovery.identity import known_macs, port_key, switch_key
from tink.discovery.model import (
    ALL_NAMESPACES,
    NAME_PREFIX,
    ExpectedDisk,
    ExpectedLink,
    ExpectedMachine,
    ListProblem,
    MachineFacts,
    counts,
    identifies_machine,
    same_uuid,
    serial_key,
)
from tink.kube.objects import NamespacedName
from tink.mac import from_any
from tink.printable import printable
from tink.workflow.status import parse_timestamp

MAX_LIST_CHARACTERS: Final = 1 << 20
"""Kubernetes' limit of a ConfigMap is 1 MiB."""
MAX_LINES: Final = 10_000
"""Maximum number of lines of one list that are read, besides blank ones and comments."""
MAX_OF_NAMESPACE: Final = 50_000
"""Maximum number of machines on all lists of one namespace. Every change of a list indexes all machines again."""
MAX_CELL_CHARACTERS: Final = 4096
MAX_COLUMNS: Final = 256
MAX_VALUES: Final = 64
"""Maximum number of values of one cell."""
MAX_PROBLEMS: Final = 200
"""Maximum number of problems of one list that are reported."""

COLUMNS: Final[Mapping[str, str]] = MappingProxyType({
    "name": "name of the machine's Hardware; the only required column",
    "serial": "serial numbers, separated by |; any of them identifies the machine",
    "uuid": "UUIDs of SMBIOS, separated by blanks",
    "mac": "MAC addresses of network ports, separated by blanks",
    "bmc_mac": "MAC addresses of the BMC, separated by blanks",
    "boot_mac": "MAC address of the port that gets the address; empty: the one that the machine booted from",
    "ip": "IPv4 address to reserve, as 10.7.0.11/24, or with the column netmask",
    "netmask": "netmask of ip, if ip has no length",
    "gateway": "router of the network of ip",
    "nameservers": "name servers, separated by blanks",
    "hostname": "host name to serve; empty: the name",
    "vlan": "VLAN ID for spec.networkInterfaces[].dhcp.vlanId",
    "osie": "OSIE to netboot, in the namespace of the list; empty: that of the discovery, if that is in this namespace",
    "kernel_params": "parameters of the OSIE's kernel, separated by blanks",
    "labels": "labels of the Hardware as KEY=VALUE, separated by blanks",
    "bmc_address": "IP address or host name of the BMC; empty: the one that the machine reports",
    "bmc_secret": "Secret with the BMC's username and password, in the namespace of the list",
    "vendor": "expected manufacturer, or a part of its name",
    "model": "expected model, or a part of its name",
    "cores": "least number of processor cores",
    "memory": "least memory, as 256Gi; GB counts as GiB, as for memory modules",
    "disks": "expected disks, as 2x480GB SSD|4x3.84TB NVMe",
    "firmware": "expected mode of the firmware: UEFI or BIOS",
    "links": "expected cables as SWITCH/PORT or MAC@SWITCH/PORT, separated by blanks",
    "access_vlan": "expected untagged VLAN of the switch port that the machine boots from",
})  # fmt: skip
"""The columns of a list, with their meaning for people."""

_ALIASES: Final = {
    "name": ("hardware", "machine", "node", "server"),
    "serial": ("serialnumber", "serialno", "sn", "servicetag", "systemserial", "serials"),
    "uuid": ("uuids", "smbiosuuid", "systemuuid"),
    "mac": (
        "macs",
        "macaddress",
        "macaddresses",
        "nicmac",
        "nicmacs",
        "nicmacaddress",
        "ethmac",
        "ethmacaddress",
        "portmac",
        "portmacaddress",
        "lommac",
    ),
    "bmc_mac": ("bmcmacaddress", "bmcmacs", "idracmac", "ilomac", "ipmimac", "managementmac"),
    "boot_mac": ("pxemac", "bootmacaddress"),
    "ip": ("ipaddress", "address", "ipv4"),
    "netmask": ("mask", "subnetmask"),
    "gateway": ("router", "defaultgateway"),
    "nameservers": ("nameserver", "dns", "dnsservers"),
    "hostname": ("host",),
    "vlan": ("vlanid",),
    "kernel_params": ("kernelparameters",),
    "labels": ("label",),
    "bmc_address": ("bmcip", "bmc", "bmchost", "idracip", "iloip", "ipmiip", "ipmiaddress"),
    "vendor": ("manufacturer",),
    "model": ("product", "productname"),
    "cores": ("cpucores",),
    "memory": ("ram",),
    "disks": ("drives",),
    "firmware": ("firmwaremode", "bootmode"),
    "links": ("link", "switchport", "ports"),
    "access_vlan": ("portvlan", "untaggedvlan"),
}
_SPELLINGS: Final = {
    spelling: column for column in COLUMNS for spelling in (column.replace("_", ""), *_ALIASES.get(column, ()))
}
_JOINED: Final = frozenset({"serial", "uuid", "mac", "bmc_mac", "nameservers", "labels", "disks", "links"})
"""Columns that a list may have several of, whose values are joined."""
_SECRET_COLUMN: Final = re.compile(
    r"password|passwd|passphrase|passcode|pwd|p(w|ass)$|user(name)?$|login|credential|secret|token"
)
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_HOST_NAME: Final = re.compile(
    r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*"
)
_LABEL_KEY: Final = re.compile(
    rf"(?:(?P<prefix>(?=[^/]{{1,253}}/){_NAME.pattern})/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
)
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_OUR_PREFIX: Final = "tinkerbell.org"
_KERNEL_PARAM: Final = re.compile(r"[!-~]+")
_ENDS_COMMAND: Final = patterns.compiled(patterns.ENDS_IPXE_COMMAND)
_NUMBER: Final = r"([0-9]{1,9}(?:[.,][0-9]{1,6})?)"
"""A number, with the decimal comma of a list whose cells are separated by semicolons."""
_MEMORY: Final = re.compile(rf"{_NUMBER}\s*([MGT])i?B?", re.IGNORECASE)
_DISK: Final = re.compile(rf"(?:([0-9]{{1,3}})\s*[x*]\s*)?{_NUMBER}\s*([GT])(i?)B?\s*(HDD|SSD|NVMe)?", re.IGNORECASE)
_ROUNDED: Final = re.compile(r"[0-9](?:[.,][0-9]+)?E\+[0-9]+", re.IGNORECASE)
"""A long number as a spreadsheet shows and exports it, such as 1.23E+12."""
_LINK: Final = re.compile(r"(?:([0-9A-Fa-f:.-]+)@)?([^/@]+)/([^@]+)")
_DISK_TYPES: Final = {"hdd": "HDD", "ssd": "SSD", "nvme": "NVMe", "": ""}
_FIRMWARE: Final = {
    "uefi": FirmwareMode.UEFI,
    "efi": FirmwareMode.UEFI,
    "bios": FirmwareMode.BIOS,
    "legacy": FirmwareMode.BIOS,
}


# --- cells ------------------------------------------------------------------------------------------------------------


def _limited(values: list[str], maximum: int = MAX_VALUES) -> list[str]:
    """Return the values of a cell without empty ones. Raises ValueError if there are too many."""
    found = [text for each in values if (text := each.strip())]
    if len(found) > maximum:
        raise ValueError(f"{len(found)} values, and at most {maximum} are read")
    return found


def _several(text: str) -> list[str]:
    return _limited(text.replace("|", " ").split())


def _serials(text: str) -> tuple[str, ...]:
    found = []
    for each in _limited(text.split("|")):
        if not (serial := serial_number(each)):
            raise ValueError(f"{each!r} is a placeholder and identifies no machine: leave it out")
        if _ROUNDED.fullmatch(serial):
            raise ValueError(f"{serial!r} was rounded by a spreadsheet: format the column as text, and export it again")
        found.append(serial)
    return tuple(found)


def _uuids(text: str) -> tuple[str, ...]:
    found = []
    for each in _several(text):
        value = UUID(each) if re.fullmatch(r"[0-9A-Fa-f-]{32,36}", each) else None
        if value is None or not identifies_machine(each):
            raise ValueError(f"{each!r} is no UUID that identifies a machine")
        found.append(str(value))
    return tuple(found)


def _mac(text: str) -> str:
    found = mac_address(from_any(text.strip()) or "")
    if not found:
        raise ValueError(f"{text!r} is no MAC address of a port, such as b0:26:28:11:22:33")
    return found


def _macs(text: str) -> tuple[str, ...]:
    return tuple(map(_mac, _several(text)))


def _address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IPv4 address") from None


def _address_text(text: str) -> str:
    """Return the text of an address or a netmask, which `_reserved_address` reads together."""
    if not re.fullmatch(r"[0-9./]{1,31}", text):
        raise ValueError(f"{text!r} is no IPv4 address with its length, such as 10.7.0.11/24")
    return text


def _interface(text: str) -> IPv4Interface:
    try:
        return IPv4Interface(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IPv4 address with its length, such as 10.7.0.11/24") from None


def _object_name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > 253:
        raise ValueError(f"{text!r} is no name of an object: lower case letters, digits, '-' and '.'")
    return text


def _machine_name(text: str) -> str:
    if text.startswith(NAME_PREFIX):
        raise ValueError(f"{text!r}: names with {NAME_PREFIX} are those of machines that are not approved")
    return _object_name(text)


def _host(text: str) -> str:
    try:
        address = ip_address(text.strip("[]"))
    except ValueError:
        if len(text) <= 253 and _HOST_NAME.fullmatch(text):
            return text
    else:
        if "%" not in text:  # a zone of IPv6 is any text
            return str(address)
    # The text may be a URL with a password.
    raise ValueError("neither an IP address nor a host name: no scheme, port, path or user belongs here")


def _secret_name(text: str) -> str:
    try:
        return _object_name(text)
    except ValueError:
        # The text may be a password, so the message does not repeat it.
        raise ValueError("not a name of a Secret: lower case letters, digits, '-' and '.'; no password") from None


def _name_servers(text: str) -> tuple[str, ...]:
    return tuple(str(_address(each)) for each in _several(text))


def _host_name(text: str) -> str:
    if len(text) > 253 or not _HOST_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no host name (RFC 1123)")
    return text


def _vlan(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= 4094:
        raise ValueError(f"{text!r} is no VLAN ID from 1 to 4094")
    return int(text)


def _kernel_params(text: str) -> tuple[str, ...]:
    values = _limited(text.split(), bounds.MAX_KERNEL_PARAMS)
    if wrong := next((each for each in values if not _KERNEL_PARAM.fullmatch(each)), ""):
        raise ValueError(f"{wrong!r} is no kernel parameter: printable ASCII only")
    if wrong := next((each for each in values if _ENDS_COMMAND.search(each)), ""):
        raise ValueError(f"{wrong!r} {rules.KERNEL_PARAM.message}")
    return tuple(values)


def _labels(text: str) -> dict[str, str]:
    found = {}
    for each in _several(text):
        key, equals, value = each.partition("=")
        match = _LABEL_KEY.fullmatch(key)
        if match is None or not equals or not _LABEL_VALUE.fullmatch(value):
            raise ValueError(f"{each!r} is no label, such as rack=7")
        if (match["prefix"] or "").endswith(_OUR_PREFIX):
            raise ValueError(f"{each!r}: labels of {_OUR_PREFIX} are set by discovery itself")
        found[key] = value
    return found


def _text(text: str) -> str:
    return clean_text(text)


def _cores(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not int(text):
        raise ValueError(f"{text!r} is no number of cores")
    return int(text)


def _memory(text: str) -> int:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size of memory, such as 256Gi")
    size = int(_decimal(match[1]) * {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}[match[2].lower()])
    if not size:
        raise ValueError(f"{text!r} is no size of memory: leave the cell empty")
    return size


def _decimal(number: str) -> float:
    return float(number.replace(",", "."))


def _disks(text: str) -> tuple[ExpectedDisk, ...]:
    found = []
    for each in _limited(text.split("|")):
        match = _DISK.fullmatch(each)
        if match is None or not int(match[1] or 1) or not _decimal(match[2]):
            raise ValueError(f"{each!r} describes no disks; write them as 2x480GB SSD|4x3.84TB NVMe")
        count, size, unit, binary, kind = match.groups()
        exponent = {"g": 3, "t": 4}[unit.lower()]
        factor = (1024 if binary else 1000) ** exponent
        found.append(ExpectedDisk(int(count or 1), int(_decimal(size) * factor), _DISK_TYPES[(kind or "").lower()]))
    if sum(disks.count for disks in found) > bounds.MAX_DISKS:
        raise ValueError(f"a machine has at most {bounds.MAX_DISKS} disks")
    return tuple(found)


def _firmware(text: str) -> FirmwareMode:
    found = _FIRMWARE.get(text.lower())
    if found is None:
        raise ValueError(f"{text!r} is neither UEFI nor BIOS")
    return found


def _links(text: str) -> tuple[ExpectedLink, ...]:
    found = []
    for each in _several(text):
        match = _LINK.fullmatch(each)
        if match is None:
            raise ValueError(f"{each!r} is no cable; write it as SWITCH/PORT or MAC@SWITCH/PORT")
        found.append(ExpectedLink(match[2], match[3], _mac(match[1]) if match[1] else ""))
    return tuple(found)


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "name": _machine_name,
    "serial": _serials,
    "uuid": _uuids,
    "mac": _macs,
    "bmc_mac": _macs,
    "boot_mac": _mac,
    "ip": _address_text,
    "netmask": _address_text,
    "gateway": _address,
    "nameservers": _name_servers,
    "hostname": _host_name,
    "vlan": _vlan,
    "osie": _object_name,
    "kernel_params": _kernel_params,
    "labels": _labels,
    "bmc_address": _host,
    "bmc_secret": _secret_name,
    "vendor": _text,
    "model": _text,
    "cores": _cores,
    "memory": _memory,
    "disks": _disks,
    "firmware": _firmware,
    "links": _links,
    "access_vlan": _vlan,
}
_FIELDS: Final = {
    "serial": "serials",
    "uuid": "uuids",
    "mac": "macs",
    "bmc_mac": "bmc_macs",
    "memory": "memory_bytes",
}
"""The fields of ExpectedMachine whose name is not that of the column."""


_BAD_CELL: Final = (
    'a quote (") is open or in the wrong place, or a cell is too long: a quoted cell begins and ends with one in the '
    "same line, and has two for each quote inside"
)


# --- lists ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListTable:
    """A list as a table: the header, the column of each cell ("" for one that is not used), and the lines.

    rows: the number of each line in the text, from 1, and its cells.
    """

    delimiter: str
    header: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[int, list[str]], ...]
    problems: tuple[ListProblem, ...]


def column_of(title: str) -> str:
    """Return the column of a title in any of its usual spellings; empty for none."""
    spelling = re.sub(r"[^a-z0-9]", "", title.lower())
    numbered = _SPELLINGS.get(re.sub(r"[0-9]", "", spelling), "")  # "MAC 1", "NIC2 MAC"
    return _SPELLINGS.get(spelling) or (numbered if numbered in _JOINED else "")


def is_secret_column(title: str) -> bool:
    """Return True for the title of a column with user names or passwords."""
    return not column_of(title) and _SECRET_COLUMN.search(re.sub(r"[^a-z0-9]", "", title.lower())) is not None


def read_table(text: str, source: str) -> ListTable:
    """Return the lines of a list. Comments (#) and blank lines are left out; problems are those of the whole list."""
    problems: list[ListProblem] = []
    if len(text) > MAX_LIST_CHARACTERS:
        problems.append(ListProblem(source, f"the list is larger than {MAX_LIST_CHARACTERS} characters: divide it"))
        return ListTable(",", (), (), (), tuple(problems))
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    # A comment may contain a quote, which must not begin a quoted cell.
    lines = ["" if line.lstrip().startswith("#") else line for line in text.split("\n")]
    first = next((line for line in lines if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    header: list[str] = []
    rows: list[tuple[int, list[str]]] = []
    read = 0
    for number, line in enumerate(lines, start=1):
        if not line or line.isspace():
            continue
        # Lines that can't be read count, too: a list of a million of them must not stop the process for seconds.
        if read > MAX_LINES:
            problems.append(ListProblem(f"{source} line {number}", f"a list has at most {MAX_LINES} machines"))
            break
        read += 1
        try:
            # Each line is read alone, so that a quote that stays open harms no other line.
            cells = next(csv.reader([line], delimiter=delimiter, strict=True, skipinitialspace=True), [])
        except csv.Error:
            problems.append(ListProblem(f"{source} line {number}", _BAD_CELL))
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if not header:
            header = [cell.strip() for cell in cells]
            continue
        rows.append((number, cells))
    if len(header) > MAX_COLUMNS:
        problems = [ListProblem(f"{source} header", f"{len(header)} columns, and a list has at most {MAX_COLUMNS}")]
        return ListTable(delimiter, (), (), (), tuple(problems))
    columns, of_header = _columns(header, source)
    return ListTable(delimiter, tuple(header), columns, tuple(rows), (*problems, *of_header))


def _columns(header: list[str], source: str) -> tuple[tuple[str, ...], list[ListProblem]]:
    """Return the column of each title, and the problems of the header."""
    columns: list[str] = []
    problems: list[ListProblem] = []
    where = f"{source} header"
    for title in header:
        column, shown = column_of(title), clean_text(title)
        if column and column in columns and column not in _JOINED:
            problems.append(ListProblem(where, f"{shown!r} is a second column {column}: the first one counts"))
            column = ""
        elif is_secret_column(title):
            remedy = "put user and password into a Secret and its name into the column bmc_secret"
            text = f"column {shown!r} is not read: {remedy} (`tinkedge discover import` does that)"
            problems.append(ListProblem(where, text))
        elif not column and title:
            close = get_close_matches(re.sub(r"[^a-z0-9]", "", title.lower()[:64]), _SPELLINGS, n=1)
            meant = f"; did you mean {_SPELLINGS[close[0]]}?" if close else ""
            problems.append(ListProblem(where, f"column {shown!r} is not known and not read{meant}"))
        columns.append(column)
    if "name" not in columns:
        problems.append(ListProblem(where, f"there is no column name; the columns are {', '.join(COLUMNS)}"))
    return tuple(columns), problems


def read_list(text: str, namespace: str, source: str) -> tuple[list[ExpectedMachine], list[ListProblem]]:
    """Return the machines of a list for a namespace, and its problems. `source` names the list in messages."""
    table = read_table(text, source)
    problems = list(table.problems)
    machines = []
    has_secrets = any(map(is_secret_column, table.header))
    if "name" not in table.columns:
        return [], problems[:MAX_PROBLEMS]
    for number, cells in table.rows:
        where = f"{source} line {number}"
        try:
            machines.append(_machine(table.columns, cells, namespace, where))
        except ValueError as error:
            text = str(error)
            column, colon, _ = text.partition(": ")
            if has_secrets and colon and column in COLUMNS:
                # A missing cell moves the next ones: the value may be a password.
                text = f"{column}: the value can't be used, and is not shown because the list has a column of secrets"
            problems.append(ListProblem(where, printable(text)))
    return machines, _shown(problems, source)


def _shown(problems: list[ListProblem], source: str) -> list[ListProblem]:
    """Return the first MAX_PROBLEMS problems, and the number of the others as a further one."""
    left_out = len(problems) - MAX_PROBLEMS
    further = [ListProblem(source, f"{left_out} further problems are not shown")] if left_out > 0 else []
    return problems[:MAX_PROBLEMS] + further


def _machine(columns: tuple[str, ...], cells: list[str], namespace: str, source: str) -> ExpectedMachine:
    """Return the machine of a line. Raises ValueError with the column, the value and the remedy."""
    if any(cell.strip() for cell in cells[len(columns) :]):
        raise ValueError(f"the line has {len(cells)} cells and the header {len(columns)}: put quotes around commas")
    given: dict[str, str] = {}
    for column, cell in zip(columns, cells, strict=False):
        if column and (value := cell.strip()):
            given[column] = f"{given[column]}|{value}" if column in given else value
    if "name" not in given:
        raise ValueError("name is empty")
    values: dict[str, Any] = {}
    for column, cell in given.items():
        if len(cell) > MAX_CELL_CHARACTERS:
            raise ValueError(f"{column}: longer than {MAX_CELL_CHARACTERS} characters")
        try:
            values[column] = _READERS[column](cell)
        except ValueError as error:
            raise ValueError(f"{column}: {_shortened(str(error))}") from None
    address = _reserved_address(values.pop("ip", ""), values.pop("netmask", ""))
    _check_gateway(address, values.get("gateway"))
    vlan = values.pop("vlan", 0)
    key = NamespacedName(namespace, values.pop("name"))
    fields = {_FIELDS.get(column, column): value for column, value in values.items()}
    machine = ExpectedMachine(key, source, address=address, vlan=str(vlan) if vlan else "", **fields)
    macs = [*machine.macs, machine.boot_mac, *(link.mac for link in machine.links)]
    machine = replace(machine, macs=tuple(dict.fromkeys(filter(None, macs))))
    if not (machine.serials or machine.uuids or machine.macs or machine.bmc_macs):
        raise ValueError("the line identifies no machine: give serial, uuid, mac or bmc_mac")
    return machine


def _shortened(text: str) -> str:
    return clean_text(text) or "not a value for this column"


def _reserved_address(ip: str, netmask: str) -> IPv4Interface | None:
    """Return the address of the columns ip and netmask. Raises ValueError."""
    if not ip:
        if netmask:
            raise ValueError("netmask: there is no ip that it belongs to")
        return None
    if "/" not in ip and not netmask:
        raise ValueError(f"ip: {ip!r} has no length: write it as {ip}/24, or give netmask")
    try:
        address = _interface(ip if "/" in ip else f"{ip}/{netmask}")
    except ValueError as error:
        raise ValueError(f"ip: {error}") from None
    network = address.network
    if not network.prefixlen:
        raise ValueError(f"ip: {address} is in no network: write the length of its network")
    is_host = network.prefixlen >= 31 or address.ip not in (network.network_address, network.broadcast_address)
    if not is_host or address.ip.is_multicast or address.ip.is_loopback or address.ip.is_unspecified:
        raise ValueError(f"ip: {address} is no address of a host")
    return address


def _check_gateway(address: IPv4Interface | None, gateway: IPv4Address | None) -> None:
    """Raise ValueError for a gateway that the machine could not reach."""
    if gateway is None:
        return
    if address is None:
        raise ValueError("gateway: there is no ip that it belongs to")
    if gateway not in address.network and address.network.prefixlen < 32:
        raise ValueError(f"gateway: {gateway} is not in {address.network}, the network of ip")


# --- all lists --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Match:
    """The line of a list that a machine's facts fit.

    machine: None if no line fits, or more than one.
    by: the fact by which the line fits, such as `serial number 5CG2071XYZ`; empty without a machine.
    conflict: why no line can be chosen, or what contradicts the line; empty if nothing does.
    """

    machine: ExpectedMachine | None = None
    by: str = ""
    conflict: str = ""


_Identifier = tuple[str, str]
"""A kind of identifier, in the words of messages, and its value in a form that can be compared."""


def _identifiers(machine: ExpectedMachine) -> Iterator[tuple[_Identifier, str]]:
    """Yield what identifies the machine of a line, the strongest first, each as it is compared and as it is shown."""
    for kind, values in (
        ("serial number", machine.serials),
        ("UUID", machine.uuids),
        ("BMC MAC", machine.bmc_macs),
        ("MAC", machine.macs),
    ):
        for value in values:
            yield (kind, serial_key(value) if kind == "serial number" else value), value


class ExpectedMachines:
    """All lists of expected machines, updated by an informer of ConfigMaps. A look-up is a dictionary access."""

    def __init__(self) -> None:
        self._lists: dict[NamespacedName, tuple[object, list[ExpectedMachine], list[ListProblem]]] = {}
        self._machines: tuple[ExpectedMachine, ...] = ()
        self._by_key: dict[NamespacedName, ExpectedMachine] = {}
        self._by_identifier: dict[_Identifier, list[ExpectedMachine]] = {}
        self._by_port: dict[tuple[str, str], list[tuple[ExpectedMachine, ExpectedLink]]] = {}
        self._ambiguous: dict[str, str] = {}
        """The problem of each line, by its source, that has something which another line has, too."""
        self._namespaces: frozenset[str] = frozenset()
        """The namespaces with machines on a list."""
        self._without_macs: frozenset[str] = frozenset()
        """The namespaces with a line that has no MAC address of a port."""
        self._handlers: list[Callable[[], None]] = []
        self.problems: tuple[ListProblem, ...] = ()

    def on_change(self, handler: Callable[[], None]) -> None:
        """Call `handler` after every change of the lists."""
        self._handlers.append(handler)

    def apply(self, config_map: Raw) -> None:
        """Add or update the lists of a ConfigMap."""
        key = NamespacedName.of(config_map)
        data = {str(name): text for name, text in as_mapping(config_map.get("data")).items() if isinstance(text, str)}
        unread = sorted(map(str, as_mapping(config_map.get("binaryData"))))
        before = self._lists.get(key)
        if before is not None and before[0] == (data, unread):
            return
        machines: list[ExpectedMachine] = []
        problems: list[ListProblem] = []
        since = parse_timestamp(as_mapping(config_map.get("metadata")).get("creationTimestamp")) or 0.0
        for name, text in sorted(data.items()):
            of_list = read_list(text, key.namespace, f"ConfigMap {key}, {clean_text(name)}")
            machines += [replace(each, listed_since=since) for each in of_list[0]]
            problems += of_list[1]
        # kubectl puts a file there that is not UTF-8, such as one in Windows-1252 or UTF-16.
        for name in unread[:MAX_PROBLEMS]:
            text = "the list is not read, because it is in binaryData: save the file as UTF-8"
            problems.append(ListProblem(f"ConfigMap {key}, {clean_text(name)}", text))
        self._lists[key] = ((data, unread), machines, problems)
        self._changed()

    def remove(self, config_map: Raw) -> None:
        """Remove the lists of a deleted ConfigMap, or of one that has lost its label."""
        if self._lists.pop(NamespacedName.of(config_map), None) is not None:
            self._changed()

    def __len__(self) -> int:
        """Return the number of machines."""
        return len(self._machines)

    def __iter__(self) -> Iterator[ExpectedMachine]:
        """Yield the machines in the order of the lists."""
        return iter(self._machines)

    def missing(
        self, is_present: Callable[[NamespacedName], bool], lines: slice = slice(None)
    ) -> Iterator[ExpectedMachine]:
        """Yield the machines that have not come yet, in the order of the lists; `lines` selects a part of these.

        `is_present(key)` returns True if there is a Hardware of that name whose machine does not wait for its approval.
        """
        return (each for each in self._machines[lines] if not is_present(each.key))

    def named(self, key: NamespacedName) -> ExpectedMachine | None:
        """Return the machine with this name, or None. None, too, if several lines have the name."""
        return self._by_key.get(key)

    def lists_mac(self, mac: str, namespaces: Collection[str]) -> bool:
        """Return True if a line of these namespaces has this MAC address of a port (lower case, colons)."""
        return any(counts(each.key.namespace, namespaces) for each in self._by_identifier.get(("MAC", mac), ()))

    def names_only_macs(self, namespaces: Collection[str]) -> bool:
        """Return True if each line of these namespaces has a MAC address of a port.

        Then a machine with another MAC address need not introduce itself: no line describes it.
        """
        return not any(counts(each, namespaces) for each in self._without_macs)

    def has_lines(self, namespaces: Collection[str]) -> bool:
        """Return True if a list of these namespaces has a machine."""
        return any(counts(each, namespaces) for each in self._namespaces)

    def problems_of(self, namespaces: Collection[str]) -> int:
        """Return the number of problems of the lists of these namespaces."""
        if ALL_NAMESPACES in namespaces:
            return len(self.problems)
        return sum(each.source.startswith(tuple(f"ConfigMap {name}/" for name in namespaces)) for each in self.problems)

    def at_port(self, switch: str, port: str) -> Iterable[tuple[ExpectedMachine, ExpectedLink]]:
        """Return the lines that may expect a machine at a port of a switch. `link_is_at` decides."""
        return self._by_port.get((switch_key(switch), port_key(port)), ())

    def match(self, facts: MachineFacts) -> Match:
        """Return the line that the facts fit. One fact is enough, if no other fact contradicts the line.

        Only lines of the namespaces `facts.lists` count.
        """
        hits: dict[str, tuple[ExpectedMachine, str]] = {}
        for kind, values in (
            ("serial number", facts.serials),
            ("UUID", facts.uuids),
            ("BMC MAC", facts.bmc_macs),
            ("MAC", facts.macs),
        ):
            for value in sorted(values):
                for compared in _compared(kind, value):
                    for machine in self._by_identifier.get((kind, compared), ()):
                        if not counts(machine.key.namespace, facts.lists):
                            continue
                        hits.setdefault(machine.source, (machine, f"{kind} {value}"))
        if not hits:
            return Match()
        if len(hits) > 1:
            lines = "; ".join(f"{by} is that of {each.key} ({each.source})" for each, by in list(hits.values())[:4])
            return Match(conflict=f"several lines fit: {lines}")
        ((machine, by),) = hits.values()
        if problem := self._ambiguous.get(machine.source, ""):
            return Match(machine, by, problem)
        return Match(machine, by, _contradiction(machine, by, facts))

    def _changed(self) -> None:
        machines: list[ExpectedMachine] = []
        problems: list[ListProblem] = []
        room: dict[str, int] = {}
        for key, (_, of_list, problems_of_list) in sorted(self._lists.items()):
            left = room.setdefault(key.namespace, MAX_OF_NAMESPACE)
            machines += of_list[:left]
            problems += problems_of_list
            room[key.namespace] = max(left - len(of_list), 0)
            if len(of_list) > left:
                text = (
                    f"the lists of a namespace have at most {MAX_OF_NAMESPACE} machines: {len(of_list) - left} of this"
                )
                problems.append(ListProblem(f"ConfigMap {key}", f"{text} ConfigMap do not count"))
        self._ambiguous = {}
        duplicates = []
        for machine, text in _duplicates(machines):
            duplicates.append(ListProblem(machine.source, text))
            self._ambiguous.setdefault(machine.source, f"{machine.source}: {text}")
        self._machines = tuple(machines)
        self._namespaces = frozenset(machine.key.namespace for machine in machines)
        self._without_macs = frozenset(machine.key.namespace for machine in machines if not machine.macs)
        self._by_key = {each.key: each for each in machines if each.source not in self._ambiguous}
        self._by_identifier, self._by_port = {}, {}
        for machine in self._machines:
            for identifier, _ in _identifiers(machine):
                self._by_identifier.setdefault(identifier, []).append(machine)
            for link in machine.links:
                port = switch_key(link.switch), port_key(link.port)
                self._by_port.setdefault(port, []).append((machine, link))
        problems += _shown(duplicates, "all lists")
        self.problems = tuple(sorted(problems, key=lambda each: (_natural(each.source), each.text)))
        for handler in self._handlers:
            handler()


def _natural(source: str) -> list[tuple[int, str]]:
    """Return the sort key of a source: line 9 comes before line 10."""
    return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(re.split(r"([0-9]{1,9})", source))]


def _compared(kind: str, value: str) -> tuple[str, ...]:
    if kind == "serial number":
        return (serial_key(value),)
    return same_uuid(value) if kind == "UUID" else (value,)


def _contradiction(machine: ExpectedMachine, by: str, facts: MachineFacts) -> str:
    """Return what contradicts a line that fits by one fact; empty if nothing does."""
    serials, own_serials = set(map(serial_key, machine.serials)), set(map(serial_key, facts.serials))
    uuids = {each for value in facts.uuids for each in same_uuid(value)}
    macs = known_macs(facts.in_band or facts.out_of_band)
    own_macs = macs | set(facts.boot_macs) if macs else set()
    for what, listed, own, shown, has in (
        ("serial number", serials, own_serials, machine.serials, facts.serials),
        ("UUID", set(machine.uuids), uuids, machine.uuids, facts.uuids),
        ("MAC address", set(machine.macs), own_macs, machine.macs, own_macs),
    ):
        if listed and own and not listed & own:
            found, expected = ", ".join(sorted(has)[:8]), ", ".join(shown[:8])
            return (
                f"{by} fits {machine.source}, but the {what} of the machine is {found} and the line has "
                f"{expected}: correct the line, "
                "or find the machine that it describes"
            )
    return ""


def _duplicates(machines: list[ExpectedMachine]) -> Iterator[tuple[ExpectedMachine, str]]:
    """Yield each line that has the name, the address or an identifier of another line, and the problem.

    Lines of two namespaces are no duplicates: one tenant's list must not hold up the machines of another tenant.
    """
    lines: dict[tuple[str, str, str], tuple[str, list[ExpectedMachine]]] = {}
    for machine in machines:
        own = [(("name", str(machine.key)), machine.key.name)]
        own += [(identifier, shown) for identifier, shown in _identifiers(machine)]
        if machine.address is not None:
            own.append((("ip", str(machine.address.ip)), str(machine.address.ip)))
        # A MAC address is that of a port or that of a BMC, not of both.
        unique = {("MAC" if kind == "BMC MAC" else kind, value): shown for (kind, value), shown in own}
        for identifier, shown in unique.items():
            lines.setdefault((*identifier, machine.key.namespace), (shown, []))[1].append(machine)
    for (kind, _, _), (shown, having) in lines.items():
        if len(having) < 2:
            continue
        for at, machine in enumerate(having):
            other = having[1] if at == 0 else having[0]
            further = f" and {len(having) - 2} further lines" if len(having) > 2 else ""
            yield machine, f"{kind} {shown} is also in {other.source}{further}: only one of the lines can be right"
