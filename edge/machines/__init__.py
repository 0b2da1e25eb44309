"""What a machine is, and what it may have.

Which machines there are: `inventory`; whether one may netboot: `policy`, which asks `pending_workflows`. What is one's
own: its script (`scripts`), by which program it boots (`boot_paths`), the files of its OSIE (`osie_files`), its
documents that stand in Secrets (`secret_documents`). What is shown on its Hardware: `conditions`, `mistakes`,
`boot_problems`, `states`. Of one that nobody has registered: `manifest`.
"""

from edge.machines.conditions import BootProblemWriter, ConditionWriter, Problem
from edge.machines.inventory import Inventory, Machine, hardware_manifest, lookup_values
from edge.machines.mistakes import MistakeWriter
from edge.machines.pending_workflows import PendingWorkflows
from edge.machines.policy import BootPaths, DhcpMode, NetbootPolicy, NetbootWhen
from edge.machines.scripts import (
    UKI,
    UKI_FILE,
    Artifacts,
    Located,
    MachineScripts,
    NoArtifactError,
    OsieFiles,
    OsieLookup,
)
from edge.machines.secret_documents import ReadSecret, SecretDocuments, no_api
from edge.machines.states import MachineState, StateWriter

__all__ = [
    "UKI",
    "UKI_FILE",
    "Artifacts",
    "BootPaths",
    "BootProblemWriter",
    "ConditionWriter",
    "DhcpMode",
    "Inventory",
    "Located",
    "Machine",
    "MachineScripts",
    "MachineState",
    "MistakeWriter",
    "NetbootPolicy",
    "NetbootWhen",
    "NoArtifactError",
    "OsieFiles",
    "OsieLookup",
    "PendingWorkflows",
    "Problem",
    "ReadSecret",
    "SecretDocuments",
    "StateWriter",
    "hardware_manifest",
    "lookup_values",
    "no_api",
]
