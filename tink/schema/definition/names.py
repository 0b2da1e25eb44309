"""Names in definitions: DNS labels and subdomains, with all that is wrong with them in Kubernetes' words.

Source: k8s.io/apimachinery, pkg/util/validation.
"""

from __future__ import annotations

import re

from tink.schema.meta import DNS_SUBDOMAIN, SUBDOMAIN_WORDS

_LABEL_1035 = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035_WORDS = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def subdomain(name: str) -> str:
    """Say what is wrong with an RFC 1123 subdomain; "" when nothing is."""
    return _wrong(name, 253, DNS_SUBDOMAIN, SUBDOMAIN_WORDS)


def dns1035(name: str) -> str:
    """Say what is wrong with an RFC 1035 label; "" when nothing is."""
    return _wrong(name, 63, _LABEL_1035, _LABEL_1035_WORDS)


def _wrong(name: str, limit: int, form: re.Pattern[str], words: str) -> str:
    found = []
    if len(name.encode()) > limit:
        found.append(f"must be no more than {limit} characters")
    if not form.fullmatch(name):
        found.append(words)
    return ",".join(found)
