"""Which cluster a configuration leads to, as far as that can be told without asking the cluster.

Clusters have authorities of their own: two configurations with a certificate of an authority in common lead to the same
one. Where the API shows a certificate that anybody may have (a public authority, none at all), it is the URL that says.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_LARGEST_BYTES = 1 << 20


def cluster_ids(url: str, authority: str | None) -> frozenset[str]:
    """What it may be known by; `authority` is a file (PEM), None: the host's own authorities are trusted."""
    try:
        if authority is not None:
            from cryptography import x509  # a tenth of a second, for those alone who have an authority
            from cryptography.hazmat.primitives.serialization import Encoding

            with Path(authority).open("rb") as file:
                certificates = x509.load_pem_x509_certificates(file.read(_LARGEST_BYTES))
            return frozenset(f"ca:{hashlib.sha256(one.public_bytes(Encoding.DER)).hexdigest()}" for one in certificates)
    except (OSError, ValueError):
        pass  # whoever connects says so
    return frozenset([f"url:{url.rstrip('/')}"])
