"""The registry client's decisions: names, logins, and the manifest for a machine. No sockets.

The agent (`tink.agent.images`) and the action image2disk both use it, each with an HTTP transport of its own.
`deploy/actions/build.sh` copies this package into the action's image, so it imports the standard library alone.

    names        names of registries and images, normalised
    login        answers to 401: challenges, credentials, tokens
    manifests    from a tag or digest to one manifest, through indexes

Sources: OCI distribution specification 1.1, OCI image specification 1.1, RFC 9110 section 11, distribution's token
authentication, containerd's platform rules.
"""

from __future__ import annotations

from tink.registry.login import Credentials, Login, credentials_for, read_config
from tink.registry.manifests import (
    MANIFEST_LIMIT_BYTES,
    MANIFEST_TYPES,
    DigestError,
    is_made_for,
    json_object,
    own_platform,
    resolve,
)
from tink.registry.names import Reference, RegistryError, host_of, is_digest, parse, scope_of

__all__ = [
    "MANIFEST_LIMIT_BYTES",
    "MANIFEST_TYPES",
    "Credentials",
    "DigestError",
    "Login",
    "Reference",
    "RegistryError",
    "credentials_for",
    "host_of",
    "is_digest",
    "is_made_for",
    "json_object",
    "own_platform",
    "parse",
    "read_config",
    "resolve",
    "scope_of",
]
