"""Webhooks: their address, the conversion of a definition, and match conditions.

`ClientConfig` and the checks of `clientConfig` and review versions serve webhook configurations and definitions with a
conversion webhook (k8s.io/apiserver, pkg/util/webhook/validation.go; k8s.io/apiextensions-apiserver,
pkg/apis/apiextensions/validation).

Match conditions are CEL expressions that must all be true before a webhook is called. Their variables are `object`,
`oldObject` (null if there is none), `request` (the AdmissionRequest without its objects) and `namespaceObject` (always
null). Their costs are limited as in Kubernetes (k8s.io/apiserver, pkg/admission/plugin/cel and
plugin/webhook/matchconditions). There is no `authorizer`, because this API server has one user. Pure.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from cryptography import x509

from tink.errors import TinkedgeError
from tink.kubeapi import cel
from tink.kubeapi.cel import types
from tink.kubeapi.schema import meta
from tink.kubeapi.schema.field_errors import FieldError, forbidden, invalid, invalid_whole, not_supported, required
from tink.kubeapi.schema.rules import NO_BUDGET

Errors = Iterator[FieldError]

REVIEW_VERSIONS = ("v1", "v1beta1")
"""The supported versions of AdmissionReview and ConversionReview."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The address of a webhook. `trust` are certificates in PEM, or b"" for the system's. `missing` names an absent
    Service.
    """

    url: str
    trust: bytes = b""
    missing: str = ""

    @staticmethod
    def of(config: Mapping[str, Any]) -> ClientConfig:
        """Read the clientConfig of a webhook, which was checked before it was stored."""
        try:
            trust = base64.b64decode(config.get("caBundle") or "").strip()
        except binascii.Error:
            trust = b"no base64"  # an invalid certificate, so that only calls fail
        service = config.get("service")
        if service is None:
            parts = urlsplit(config.get("url") or "")
            return ClientConfig(f"{parts.scheme}://{parts.netloc}{_clean(parts.path)}", trust)
        name, namespace, port = service.get("name", ""), service.get("namespace", ""), service.get("port") or 443
        return ClientConfig(f"https://{name}.{namespace}.svc:{port}{_clean(service.get('path') or '')}", trust, name)


def _clean(path: str) -> str:
    """Clean a path as client-go does when it joins paths: no empty, `.` or `..` steps, and no slash at the end."""
    return posixpath.normpath("/" + path.lstrip("/"))


# --- checks ------------------------------------------------------------------------------------------------------

_NEVER = re.compile(r"[\x00-\x1f\x7f]|//[^/]*[ \"<>\\^`{|}]")
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_FORM = "; desired format: https://host[/path]"


def check_client(client: Mapping[str, Any], at: str) -> list[FieldError]:
    """Check the address of a webhook: exactly one of url and service."""
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        return [required(at, "exactly one of url or service is required")]
    return list(_service_errors(service or {}, f"{at}.service") if url is None else _url_errors(url, f"{at}.url"))


def _url_errors(url: str, at: str) -> Errors:
    try:
        parts = urlsplit(url)
        valid = parts.port is None or parts.port >= 0
    except ValueError:
        valid = False
    if not valid or _NEVER.search(url) or _BAD_ESCAPE.search(parts.path):
        yield required(at, f"url must be a valid URL{_FORM}")
        return
    user, at_sign, host = parts.netloc.rpartition("@")
    if parts.scheme != "https":
        yield invalid(at, parts.scheme, f"'https' is the only allowed URL scheme{_FORM}")
    if not host:
        yield invalid(at, host, f"host must be specified{_FORM}")
    if at_sign:
        yield invalid(at, user, "user information is not permitted in the URL")
    if parts.fragment:
        yield invalid(at, unquote(parts.fragment), "fragments are not permitted in the URL")
    if parts.query:
        yield invalid(at, parts.query, "query parameters are not permitted in the URL")


def _service_errors(service: Mapping[str, Any], at: str) -> Errors:
    yield from (required(f"{at}.{key}") for key in ("name", "namespace") if not service.get(key))
    port, path = service.get("port", 443), service.get("path") or ""
    if not 1 <= port <= 65535:
        yield invalid(f"{at}.port", port, "port is not valid: must be between 1 and 65535, inclusive")
    at = f"{at}.path"
    if path == "//":
        yield invalid(at, path, "segment[0] may not be empty")
    elif path not in ("", "/"):
        if not path.startswith("/"):
            yield invalid(at, path, "must start with a '/'")
        for index, step in enumerate(path[1:].removesuffix("/").split("/")):
            if not step:
                yield invalid(at, path, f"segment[{index}] may not be empty")
            elif wrong := meta.subdomain(step):
                yield invalid(at, path, f"segment[{index}]: {wrong}")


def check_review_versions(versions: Sequence[str], at: str, *, known: bool, advice: str = "") -> list[FieldError]:
    """Return the errors in review versions. `known` requires a supported one. `advice` is for an empty list."""
    if not versions:
        return [required(at, advice)]
    found = []
    for index, version in enumerate(versions):
        if version in versions[:index]:
            found.append(invalid_whole(f"{at}[{index}]", version, "duplicate version"))
        elif wrong := meta.dns1035(version):
            found.append(invalid_whole(f"{at}[{index}]", version, wrong))
    if known and not set(versions) & set(REVIEW_VERSIONS):
        found.append(invalid_whole(at, list(versions), f"must include at least one of {', '.join(REVIEW_VERSIONS)}"))
    return found


Conversion = Mapping[str, Any]


def knows_reviews(conversion: Conversion | None) -> bool:
    """Return True if a stored conversion names a supported review version, or none at all."""
    listed = ((conversion or {}).get("webhook") or {}).get("conversionReviewVersions") or ()
    return not listed or any(version in REVIEW_VERSIONS for version in listed)


def bundle_problem(conversion: Conversion | None) -> str:
    """Return what is wrong with the certificates of a conversion webhook, or ""."""
    config = ((conversion or {}).get("webhook") or {}).get("clientConfig") or {}
    text = config.get("caBundle")
    if not text:
        return ""
    try:
        pem = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        return str(error)
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError:
        why = "unable to parse bytes as PEM block" if b"-----BEGIN " not in pem else "failed to parse certificates"
        return f"unable to load root certificates: {why}"
    return ""


def check_conversion(conversion: Conversion, at: str, *, known_reviews: bool, any_bundle: bool) -> Errors:
    """Return the errors in spec.conversion.

    `known_reviews` requires a supported review version. `any_bundle` allows invalid certificates.
    """
    strategy, webhook = conversion.get("strategy", ""), conversion.get("webhook") or {}
    config, reviews = webhook.get("clientConfig"), webhook.get("conversionReviewVersions") or []
    where = f"{at}.webhookClientConfig"
    if not strategy:
        yield required(f"{at}.strategy")
    elif strategy not in ("None", "Webhook"):
        yield not_supported(f"{at}.strategy", strategy, ("None", "Webhook"))
    if strategy != "Webhook":
        only = "should not be set when strategy is not set to Webhook"
        if config is not None:
            yield forbidden(where, only)
        if reviews:
            yield forbidden(f"{at}.conversionReviewVersions", only)
        return
    if config is None:
        yield required(where, "required when strategy is set to Webhook")
    else:
        yield from check_client(config, where)
        if not any_bundle and (why := bundle_problem(conversion)):
            yield invalid_whole(f"{where}.caBundle", config["caBundle"], why)
    yield from check_review_versions(reviews, f"{at}.conversionReviewVersions", known=known_reviews)


MAX_COST = 2_500_000
"""Maximum cost of all conditions of a webhook together (RuntimeCELCostBudgetMatchConditions)."""
MAX_EACH = 1_000_000
"""Maximum cost of one condition (PerCallLimit)."""


class ConditionError(TinkedgeError):
    """The conditions could not be evaluated. The message is Kubernetes'."""


@cache
def _variables() -> Mapping[str, types.CelType]:
    def of(name: str, fields: Mapping[str, types.CelType]) -> types.CelType:
        return types.ObjectType(name, {key: types.ObjectField(kind, key) for key, kind in fields.items()})

    text, texts = types.STRING, types.ListType(types.STRING)
    kind = of("kubernetes.GroupVersionKind", dict.fromkeys(("group", "version", "kind"), text))
    resource = of("kubernetes.GroupVersionResource", dict.fromkeys(("group", "version", "resource"), text))
    names = dict.fromkeys(("subResource", "requestSubResource", "name", "namespace", "operation"), text)
    user = {"username": text, "uid": text, "groups": texts, "extra": types.MapType(text, texts)}
    request = {
        **names,
        **dict.fromkeys(("kind", "requestKind"), kind),
        **dict.fromkeys(("resource", "requestResource"), resource),
        "userInfo": of("kubernetes.UserInfo", user),
        "dryRun": types.BOOL,
        "options": types.DYN,
    }
    objects = dict.fromkeys(("object", "oldObject", "namespaceObject"), types.DYN)
    return {**objects, "request": of("kubernetes.AdmissionRequest", request)}


def compile_condition(expression: str) -> cel.CompiledExpression:
    """Compile one expression. Raises cel.CelError with Kubernetes' message."""
    try:
        program = cel.compile_expression(expression, _variables())
    except cel.CelError as error:
        raise cel.CelError(f"compilation failed: {error}") from error
    if program.type != types.BOOL:
        raise cel.CelError(f"must evaluate to bool but got {types.text_of(program.type)}")
    return program


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one webhook: pairs of an expression and its program, or its compile error."""

    items: tuple[tuple[str, cel.CompiledExpression | str], ...]

    @staticmethod
    def of(conditions: Sequence[Mapping[str, Any]]) -> Conditions | None:
        """Compile the matchConditions of a webhook. Return None if there are none."""
        if not conditions:
            return None
        items: list[tuple[str, cel.CompiledExpression | str]] = []
        for condition in conditions:
            expression = condition.get("expression", "")
            try:
                items.append((expression, compile_condition(expression)))
            except cel.CelError as error:
                items.append((expression, f"compilation error: {error}"))
        return Conditions(tuple(items))

    def hold(self, bindings: Mapping[str, Any]) -> bool:
        """Return True if all conditions are true. A false condition decides; otherwise a failed one raises
        ConditionError.
        """
        spent = 0
        wrong: list[str] = []
        for expression, program in self.items:
            if isinstance(program, str):
                wrong.append(program)
                continue
            budget = cel.CostBudget(MAX_EACH)
            holds = True
            try:
                holds = program(bindings, budget) is True
            except (cel.EvaluationError, cel.BudgetExceededError) as error:
                wrong.append(f"expression '{expression}' resulted in error: {error}")
            spent += budget.used
            if spent > MAX_COST:
                raise ConditionError(NO_BUDGET)
            if not holds:
                return False
        if wrong:
            unique = list(dict.fromkeys(wrong))
            raise ConditionError(unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]")
        return True
