"""The rules of the built-in types: what their schemas cannot say.

Keys, sizes and immutability of ConfigMaps and Secrets, what Leases hold, what Namespaces wait for. (Those of Events are
in `events`.) Words and order are those of k8s.io/kubernetes, pkg/apis/{core,coordination}/validation, because kubectl
prints them. Pure.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import datetime

import orjson

from tink.kubeapi.apiserver.resources.registry import only
from tink.kubeapi.schema import FieldError, Raw, field_errors

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_DATA_KEY_WORDS = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
MAX_DATA = 1 << 20
"""Most data in a ConfigMap or Secret, in bytes."""
REDACTED = "<secret contents redacted>"

# --- ConfigMaps and Secrets ---------------------------------------------------------------------------------------


def _key_errors(at: str, key: str) -> list[FieldError]:
    wrong = []
    if len(key) > 253:
        wrong.append("must be no more than 253 bytes")
    if not _DATA_KEY.fullmatch(key):
        wrong.append(_DATA_KEY_WORDS)
    elif key in (".", ".."):
        wrong.append(f"must not be '{key}'")
    elif key.startswith(".."):
        wrong.append("must not start with '..'")
    return [field_errors.invalid(f"{at}[{key}]", key, words) for words in wrong]


def _size(value: str, *, encoded: bool) -> int:
    return len(value) * 3 // 4 - value.count("=", -2) if encoded else len(value.encode())


def _immutable_errors(new: Raw, old: Raw | None, fields: tuple[str, ...]) -> list[FieldError]:
    if old is None or not old.get("immutable"):
        return []
    why = "field is immutable when `immutable` is set"
    changed = [name for name in fields if (new.get(name) or {}) != (old.get(name) or {})]
    kept = [] if new.get("immutable") else ["immutable"]
    return [field_errors.forbidden(name, why) for name in kept + changed]


def check_config_map(new: Raw, old: Raw | None) -> list[FieldError]:
    """Keys, size, and that immutable data stay."""
    found = _immutable_errors(new, old, ("data", "binaryData"))
    data, binary = new.get("data") or {}, new.get("binaryData") or {}
    for key in sorted(data):
        found += _key_errors("data", key)
        if key in binary:
            found.append(field_errors.invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
    for key in sorted(binary):
        found += _key_errors("binaryData", key)
    size = sum(_size(value, encoded=False) for value in data.values())
    if size + sum(_size(value, encoded=True) for value in binary.values()) > MAX_DATA:
        found.append(field_errors.too_long("", MAX_DATA))
    return found


def complete_secret(new: Raw) -> None:
    """Put stringData into data, and give a type to a secret that has none."""
    texts = new.pop("stringData", None)
    if texts:
        new["data"] = (new.get("data") or {}) | {
            key: base64.b64encode(value.encode()).decode() for key, value in texts.items()
        }
    new["type"] = new.get("type") or "Opaque"


_DOCKER = {"kubernetes.io/dockercfg": ".dockercfg", "kubernetes.io/dockerconfigjson": ".dockerconfigjson"}
_ACCOUNT = "kubernetes.io/service-account.name"


def check_secret(new: Raw, old: Raw | None) -> list[FieldError]:
    """Keys, size, what the type requires, and that immutable data stay."""
    found: list[FieldError] = []
    if old is not None and new["type"] != old.get("type"):
        found.append(field_errors.invalid("type", new["type"], "field is immutable"))
    found += _immutable_errors(new, old, ("data",))
    data: Mapping[str, str] = new.get("data") or {}
    for key in sorted(data):
        found += _key_errors("data", key)
    if sum(_size(value, encoded=True) for value in data.values()) > MAX_DATA:
        found.append(field_errors.too_long("data", MAX_DATA))
    match new["type"]:
        case "kubernetes.io/service-account-token":
            if not (new["metadata"].get("annotations") or {}).get(_ACCOUNT):
                found.append(field_errors.required(f"metadata.annotations[{_ACCOUNT}]"))
        case "kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson" as kind:
            found += _check_docker(_DOCKER[kind], data)
        case "kubernetes.io/basic-auth" if "username" not in data and "password" not in data:
            found += [field_errors.required("data[username]"), field_errors.required("data[password]")]
        case "kubernetes.io/ssh-auth" if not data.get("ssh-privatekey"):
            found.append(field_errors.required("data[ssh-privatekey]"))
        case "kubernetes.io/tls":
            found += [field_errors.required(f"data[{key}]") for key in ("tls.crt", "tls.key") if key not in data]
    return found


def _check_docker(key: str, data: Mapping[str, str]) -> list[FieldError]:
    if key not in data:
        return [field_errors.required(f"data[{key}]")]
    try:
        content = orjson.loads(base64.b64decode(data[key]))
    except ValueError:
        return [field_errors.invalid(f"data[{key}]", REDACTED, "must be a JSON object")]
    if isinstance(content, dict):
        return []
    return [field_errors.invalid(f"data[{key}]", REDACTED, "must be a JSON object")]


# --- Namespaces ---------------------------------------------------------------------------------------------------

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
"""Namespaces that always exist."""
_IMMORTAL = frozenset(SYSTEM_NAMESPACES[:3])
"""Those that cannot be deleted (k8s.io/apiserver, pkg/admission/plugin/namespace/lifecycle)."""


def complete_namespace(new: Raw) -> None:
    """A namespace carries its name as a label."""
    if name := new["metadata"].get("name"):
        new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


def prepare_namespace(new: Raw, old: Raw | None, _now: datetime) -> None:
    """A namespace has Kubernetes' finalizer until its objects are gone (`lifecycle`)."""
    if old is None:
        finalizers = (new.get("spec") or {}).get("finalizers") or []
        new["spec"] = {"finalizers": [*finalizers, *(["kubernetes"] if "kubernetes" not in finalizers else [])]}
    status = new.setdefault("status", {})
    status["phase"] = "Terminating" if "deletionTimestamp" in new["metadata"] else "Active"


def limit_namespace(new: Raw, old: Raw, subresource: str, _has_status: bool) -> Raw:
    """What the namespace waits for changes through /finalize alone."""
    if subresource == "finalize":
        return only(("spec",), new, old)
    if subresource == "status":
        return only(("status",), new, old)
    kept = {key: old[key] for key in ("spec", "status") if key in old}
    return {key: value for key, value in new.items() if key not in ("spec", "status")} | kept


def may_delete_namespace(name: str) -> str | None:
    """Say why a namespace must stay."""
    return "this namespace may not be deleted" if name in _IMMORTAL else None


def waits(namespace: Raw) -> bool:
    """Whether a namespace waits for something before it may go."""
    return bool((namespace.get("spec") or {}).get("finalizers"))


# --- Leases -------------------------------------------------------------------------------------------------------


def complete_lease(new: Raw) -> None:
    """A Lease always has a spec."""
    new.setdefault("spec", {})


def prepare_lease(new: Raw, _old: Raw | None, _now: datetime) -> None:
    """Coordinated leader election is an option of Kubernetes that is off, here as there: its fields are dropped."""
    for name in ("strategy", "preferredHolder"):
        new["spec"].pop(name, None)


def check_lease(new: Raw, _old: Raw | None) -> list[FieldError]:
    """Durations and counts make sense."""
    spec = new["spec"]
    found = []
    if spec.get("leaseDurationSeconds", 1) <= 0:
        at = "spec.leaseDurationSeconds"
        found.append(field_errors.invalid(at, spec["leaseDurationSeconds"], "must be greater than 0"))
    if spec.get("leaseTransitions", 0) < 0:
        at = "spec.leaseTransitions"
        found.append(field_errors.invalid(at, spec["leaseTransitions"], "must be greater than or equal to 0"))
    return found
