"""The maxima of our resources. The models put them into the schema, and converters check them before they write.

They are far above the needs of machines. They keep the estimated cost of the CEL rules within the budget of Kubernetes,
and unlimited values out of the API.
"""

from __future__ import annotations

MAX_ADDRESS_CHARACTERS = 64
"""Longer than an IPv4 address, so that users see the message of the rule and not that of the maximum."""
MAX_NAME_CHARACTERS = 253
"""Names of objects and hosts (RFC 1123), and of actions."""
MAX_VLAN_CHARACTERS = 16
MAX_URL_CHARACTERS = 2048
MAX_KERNEL_PARAM_CHARACTERS = 2048
MAX_DEVICE_PATH_CHARACTERS = 255
MAX_DATA_CHARACTERS = 1 << 20
"""User-data, vendor-data and scripts."""
MAX_TEXT_CHARACTERS = 131072
"""One argument, or the value of one variable. Linux accepts 128 KiB (MAX_ARG_STRLEN)."""
MAX_VOLUME_CHARACTERS = 512
MAX_IMAGE_CHARACTERS = 1024
MAX_NAMESPACE_CHARACTERS = 1024
MAX_INVENTORY_CHARACTERS = 256
"""One text of an inventory."""

MAX_INTERFACES = 64
MAX_SERVERS = 32
MAX_KERNEL_PARAMS = 256
MAX_DISKS = 256
MAX_INVENTORY_ITEMS = 256
"""Items of one list of an inventory."""
MAX_ACTIONS = 128
MAX_ARGS = 1024
MAX_VOLUMES = 32
MAX_VARIABLES = 256
MAX_TEMPLATE_PARAMS = 256
MAX_BMC_TASKS = 64
"""Tasks of one Job."""
MAX_BOOT_DEVICES = 16
MAX_PROVIDERS = 16
MAX_RPC_ITEMS = 64
"""Headers, values of a header, or Secrets of the provider rpc."""
MAX_PORT = 65535

MAX_LEASE_SECONDS = 4294967295
"""RFC 2132 section 9.2. The lease never expires."""
MAX_TIMEOUT_SECONDS = 2**63 - 1
MAX_TTL_SECONDS = 2**31 - 1
"""The maximum of a Job (batch/v1): 68 years."""
