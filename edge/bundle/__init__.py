"""Bundles: one signed file with all that a site without a route needs. docs/airgap.md.

manifest     what it says of itself, and which names may be in it; pure
archive      the file, written and read: the signature first, then every byte against its hash
signature    keys, gpg, gpgv and sqv
sources/     where parts come from: apt, registries, URLs
sbom         the list of what is in it
creation     a bundle, on a host with a route
loading      what it brings for machines, into a data directory
"""

from edge.bundle.archive import Reader, digest_of
from edge.bundle.creation import Contents, Osie, Surroundings, create
from edge.bundle.loading import check, load, next_steps
from edge.bundle.manifest import BundleError, Manifest
from edge.bundle.signature import make_key, sign_with_file, sign_with_keyring, verify
from edge.bundle.sources.images import Wanted

__all__ = [
    "BundleError",
    "Contents",
    "Manifest",
    "Osie",
    "Reader",
    "Surroundings",
    "Wanted",
    "check",
    "create",
    "digest_of",
    "load",
    "make_key",
    "next_steps",
    "sign_with_file",
    "sign_with_keyring",
    "verify",
]
