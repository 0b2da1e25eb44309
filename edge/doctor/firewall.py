"""The packet filter of this host: the rules that drop packets of machines to our ports.

`nft -j list ruleset` (libnftables-json(5)) shows the rules of nft and of today's iptables. The first packet of a new
conversation is followed through the chains. Some conditions can't be decided for it: a source address, a rate, an
extension of iptables. A rule with such a condition may match. A packet that only such rules drop is not reported.
"""

from __future__ import annotations

import fnmatch
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from edge.doctor.findings import Finding, note, passed, problem, warning

_NFT_TIMEOUT_SECONDS: Final = 10.0
_HOOKS: Final = ("prerouting", "input")
_FAMILIES: Final = {4: ("ip", "inet"), 6: ("ip6", "inet")}
_OTHER_VERSION: Final = {4: "ip6", 6: "ip"}
_MAX_JUMPS: Final = 16  # as in the kernel
_LEGACY_TABLES: Final = Path("/proc/net/ip_tables_names")


@dataclass(frozen=True, slots=True)
class FirstPacket:
    """The first packet of a conversation between a machine and a port of ours."""

    protocol: str  # `udp` or `tcp`
    port: int
    interface: str  # where the packet arrives
    version: int = 4  # of IP


@dataclass(slots=True)
class Ruleset:
    """The output of `nft -j list ruleset`: chains, rules and sets by family, table and name."""

    chains: dict[tuple[str, str, str], Mapping[str, Any]] = field(default_factory=dict)
    rules: dict[tuple[str, str, str], list[Sequence[Any]]] = field(default_factory=dict)
    sets: dict[tuple[str, str, str], Any] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Ruleset:
        """Parse the output of nft. Raises ValueError."""
        made = cls()
        for entry in json.loads(text).get("nftables", ()):
            for kind, obj in entry.items():
                if kind in ("chain", "set"):
                    found: dict[tuple[str, str, str], Any] = made.chains if kind == "chain" else made.sets
                    found[obj["family"], obj["table"], obj["name"]] = obj
                elif kind == "rule":
                    made.rules.setdefault((obj["family"], obj["table"], obj["chain"]), []).append(obj["expr"])
        return made

    def dropped(self, packet: FirstPacket) -> tuple[str, bool] | None:
        """Return the chain that drops the packet, and whether similar packets may pass. None if it may pass."""
        for key, chain in self.chains.items():
            if chain.get("hook") not in _HOOKS or key[0] not in _FAMILIES[packet.version]:
                continue
            walk = _Walk(self, packet)
            verdict = walk.chain(key) or chain.get("policy", "accept")
            if verdict == "drop":
                return f"{key[0]} {key[1]} {walk.dropped_by or key[2]}", walk.may_pass
        return None


@dataclass(slots=True)
class _Walk:
    """The path of one packet through a chain."""

    _ruleset: Ruleset
    _packet: FirstPacket
    may_pass: bool = False
    dropped_by: str = ""

    def chain(self, key: tuple[str, str, str], depth: int = 0) -> str:
        """Return the verdict of a chain: `accept`, `drop`, or empty if the packet reaches the end of the chain."""
        if depth > _MAX_JUMPS:
            return ""
        for expressions in self._ruleset.rules.get(key, ()):
            matches = self._matches(key, expressions)
            if matches is False:
                continue
            kind, target = _verdict(expressions)
            if kind in ("jump", "goto"):
                verdict = self.chain((key[0], key[1], target), depth + 1)
                if kind == "goto" and matches and not verdict:
                    return ""
            elif kind == "return":
                if matches:
                    return ""
                continue
            else:
                verdict = kind
            if matches is None:
                self.may_pass |= verdict == "accept"
            elif verdict:
                if verdict == "drop" and not self.dropped_by:
                    self.dropped_by = key[2]
                return verdict
        return ""

    def _matches(self, key: tuple[str, str, str], expressions: Sequence[Any]) -> bool | None:
        """Return whether a rule matches. None if that depends on something that is not known about the packet."""
        certain: bool | None = True
        for expression in expressions:
            for kind, value in expression.items():
                known: bool | None = True
                if kind == "match":
                    known = self._match(key, value)
                elif kind in ("limit", "vmap", "fib") or (kind == "xt" and value.get("type") == "match"):
                    known = None
                if known is False:
                    return False
                if known is None:
                    certain = None
        return certain

    def _match(self, key: tuple[str, str, str], match: Mapping[str, Any]) -> bool | None:
        value = self._value_of(match.get("left"))
        if value is False:
            return False
        found = self._equals(key, match.get("right"), value) if value is not None else None
        if found is None or match.get("op") not in ("==", "in", "!="):
            return None
        return not found if match.get("op") == "!=" else found

    def _value_of(self, left: Any) -> str | int | None:
        """Return the packet's value of an expression. None if it is not known, False if the rule can't match."""
        packet = self._packet
        match left:
            case {"payload": {"field": "dport"} as payload}:
                return packet.port if payload.get("protocol") in (packet.protocol, "th") else False
            case {"payload": {"protocol": protocol}} if protocol == _OTHER_VERSION[packet.version]:
                return False
            case {"payload": {"field": "protocol" | "nexthdr"}} | {"meta": {"key": "l4proto"}}:
                return packet.protocol
            case {"meta": {"key": "nfproto"}}:
                return f"ipv{packet.version}"
            case {"meta": {"key": "iifname" | "iif"}}:
                return packet.interface
            case {"ct": {"key": "state"}}:
                return "new"
        return None

    def _equals(self, key: tuple[str, str, str], right: Any, value: str | int) -> bool | None:
        """Return whether the value equals the right side of a match, or is in it. None if that is not known."""
        if isinstance(right, str) and right.startswith("@"):
            named = self._ruleset.sets.get((key[0], key[1], right[1:]))
            return self._equals(key, {"set": named.get("elem", [])}, value) if named is not None else None
        if isinstance(right, dict) and "set" in right:
            right = right["set"]
        if isinstance(right, list):
            each = [self._equals(key, one, value) for one in right]
            return True if True in each else None if None in each else False
        if isinstance(right, dict) and isinstance(right.get("range"), list) and isinstance(value, int):
            first, last = right["range"]
            return bool(first <= value <= last) if isinstance(first, int) and isinstance(last, int) else None
        if isinstance(right, str) and isinstance(value, str):
            return fnmatch.fnmatchcase(value, right)
        return value == right if isinstance(right, int | str) else None


def _verdict(expressions: Sequence[Any]) -> tuple[str, str]:
    for expression in expressions:
        for kind, value in expression.items():
            if kind == "accept":
                return "accept", ""
            if kind in ("drop", "reject") or (kind == "xt" and value.get("name") in ("REJECT", "DROP")):
                return "drop", ""
            if kind in ("jump", "goto"):
                return kind, str(value["target"])
            if kind == "return":
                return "return", ""
    return "", ""


def check_firewall(packets: Sequence[FirstPacket]) -> Iterator[Finding]:
    """Report which of the packets this host's packet filter drops."""
    name = "firewall"
    with suppress(OSError):
        if _LEGACY_TABLES.read_text().strip():
            yield note(name, "there are rules of the older iptables, which are not examined: see iptables-legacy -S")
    program = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if program is None:
        yield note(name, "not examined: there is no nft here", "apt-get install nftables")
        return
    try:
        done = subprocess.run(
            [program, "-j", "list", "ruleset"], capture_output=True, text=True, timeout=_NFT_TIMEOUT_SECONDS, check=True
        )
        ruleset = Ruleset.read(done.stdout)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        yield note(name, f"not examined: nft reports: {lines[-1] if lines else error.returncode}", "run this as root")
        return
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError, AttributeError) as error:
        yield note(name, f"not examined: the output of nft can't be read: {error}")
        return
    yield from judge(ruleset, packets)


def judge(ruleset: Ruleset, packets: Sequence[FirstPacket]) -> Iterator[Finding]:
    """Yield a finding for each packet that is dropped, or one finding that none is."""
    is_any_dropped = False
    for packet in packets:
        found = ruleset.dropped(packet)
        if found is None:
            continue
        is_any_dropped = True
        by, may_pass = found
        version = "" if packet.version == 4 else " of IPv6"
        where = f"{packet.port}/{packet.protocol}{version} on {packet.interface}"
        rule = f"{by} iifname {packet.interface} {packet.protocol} dport {packet.port} accept"
        report, unless = (warning, ", unless another rule accepts it") if may_pass else (problem, "")
        yield report("firewall", f"{where} is dropped by the chain {by}{unless}", f"accept it: nft insert rule {rule}")
    if not is_any_dropped:
        yield passed("firewall", f"no rule surely drops any of {len(packets)} kinds of packets")
