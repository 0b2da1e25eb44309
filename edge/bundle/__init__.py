"""Bundles: one signed file with all that a site without a route needs. docs/airgap.md.

archive      the file, written and read: the signature first, then every byte against its hash
signature    keys, gpg, gpgv and sqv
sources      the origins of parts: apt, URLs, registries
creation     makes a bundle and its list of components (SBOM), on a host with a route
loading      puts a bundle's content for machines into a data directory
"""
