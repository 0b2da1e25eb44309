"""What of this machine the containers of actions depend on: for `oci` and `docker` alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# fmt: off
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)
# fmt: on
"""By number, from linux/capability.h."""


@dataclass(frozen=True, slots=True)
class Host:
    """What of this machine the description depends on.

    `capability_mask`: the agent's own bounding set; runc cannot give what the agent has not. `shared_files`: files
    such as /etc/resolv.conf that exist here and go with the machine's network.
    """

    capability_mask: int
    shared_files: tuple[str, ...] = ()

    @classmethod
    def this(cls) -> Host:
        """This machine."""
        mask = (1 << len(CAPABILITIES)) - 1
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapBnd:"):
                mask &= int(line.split()[1], 16)
        return cls(mask, tuple(path for path in ("/etc/resolv.conf", "/etc/hosts") if Path(path).is_file()))
