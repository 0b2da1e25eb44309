"""Bundles: one signed file with all that a site without a route needs. docs/airgap.md.

archive      the file, written and read: the signature first, then every byte against its hash
signature    keys, gpg, gpgv and sqv
sources      the origins of parts: apt, URLs, registries
creation     makes a bundle and its list of components (SBOM), on a host with a route
loading      puts a bundle's content for machines into a data directory
"""

from edge.bundle.archive import BundleError, BundleReader, Manifest
from edge.bundle.creation import Contents, Osie, Surroundings, create
from edge.bundle.loading import check, load, next_steps
from edge.bundle.signature import make_key, sign_with_file, sign_with_keyring, verify
from edge.bundle.sources import Wanted

__all__ = [
    "BundleError",
    "BundleReader",
    "Contents",
    "Manifest",
    "Osie",
    "Surroundings",
    "Wanted",
    "check",
    "create",
    "load",
    "make_key",
    "next_steps",
    "sign_with_file",
    "sign_with_keyring",
    "verify",
]
