"""The machines: their Hardware, what each of them boots, and the status fields that this edge writes.

inventory          the index of Hardware by MAC and address, and the manifest for an unregistered machine
policy             whether a machine may netboot (`pending_workflows`), and with which boot program
scripts            a machine's script, and the files of its OSIE
secret_documents   user-data and vendor-data in Secrets
conditions         the conditions AddressConflict and BootProblem of a Hardware
discovery          the Hardware of unknown machines that a rule admits
mistakes, states   the condition Misconfigured; the fields state, mac and ip
"""

from edge.machines.conditions import BootProblem, BootProblemWriter, ConditionWriter
from edge.machines.discovery import DiscoveryWriter, progress_of
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
    "UKI", "UKI_FILE", "Artifacts", "BootPaths", "BootProblem", "BootProblemWriter", "ConditionWriter", "DhcpMode",
    "DiscoveryWriter", "Inventory", "Located", "Machine", "MachineScripts", "MachineState", "MistakeWriter",
    "NetbootPolicy", "NetbootWhen", "NoArtifactError", "OsieFiles", "OsieLookup", "PendingWorkflows", "ReadSecret",
    "SecretDocuments", "StateWriter", "hardware_manifest", "lookup_values", "no_api",
    "progress_of",
]  # fmt: skip
