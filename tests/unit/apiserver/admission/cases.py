"""The cases of `test_recorded.py`: what clients ask, which webhooks there are, and what these answer.

`CASES` is by group and name. In any text `$URL` stands for the test's webhook server, `$PLAIN` for the same without
TLS, `$CA` for the certificate of its authority and `$OTHER` for one that has signed nothing.
"""

from __future__ import annotations

from typing import Any

Raw = dict[str, Any]

WIDGETS = "/apis/admit.test/v1/namespaces/default/widgets"
GADGETS = "/apis/admit.test/v1/gadgets"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


def _definition(plural: str, kind: str, scope: str, versions: list[Raw], **spec: Any) -> Raw:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.admit.test"},
        "spec": {
            "group": "admit.test",
            "scope": scope,
            "names": {"plural": plural, "kind": kind},
            "versions": versions,
            **spec,
        },
    }


def _version(name: str, spec: Raw, *, storage: bool = False, **more: Any) -> Raw:
    properties = {
        "spec": {"type": "object", "properties": spec},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    }
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
        **more,
    }


_SPEC = {
    "color": {"type": "string", "default": "red"},
    "size": {"type": "integer"},
    "note": {"type": "string"},
    "count": {"type": "integer", "maximum": 10},
}
DEFINITIONS = [
    _definition(
        "widgets",
        "Widget",
        "Namespaced",
        [
            _version("v1", _SPEC, storage=True, subresources={"status": {}}),
            _version("v2", {**_SPEC, "color": {"type": "string", "default": "blue"}}, subresources={"status": {}}),
        ],
    ),
    _definition("gadgets", "Gadget", "Cluster", [_version("v1", _SPEC, storage=True)]),
]
NAMESPACES = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "labelled", "labels": {"team": "a"}}},
]

ALL = [{"operations": ["*"], "apiGroups": ["admit.test"], "apiVersions": ["v1"], "resources": ["widgets"]}]


def _rule(**changes: Any) -> list[Raw]:
    return [{**ALL[0], **changes}]


def hook(path: str = "allow", /, name: str = "", **more: Any) -> Raw:
    """One webhook that calls `path` of the test's server."""
    made = {
        "name": name or f"{path.lower()}.admit.test",
        "clientConfig": {"url": f"$URL/{path}", "caBundle": "$CA"},
        "rules": ALL,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **more,
    }
    return {key: value for key, value in made.items() if value is not None}


def _configuration(kind: str, name: str, webhooks: list[Raw]) -> Raw:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": webhooks,
    }


def mutating(*webhooks: Raw, name: str = "m") -> Raw:
    return _configuration("Mutating", name, list(webhooks))


def validating(*webhooks: Raw, name: str = "v") -> Raw:
    return _configuration("Validating", name, list(webhooks))


def obj(name: str = "one", version: str = "v1", kind: str = "Widget", **more: Any) -> Raw:
    made = {"apiVersion": f"admit.test/{version}", "kind": kind, "metadata": {"name": name}, "spec": {"size": 1}}
    labels = more.pop("labels", None)
    if labels:
        made["metadata"] = {"name": name, "labels": labels}
    return {**made, **more}


def create(body: Raw | None = None, path: str = WIDGETS, **query: str) -> Raw:
    return {"method": "POST", "path": path, "body": body or obj(), "query": query}


def merge(body: Raw, path: str = f"{WIDGETS}/one", **query: str) -> Raw:
    return {"method": "PATCH", "path": path, "body": body, "content": MERGE, "query": query}


def delete(path: str = f"{WIDGETS}/one", body: Raw | None = None, **query: str) -> Raw:
    return {"method": "DELETE", "path": path, "query": query, **({"body": body} if body else {})}


def put(body: Raw, path: str = f"{WIDGETS}/one", **query: str) -> Raw:
    return {"method": "PUT", "path": path, "body": body, "query": query}


def get(path: str = f"{WIDGETS}/one") -> Raw:
    return {"method": "GET", "path": path}


def case(*requests: Raw, hooks: Raw | None = None, m: Any = None, v: Any = None, **more: Any) -> Raw:
    """One case. `m` and `v` are webhooks of one mutating and one validating configuration."""
    configurations = list(more.pop("configurations", []))
    if m is not None:
        configurations.append(mutating(*m))
    if v is not None:
        configurations.append(validating(*v))
    return {"requests": requests or (create(),), "hooks": hooks or {}, "configurations": configurations, **more}


ADD_NOTE = {"patch": [{"op": "add", "path": "/spec/note", "value": "added"}]}
DENY = {"allowed": False}


def one(answer: Raw, **more: Any) -> Raw:
    """A create, and one validating webhook that answers so."""
    return case(v=[hook("say", **more)], hooks={"/say": answer})


def mut(answer: Raw, **more: Any) -> Raw:
    """A create, and one mutating webhook that answers so."""
    return case(m=[hook("say", **more)], hooks={"/say": answer})


def _say(status: Raw) -> Raw:
    return {"allowed": False, "response": {"status": status}}


CASES: dict[str, dict[str, Raw]] = {
    "sent": {
        "create": case(m=[hook("mutate")], v=[hook("validate")]),
        "create in v2": case(
            create(obj(version="v2"), WIDGETS.replace("v1", "v2")), m=[hook("mutate")], v=[hook("validate")]
        ),
        "create by generateName": case(
            create({**obj(), "metadata": {"generateName": "made-"}}, dryRun="All"),
            m=[hook("mutate")],
            v=[hook("validate")],
        ),
        "update": case(
            create(),
            merge({"spec": {"size": 2}}),
            m=[hook("mutate", rules=_rule(operations=["UPDATE"]))],
            v=[hook("validate", rules=_rule(operations=["UPDATE"]))],
        ),
        "put": case(
            create(),
            put(obj(spec={"size": 3}), fieldManager="me"),
            v=[hook("validate", rules=_rule(operations=["UPDATE"]))],
        ),
        "json patch": case(
            create(),
            {
                "method": "PATCH",
                "path": f"{WIDGETS}/one",
                "content": JSON_PATCH,
                "body": [{"op": "add", "path": "/spec/size", "value": 9}],
            },
            v=[hook("validate", rules=_rule(operations=["UPDATE"]))],
        ),
        "apply that creates": case(
            {
                "method": "PATCH",
                "path": f"{WIDGETS}/applied",
                "content": "application/apply-patch+yaml",
                "body": obj("applied"),
                "query": {"fieldManager": "me", "force": "true"},
            },
            delete(f"{WIDGETS}/applied"),
            m=[hook("mutate", rules=_rule(operations=["CREATE", "UPDATE"]))],
        ),
        "delete": case(
            create(),
            delete(body={"propagationPolicy": "Background", "kind": "DeleteOptions", "apiVersion": "v1"}),
            m=[hook("mutate", rules=_rule(operations=["DELETE"]))],
            v=[hook("validate", rules=_rule(operations=["DELETE"]))],
        ),
        "delete without options": case(create(), delete(), v=[hook("validate", rules=_rule(operations=["DELETE"]))]),
        "status": case(
            create(),
            merge({"status": {"phase": "Good"}}, f"{WIDGETS}/one/status"),
            v=[hook("validate", rules=_rule(resources=["widgets/status"]))],
        ),
        "cluster scoped": case(
            create(obj("one", kind="Gadget"), GADGETS), v=[hook("validate", rules=_rule(resources=["*"]))]
        ),
        "namespace": case(
            create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fresh"}},
                "/api/v1/namespaces",
                dryRun="All",
            ),
            v=[hook("validate", rules=_rule(apiGroups=[""], resources=["namespaces"]))],
        ),
        "configmap": case(
            create(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "b"}},
                "/api/v1/namespaces/default/configmaps",
            ),
            v=[hook("validate", rules=_rule(apiGroups=[""], resources=["configmaps"]))],
        ),
        "dry run": case(create(dryRun="All", fieldValidation="Strict"), m=[hook("mutate")], v=[hook("validate")]),
        "v1beta1 review": case(v=[hook("validate", admissionReviewVersions=["v1beta1", "v1"])]),
        "unknown review first": case(v=[hook("validate", admissionReviewVersions=["v9", "v1"])]),
        "path is cleaned": case(v=[hook("a//b/../c/", name="x.admit.test")]),
        "no path": case(v=[hook("", name="x.admit.test", clientConfig={"url": "$URL", "caBundle": "$CA"})]),
        "timeout": case(v=[hook("validate", timeoutSeconds=3)]),
        "deletecollection": case(
            create(),
            create(obj("two")),
            delete(WIDGETS),
            v=[hook("validate", rules=_rule(operations=["DELETE"]))],
            unordered=True,
        ),
    },
    "matching": {
        "other operation": case(v=[hook("no", rules=_rule(operations=["DELETE", "UPDATE"]))]),
        "other group": case(v=[hook("no", rules=_rule(apiGroups=["other.test", ""]))]),
        "other version, exact": case(v=[hook("no", rules=_rule(apiVersions=["v2"]), matchPolicy="Exact")]),
        "other version, equivalent": case(
            m=[hook("mutate", rules=_rule(apiVersions=["v2"]))], v=[hook("yes", rules=_rule(apiVersions=["v2"]))]
        ),
        "other version, patched there": case(
            m=[hook("mutate", rules=_rule(apiVersions=["v2"]))],
            v=[hook("validate")],
            hooks={
                "/mutate": {
                    "patch": [
                        {"op": "replace", "path": "/spec/size", "value": 7},
                        {"op": "remove", "path": "/spec/color"},
                    ]
                }
            },
        ),
        "first rule wins": case(v=[hook("yes", rules=[*_rule(apiVersions=["v2"]), *_rule(apiVersions=["*"])])]),
        "any group": case(v=[hook("yes", rules=_rule(apiGroups=["*"], apiVersions=["*"], resources=["*"]))]),
        "star does not match subresources": case(
            create(),
            merge({"status": {"phase": "Good"}}, f"{WIDGETS}/one/status"),
            v=[hook("yes", rules=_rule(resources=["*"]))],
        ),
        "star slash star": case(
            create(),
            merge({"status": {"phase": "Good"}}, f"{WIDGETS}/one/status"),
            v=[hook("yes", rules=_rule(resources=["*/*"]))],
        ),
        "star slash status": case(
            create(),
            merge({"status": {"phase": "Good"}}, f"{WIDGETS}/one/status"),
            v=[hook("yes", rules=_rule(resources=["*/status"]))],
        ),
        "widgets slash star": case(
            create(),
            merge({"status": {"phase": "Good"}}, f"{WIDGETS}/one/status"),
            v=[hook("yes", rules=_rule(resources=["widgets/*"]))],
        ),
        "scope cluster": case(
            create(),
            create(obj("one", kind="Gadget"), GADGETS),
            v=[hook("yes", rules=_rule(resources=["*"], scope="Cluster"))],
        ),
        "scope namespaced": case(
            create(),
            create(obj("one", kind="Gadget"), GADGETS),
            v=[hook("yes", rules=_rule(resources=["*"], scope="Namespaced"))],
        ),
        "namespaces are of cluster scope": case(
            create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fresh"}},
                "/api/v1/namespaces",
                dryRun="All",
            ),
            v=[
                hook("yes", rules=_rule(apiGroups=[""], resources=["namespaces"], scope="Cluster")),
                hook("no", rules=_rule(apiGroups=[""], resources=["namespaces"], scope="Namespaced")),
            ],
        ),
        "namespace selector": case(
            create(),
            create(path=WIDGETS.replace("default", "labelled")),
            v=[hook("yes", namespaceSelector={"matchLabels": {"team": "a"}})],
        ),
        "namespace selector by name": case(
            v=[
                hook(
                    "yes",
                    namespaceSelector={
                        "matchExpressions": [
                            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["labelled"]}
                        ]
                    },
                )
            ],
        ),
        "namespace selector and cluster scope": case(
            create(obj("one", kind="Gadget"), GADGETS),
            v=[hook("yes", rules=_rule(resources=["*"]), namespaceSelector={"matchLabels": {"team": "a"}})],
        ),
        "namespace selector on a namespace": case(
            create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fresh", "labels": {"team": "a"}}},
                "/api/v1/namespaces",
                dryRun="All",
            ),
            create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fresh"}},
                "/api/v1/namespaces",
                dryRun="All",
            ),
            v=[
                hook(
                    "yes",
                    rules=_rule(apiGroups=[""], resources=["namespaces"]),
                    namespaceSelector={"matchLabels": {"team": "a"}},
                )
            ],
        ),
        "missing namespace": case(
            create(path=WIDGETS.replace("default", "nowhere")),
            m=[hook("no", namespaceSelector={"matchLabels": {"team": "a"}})],
        ),
        "object selector": case(
            create(),
            create(obj("two", labels={"app": "x"})),
            v=[
                hook(
                    "yes", objectSelector={"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}
                )
            ],
        ),
        "object selector, the old one matches": case(
            create(obj(labels={"app": "x"})),
            merge({"metadata": {"labels": {"app": None}}}),
            merge({"spec": {"size": 5}}),
            v=[hook("yes", rules=_rule(operations=["UPDATE"]), objectSelector={"matchLabels": {"app": "x"}})],
        ),
        "object selector exists": case(
            create(obj(labels={"app": ""})),
            create(obj("two")),
            v=[
                hook("exists", objectSelector={"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
                hook("without", objectSelector={"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}),
                hook(
                    "notin", objectSelector={"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [""]}]}
                ),
            ],
            unordered=True,
        ),
        "object selector sees what an earlier webhook added": case(
            m=[hook("label"), hook("sees", objectSelector={"matchLabels": {"app": "x"}})],
            hooks={"/label": {"patch": [{"op": "add", "path": "/metadata/labels", "value": {"app": "x"}}]}},
        ),
        "webhook configurations are exempt": case(
            create(
                validating(hook(), name="other"),
                "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
                dryRun="All",
            ),
            v=[hook("no", rules=_rule(apiGroups=["*"], apiVersions=["*"], resources=["*"]))],
        ),
        "no webhooks": case(configurations=[validating()]),
    },
    "conditions": {
        "true": case(v=[hook("yes", matchConditions=[{"name": "size", "expression": "object.spec.size == 1"}])]),
        "false": case(v=[hook("no", matchConditions=[{"name": "size", "expression": "object.spec.size > 1"}])]),
        "all must hold": case(
            v=[
                hook(
                    "no",
                    matchConditions=[
                        {"name": "a", "expression": "true"},
                        {"name": "b", "expression": "has(object.spec.note)"},
                    ],
                )
            ]
        ),
        "request": case(
            v=[
                hook(
                    "yes",
                    matchConditions=[
                        {"name": "a", "expression": "request.operation == 'CREATE' && request.kind.kind == 'Widget'"},
                        {
                            "name": "b",
                            "expression": "request.resource.resource == 'widgets' && request.namespace == 'default'",
                        },
                        {"name": "c", "expression": "'system:masters' in request.userInfo.groups && !request.dryRun"},
                        {"name": "d", "expression": "request.name == 'one' && oldObject == null"},
                        {"name": "e", "expression": "request.options.kind == 'CreateOptions'"},
                    ],
                )
            ]
        ),
        "request in the version of the webhook": case(
            v=[
                hook(
                    "yes",
                    rules=_rule(apiVersions=["v2"]),
                    matchConditions=[
                        {
                            "name": "a",
                            "expression": "request.kind.version == 'v2' && request.requestKind.version == 'v1'",
                        },
                        {"name": "b", "expression": "object.apiVersion == 'admit.test/v2'"},
                    ],
                )
            ]
        ),
        "old object": case(
            create(),
            merge({"spec": {"size": 2}}),
            delete(),
            v=[
                hook(
                    "yes",
                    matchConditions=[
                        {"name": "a", "expression": "oldObject != null && oldObject.spec.size == 1 && object != null"}
                    ],
                )
            ],
        ),
        "error and Fail": case(
            v=[hook("no", matchConditions=[{"name": "a", "expression": "object.spec.missing == 1"}])]
        ),
        "errors and Fail": case(
            v=[
                hook(
                    "no",
                    matchConditions=[
                        {"name": "a", "expression": "object.spec.missing == 1"},
                        {"name": "b", "expression": "object.nothing.x == 1"},
                    ],
                )
            ]
        ),
        "error and Ignore": case(
            v=[
                hook(
                    "no",
                    failurePolicy="Ignore",
                    matchConditions=[{"name": "a", "expression": "object.spec.missing == 1"}],
                )
            ]
        ),
        "error and false": case(
            v=[
                hook(
                    "no",
                    matchConditions=[
                        {"name": "a", "expression": "object.spec.missing == 1"},
                        {"name": "b", "expression": "false"},
                    ],
                )
            ]
        ),
        "error in a mutating one": case(
            m=[hook("no", matchConditions=[{"name": "a", "expression": "object.spec.missing == 1"}])]
        ),
        "not a boolean at last": case(
            v=[hook("no", matchConditions=[{"name": "a", "expression": "object.spec.size > 0 || object.spec.size"}])]
        ),
    },
    "answers": {
        "denied": one(DENY),
        "denied with a message": one(_say({"message": "not today"})),
        "denied with a reason": one(_say({"reason": "Forbidden"})),
        "denied with code, reason and message": one(
            _say({"code": 403, "reason": "Forbidden", "message": "no", "status": "Failure"})
        ),
        "denied with a good code": one(_say({"code": 200, "message": "no", "status": "Success"})),
        "denied with details": one(
            _say(
                {
                    "code": 422,
                    "reason": "Invalid",
                    "message": "bad size",
                    "details": {
                        "name": "one",
                        "kind": "Widget",
                        "causes": [{"reason": "FieldValueInvalid", "field": "spec.size", "message": "odd"}],
                    },
                }
            )
        ),
        "denied by a mutating one": mut(_say({"message": "not today"})),
        "denied with Ignore": one(DENY, failurePolicy="Ignore"),
        "denied, retry later": one(
            _say({"code": 429, "reason": "TooManyRequests", "message": "no", "details": {"retryAfterSeconds": 5}})
        ),
        "two deny": case(
            v=[hook("first"), hook("second", objectSelector={"matchLabels": {"a": "b"}})],
            hooks={"/first": DENY, "/second": DENY},
        ),
        "allowed with a status": one({"allowed": True, "response": {"status": {"code": 500, "message": "ignored"}}}),
        "allowed missing": one({"review": {"response": {"uid": "$UID"}}}),
        "wrong uid": one({"response": {"uid": "other"}}),
        "wrong uid and Ignore": one({"response": {"uid": "other"}}, failurePolicy="Ignore"),
        "no uid": one({"review": {"response": {"allowed": True}}}),
        "no response": one({"review": {"response": "absent"}}),
        "null response": one({"review": {"response": None}}),
        "no apiVersion": one({"review": {"apiVersion": "absent"}}),
        "no kind": one({"review": {"kind": "absent"}}),
        "other apiVersion": one({"review": {"apiVersion": "admission.k8s.io/v1beta1"}}),
        "unknown apiVersion": one({"review": {"apiVersion": "admission.k8s.io/v9"}}),
        "other kind": one({"review": {"kind": "Pod"}}),
        "a status": one({"raw": '{"kind":"Status","apiVersion":"v1","status":"Failure","message":"oops","code":400}'}),
        "v1beta1 without uid": one({"review": {"response": {"allowed": False}}}, admissionReviewVersions=["v1beta1"]),
        "allowed is text": one({"response": {"allowed": "yes"}}),
        "warnings is text": one({"response": {"warnings": "yes"}}),
        "status is text": one({"response": {"status": "yes"}}),
        "patch in a validating answer": one(ADD_NOTE),
        "patchType in a validating answer": one({"response": {"patchType": "JSONPatch"}}),
        "warnings": one({"response": {"warnings": ["look out", 'with "quotes" and \\', "look out", "", "caf\u00e9"]}}),
        "warnings of a denial": one({"allowed": False, "response": {"warnings": ["look out"]}}),
        "warning with a control character": one({"response": {"warnings": ["line\nbreak", "good"]}}),
        "long warnings": one({"response": {"warnings": ["a" * 5000, "b" * 100, "c" * 300]}}),
        "many warnings": one({"response": {"warnings": [f"{i:02d}" + "x" * 200 for i in range(30)]}}),
        "audit annotations": one({"response": {"auditAnnotations": {"a": "b"}}}),
        "not JSON": one({"raw": "nonsense"}),
        "half JSON": one({"raw": '{"kind": "Admi'}),
        "empty body": one({"raw": ""}),
        "a list": one({"raw": "[]"}),
        "null": one({"raw": "null"}),
        "text/html": one({"raw": "<html>", "type": "text/html"}),
        "no content type": one({"type": ""}),
        "yaml": one({"raw": "kind: AdmissionReview", "type": "application/yaml"}),
        "code 201": one({"code": 201}),
        "code 400": one({"code": 400, "raw": "bad", "type": "text/plain"}),
        "code 401": one({"code": 401, "raw": "who", "type": "text/plain"}),
        "code 403": one({"code": 403, "raw": "no way", "type": "text/plain"}),
        "code 404": one({"code": 404, "raw": "404 page not found\n", "type": "text/plain"}),
        "code 405": one({"code": 405, "raw": "no", "type": "text/plain"}),
        "code 409": one({"code": 409, "raw": "no", "type": "text/plain"}),
        "code 415": one({"code": 415, "raw": "no", "type": "text/plain"}),
        "code 422": one({"code": 422, "raw": "no", "type": "text/plain"}),
        "code 429": one({"code": 429, "raw": "no", "type": "text/plain"}),
        "code 500": one({"code": 500, "raw": "it broke\n", "type": "text/plain"}),
        "code 500 JSON": one({"code": 500, "raw": "{}"}),
        "code 500 with a Status": one(
            {"code": 500, "raw": '{"kind":"Status","apiVersion":"v1","status":"Failure","message":"oops","code":500}'}
        ),
        "code 503": one({"code": 503, "raw": "", "type": "text/plain"}),
        "code 504": one({"code": 504, "raw": "", "type": "text/plain"}),
        "code 418": one({"code": 418, "raw": "teapot", "type": "text/plain"}),
        "code 500 and Ignore": one({"code": 500, "raw": "it broke\n", "type": "text/plain"}, failurePolicy="Ignore"),
        "denied within code 500": one({"code": 500, "allowed": False}),
    },
    "failures": {
        "down": case(v=[hook("x", clientConfig={"url": "https://127.0.0.1:1/x", "caBundle": "$CA"})]),
        "down, mutating": case(m=[hook("x", clientConfig={"url": "https://127.0.0.1:1/x", "caBundle": "$CA"})]),
        "down and Ignore": case(
            v=[hook("x", failurePolicy="Ignore", clientConfig={"url": "https://127.0.0.1:1/x", "caBundle": "$CA"})]
        ),
        "no such host": case(v=[hook("x", clientConfig={"url": "https://nowhere.invalid/x", "caBundle": "$CA"})]),
        "service": case(
            v=[
                hook(
                    "x",
                    clientConfig={
                        "service": {"name": "hooks", "namespace": "default", "path": "/x"},
                        "caBundle": "$CA",
                    },
                )
            ]
        ),
        "service with a port": case(
            v=[
                hook(
                    "x",
                    clientConfig={
                        "service": {"name": "hooks", "namespace": "nowhere", "port": 8443},
                        "caBundle": "$CA",
                    },
                )
            ]
        ),
        "service and Ignore": case(
            m=[hook("x", failurePolicy="Ignore", clientConfig={"service": {"name": "hooks", "namespace": "default"}})]
        ),
        "unknown authority": case(v=[hook("x", clientConfig={"url": "$URL/x", "caBundle": "$OTHER"})]),
        "no bundle": case(v=[hook("x", clientConfig={"url": "$URL/x"})]),
        "bad bundle": case(v=[hook("x", clientConfig={"url": "$URL/x", "caBundle": "bm9uc2Vuc2U="})]),
        "no TLS": case(v=[hook("x", clientConfig={"url": "$PLAIN/x", "caBundle": "$CA"})]),
        "closes": one({"drop": True}),
        "slow": one({"delay": 3}, timeoutSeconds=1),
        "slow and Ignore": one({"delay": 3}, timeoutSeconds=1, failurePolicy="Ignore"),
        "slow, mutating": mut({"delay": 3}, timeoutSeconds=1),
    },
    "patches": {
        "added": mut(ADD_NOTE),
        "seen by those that validate": case(m=[hook("mutate")], v=[hook("validate")], hooks={"/mutate": ADD_NOTE}),
        "defaults are filled in again": case(
            m=[hook("mutate"), hook("next")], hooks={"/mutate": {"patch": [{"op": "remove", "path": "/spec/color"}]}}
        ),
        "against the schema": mut({"patch": [{"op": "add", "path": "/spec/count", "value": 11}]}),
        "of the wrong type": mut({"patch": [{"op": "replace", "path": "/spec/size", "value": "big"}]}),
        "unknown field": mut({"patch": [{"op": "add", "path": "/spec/unknown", "value": 1}]}),
        "label": mut({"patch": [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]}),
        "bad label": mut({"patch": [{"op": "add", "path": "/metadata/labels", "value": {"a": "_"}}]}),
        "finalizer": case(
            create(),
            merge({"metadata": {"finalizers": None}}),
            m=[hook("say", rules=_rule(operations=["CREATE"]))],
            hooks={"/say": {"patch": [{"op": "add", "path": "/metadata/finalizers", "value": ["example.org/x"]}]}},
        ),
        "empty list": mut({"patch": []}),
        "not base64": mut({"response": {"patchType": "JSONPatch", "patch": "%%%"}}),
        "not JSON": mut({"patch": "nonsense"}),
        "an object": mut({"patch": {"op": "add"}}),
        "unknown operation": mut({"patch": [{"op": "append", "path": "/spec/note", "value": "x"}]}),
        "path that is not there": mut({"patch": [{"op": "remove", "path": "/spec/nothing"}]}),
        "failed test": mut({"patch": [{"op": "test", "path": "/spec/size", "value": 5}]}),
        "no patchType": mut({**ADD_NOTE, "response": {"patchType": None}}),
        "patchType and no patch": mut({"response": {"patchType": "JSONPatch"}}),
        "empty patchType": mut({**ADD_NOTE, "response": {"patchType": ""}}),
        "other patchType": mut({**ADD_NOTE, "response": {"patchType": "MergePatch"}}),
        "other patchType, v1beta1": mut(
            {**ADD_NOTE, "response": {"patchType": "MergePatch"}}, admissionReviewVersions=["v1beta1"]
        ),
        "denied with a patch": mut({**ADD_NOTE, "allowed": False}),
        "removes the name": mut({"patch": [{"op": "remove", "path": "/metadata/name"}]}),
        "replaces the whole by a list": mut({"patch": [{"op": "replace", "path": "", "value": []}]}),
        "on a delete": case(
            create(), delete(), m=[hook("say", rules=_rule(operations=["DELETE"]))], hooks={"/say": ADD_NOTE}
        ),
        "on an update": case(
            create(),
            merge({"spec": {"size": 2}}),
            m=[hook("say", rules=_rule(operations=["UPDATE"]))],
            hooks={"/say": ADD_NOTE},
        ),
        "undoes an update": case(
            create(),
            merge({"spec": {"size": 2}}),
            m=[hook("say", rules=_rule(operations=["UPDATE"]))],
            hooks={"/say": {"patch": [{"op": "replace", "path": "/spec/size", "value": 1}]}},
        ),
        "of the status": case(
            create(),
            merge({"status": {"phase": "Good"}}, f"{WIDGETS}/one/status"),
            m=[hook("say", rules=_rule(resources=["widgets/status"]))],
            hooks={
                "/say": {
                    "patch": [
                        {"op": "replace", "path": "/status/phase", "value": "Better"},
                        {"op": "replace", "path": "/spec/size", "value": 8},
                    ]
                }
            },
        ),
    },
    "order": {
        "one after the other": case(
            m=[hook("one"), hook("two")],
            hooks={"/one": ADD_NOTE, "/two": {"patch": [{"op": "replace", "path": "/spec/note", "value": "changed"}]}},
        ),
        "by name of the configuration": case(
            configurations=[
                mutating(hook("b"), name="b"),
                mutating(hook("a2"), hook("a1"), name="a"),
                mutating(hook("c"), name="aa"),
            ]
        ),
        "the first that denies ends it": case(m=[hook("one"), hook("two")], hooks={"/one": DENY}),
        "reinvoked when a later one changes": case(
            m=[hook("one", reinvocationPolicy="IfNeeded"), hook("two")], hooks={"/two": ADD_NOTE}
        ),
        "not reinvoked when nothing changes": case(m=[hook("one", reinvocationPolicy="IfNeeded"), hook("two")]),
        "not reinvoked for its own change": case(
            m=[hook("one", reinvocationPolicy="IfNeeded")], hooks={"/one": ADD_NOTE}
        ),
        "reinvoked once": case(
            m=[hook("one", reinvocationPolicy="IfNeeded"), hook("two", reinvocationPolicy="IfNeeded")],
            hooks={
                "/one": {"patch": [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]},
                "/two": ADD_NOTE,
            },
        ),
        "never is not reinvoked": case(m=[hook("one"), hook("two")], hooks={"/two": ADD_NOTE}),
        "not called first in the second round": case(
            m=[hook("one", reinvocationPolicy="IfNeeded", objectSelector={"matchLabels": {"a": "b"}}), hook("two")],
            hooks={"/two": {"patch": [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]}},
        ),
        "patch without change": case(
            m=[hook("one", reinvocationPolicy="IfNeeded"), hook("two")],
            hooks={"/two": {"patch": [{"op": "replace", "path": "/spec/size", "value": 1}]}},
        ),
        "mutating before validating": case(m=[hook("mutate")], v=[hook("validate")], hooks={"/validate": DENY}),
        "a bad object is not validated by webhooks": case(
            create(obj(spec={"count": 50})), m=[hook("mutate")], v=[hook("validate")]
        ),
        "deny of one of two": case(v=[hook("one"), hook("two")], hooks={"/two": DENY}, unordered=True),
    },
}
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def _stored(*webhooks: Raw) -> Raw:
    return {"requests": [create(validating(*webhooks), CONFIGURATIONS, dryRun="All")]}


def _url(url: Any) -> Raw:
    return _stored(hook(clientConfig={"url": url}))


def _service(**service: Any) -> Raw:
    return _stored(hook(clientConfig={"service": service}))


def _selector(**selector: Any) -> Raw:
    return _stored(hook(objectSelector=selector))


def _condition(expression: str, name: str = "a") -> Raw:
    return _stored(hook(matchConditions=[{"name": name, "expression": expression}]))


CASES["configurations"] = {
    "minimal": _stored(hook()),
    "minimal, mutating": {"requests": [create(mutating(hook()), MUTATING, dryRun="All")]},
    "empty": _stored(),
    "no webhooks at all": {
        "requests": [create({k: v for k, v in validating().items() if k != "webhooks"}, CONFIGURATIONS, dryRun="All")]
    },
    "no name": _stored(hook() | {"name": ""}),
    "short name": _stored(hook() | {"name": "a.b"}),
    "bad name": _stored(hook() | {"name": "A_b.c.d"}),
    "same name twice": _stored(hook(), hook()),
    "no sideEffects": _stored(hook(sideEffects=None)),
    "sideEffects Some": _stored(hook(sideEffects="Some")),
    "no versions": _stored(hook(admissionReviewVersions=None)),
    "unknown versions": _stored(hook(admissionReviewVersions=["v7"])),
    "bad versions": _stored(hook(admissionReviewVersions=["v1", "v1", "1"])),
    "no clientConfig": _stored(hook(clientConfig=None)),
    "empty clientConfig": _stored(hook(clientConfig={})),
    "url and service": _stored(hook(clientConfig={"url": "https://a.b", "service": {"name": "a", "namespace": "b"}})),
    "http": _url("http://a.b/c"),
    "no host": _url("https:///c"),
    "user": _url("https://me:pass@a.b/c"),
    "fragment and query": _url("https://a.b/c?x=y#z"),
    "no scheme": _url("a.b/c"),
    "no url": _url(""),
    "unparsable url": _url("https://a b/"),
    "unparsable port": _url("https://a:b/"),
    "service without anything": _service(),
    "service with a bad port": _service(name="a", namespace="b", port=70000),
    "service with port 0": _service(name="a", namespace="b", port=0),
    "service with a bad path": _service(name="a", namespace="b", path="a//B"),
    "service with the path //": _service(name="a", namespace="b", path="//"),
    "service with a good path": _service(name="a", namespace="b", path="/a/b/"),
    "timeout 0": _stored(hook(timeoutSeconds=0)),
    "timeout 31": _stored(hook(timeoutSeconds=31)),
    "failurePolicy": _stored(hook(failurePolicy="Maybe")),
    "matchPolicy": _stored(hook(matchPolicy="Maybe")),
    "reinvocationPolicy": {"requests": [create(mutating(hook(reinvocationPolicy="Maybe")), MUTATING, dryRun="All")]},
    "reinvocationPolicy of a validating one": _stored(hook(reinvocationPolicy="Never")),
    "no rules": _stored(hook(rules=None)),
    "empty rule": _stored(hook(rules=[{}])),
    "bad operations": _stored(hook(rules=_rule(operations=["*", "create"]))),
    "bad groups": _stored(hook(rules=_rule(apiGroups=["*", "a"]))),
    "bad apiVersions": _stored(hook(rules=_rule(apiVersions=["*", ""]))),
    "bad resources": _stored(hook(rules=_rule(resources=["", "*/*", "pods"]))),
    "star and more": _stored(hook(rules=_rule(resources=["*", "pods"]))),
    "overlapping subresources": _stored(hook(rules=_rule(resources=["pods/*", "pods/exec", "*/scale", "jobs/scale"]))),
    "bad scope": _stored(hook(rules=_rule(scope="Galaxy"))),
    "bad operator": _selector(matchExpressions=[{"key": "a", "operator": "Near"}]),
    "In without values": _selector(matchExpressions=[{"key": "a", "operator": "In"}]),
    "Exists with values": _selector(matchExpressions=[{"key": "a", "operator": "Exists", "values": ["b"]}]),
    "bad key and value": _selector(matchExpressions=[{"key": "_", "operator": "In", "values": ["-"]}]),
    "bad labels": _selector(matchLabels={"a": "_b"}),
    "bad namespace selector": _stored(hook(namespaceSelector={"matchLabels": {"/": "b"}})),
    "condition": _condition("object.spec.x == 1"),
    "condition that does not parse": _condition("object.spec ="),
    "condition of an unknown name": _condition("nothing == 1"),
    "condition that is no boolean": _condition("1 + 1"),
    "condition without an expression": _condition(" "),
    "condition without a name": _condition("true", ""),
    "condition with a bad name": _condition("true", "a b"),
    "same condition twice": _stored(
        hook(matchConditions=[{"name": "a", "expression": "true"}, {"name": "a", "expression": "false"}])
    ),
    "too many conditions": _stored(hook(matchConditions=[{"name": f"c{i}", "expression": "true"} for i in range(65)])),
    "undefined field of the request": _condition("request.nothing == ''"),
    "reserved name": {"requests": [create(validating(name="a.static.k8s.io"), CONFIGURATIONS, dryRun="All")]},
    "update without resourceVersion": {
        "requests": [
            create(validating(hook(), name="kept"), CONFIGURATIONS),
            put(validating(hook(timeoutSeconds=5), name="kept"), f"{CONFIGURATIONS}/kept"),
            merge({"webhooks": [hook(timeoutSeconds=5)]}, f"{CONFIGURATIONS}/kept"),
            merge({"metadata": {"labels": {"a": "b"}}}, f"{CONFIGURATIONS}/kept"),
            {
                "method": "PATCH",
                "path": f"{CONFIGURATIONS}/kept",
                "content": "application/strategic-merge-patch+json",
                "body": {"webhooks": [{"name": "allow.admit.test", "timeoutSeconds": 7}]},
            },
        ]
    },
}
