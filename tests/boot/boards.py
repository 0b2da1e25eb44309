"""Machines that `tinkedge lab` does not have: QEMU's board `virt` for arm64 and riscv64 with U-Boot, or with EDK2 for
riscv64 (`deploy/setup.sh u-boot`, `deploy/setup.sh riscv64`).
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from edge.building.shell import Daemon
from edge.lab.machine import MachineSettings, VirtualMachine

_BESIDE = Path(sys.prefix)
_OF_QEMU = "/usr/share/qemu"  # OpenSBI is here, in Debian's package qemu-system-data

# A kernel for arm64 that writes its device tree, without NULs, to the serial port of the board, and switches it off
# (Linux, Documentation/arch/arm64/booting.rst; DEN0022, SYSTEM_OFF).
_BRANCH, _FLAGS, _ARM64_MAGIC = 0x14000010, 0xA, 0x644D5241
_ARM64_CODE = (
    *(0xB9400401, 0x5AC00821),  # w1 = the size of the tree at x0, which is big-endian
    0xD2A12002,  # x2 = the data register of the PL011
    *(0x340000C1, 0x38401403, 0x51000421),  # for each byte of it
    *(0x34FFFFA3, 0xB9000043, 0x17FFFFFB),  # to the port, if it is none of NUL
    *(0x52B08000, 0x72800100, 0xD4000002, 0x14000000),
)
ARM64_KERNEL = struct.pack("<IIQQQQQQII", _BRANCH, 0, 0, 65536, _FLAGS, 0, 0, 0, _ARM64_MAGIC, 0)
ARM64_KERNEL += struct.pack(f"<{len(_ARM64_CODE)}I", *_ARM64_CODE)

# QEMU 7.2 starts no EDK2 of 2025 from its flash: OpenSBI starts this in the place of a kernel, which jumps there.
_FLASH, _VARIABLES = 0x20000000, 0x22000000
_JUMP = struct.pack("<II", _FLASH | 5 << 7 | 0x37, 5 << 15 | 0x67)  # lui t0, %hi(_FLASH); jr t0


class Board(StrEnum):
    """A board by its firmware."""

    U_BOOT = "u-boot"  # for arm64, of Debian 12
    U_BOOT_NEW = "u-boot-new"  # for arm64, of Debian 13
    U_BOOT_RISCV64 = "u-boot-riscv64"  # of Debian 13, in S mode after OpenSBI
    UEFI_RISCV64 = "uefi-riscv64"  # EDK2 of Debian 13

    @property
    def is_riscv64(self) -> bool:
        """Return True if the board has a RISC-V processor."""
        return self in (Board.U_BOOT_RISCV64, Board.UEFI_RISCV64)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of U-Boot, and the text to type at it."""

    shown: bytes
    typed: bytes


class BoardMachine(VirtualMachine):
    """A machine without a disk. `commands` are typed at its console, one by one, instead of U-Boot's own boot.

    Without commands it boots by itself, and nothing is typed.
    """

    def __init__(
        self, board: Board, settings: MachineSettings, directory: Path, commands: tuple[str, ...] = ()
    ) -> None:
        super().__init__(settings, directory)
        self._board = board
        self._directory = directory
        self._prompts = [Prompt(b"=> ", f"{command}\n".encode()) for command in commands]
        if commands:
            self._prompts.insert(0, Prompt(b"stop autoboot", b" "))
        self._console = directory / "console"
        self._typing: asyncio.Task[None] | None = None

    async def power_on(self) -> None:
        """Switch on, and begin to type. Raises edge.building.shell.CommandError."""
        self.screen.touch()
        (self._directory / "jump").write_bytes(_JUMP)
        self._process = await Daemon.start("machine", self._command(), self.screen.with_name("qemu.log"))
        self._typing = asyncio.create_task(self._type())

    async def power_off(self) -> None:
        """Switch off."""
        if self._typing is not None:
            self._typing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._typing
        await super().power_off()

    async def _type(self) -> None:
        reader, writer = await self._connect()
        seen = b""
        for prompt in self._prompts:
            while prompt.shown not in seen:
                more = await reader.read(4096)
                if not more:
                    return
                seen += more
            seen = b""
            writer.write(prompt.typed)
            await writer.drain()
        while await reader.read(4096):
            pass  # who does not read it holds the machine up
        writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the console once QEMU listens on its socket."""
        while True:
            try:
                return await asyncio.open_unix_connection(self._console)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(0.02)

    def _command(self) -> list[str | Path]:
        name = f"qemu-system-{'riscv64' if self._board.is_riscv64 else 'aarch64'}"
        beside = _BESIDE / "bin" / name
        memory = str(self.settings.memory_mib)
        return [
            *(beside if beside.exists() else name, "-L", _OF_QEMU, "-machine", "virt", "-m", memory, "-nodefaults"),
            *("-cpu", "rv64" if self._board.is_riscv64 else "cortex-a57", "-display", "none", "-monitor", "none"),
            *("-chardev", f"socket,id=screen,path={self._console},server=on,wait=on,logfile={self.screen}"),
            *("-serial", "chardev:screen"),
            # No bootindex on the card: with one, EDK2 of 2025 for riscv64 was seen to make no network boot option, with
            # the source of random numbers before or behind it. Whether that source is needed here was not tried.
            *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"),
            *("-netdev", f"tap,id=net,ifname={self.settings.tap},script=no,downscript=no"),
            *("-device", f"{self._card()},netdev=net,mac={self.settings.mac}"),
            *self._firmware(),
        ]

    def _card(self) -> str:
        # U-Boot 2023.01 repeats the first byte of a PCI card's MAC six times.
        return "virtio-net-device" if self._board is Board.U_BOOT else "virtio-net-pci,romfile="

    def _firmware(self) -> list[str | Path]:
        if self._board is Board.UEFI_RISCV64:
            edk2 = _BESIDE / "edk2-riscv64"
            loaded = ((edk2 / "RISCV_VIRT_CODE.fd", _FLASH), (edk2 / "RISCV_VIRT_VARS.fd", _VARIABLES))
            words = [("-device", f"loader,file={file},addr={at:#x},force-raw=on") for file, at in loaded]
            return ["-kernel", self._directory / "jump", *(word for pair in words for word in pair)]
        if self._board is Board.U_BOOT_RISCV64:
            return ["-kernel", _BESIDE / "u-boot-riscv64" / "u-boot.bin"]
        return ["-bios", _BESIDE / ("u-boot" if self._board is Board.U_BOOT else "u-boot-trixie") / "u-boot.bin"]
