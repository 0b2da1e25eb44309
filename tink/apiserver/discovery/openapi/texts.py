"""What `kubectl explain` says of the built-in types: their names, and a text for each field, in our own short words.

The schemas of the built-in resources (`builtin`, `definitions`, `admission`) hold what is checked and nest their parts;
published, the parts are types of their own, as clients know them from Kubernetes. `TYPES` gives, for each type, the
text of the type under "" and of each field under its name; a field whose text is a pair has a type of its own, whose
name stands first. Names without a dot are in the package of the type around them. Data only.
"""

from __future__ import annotations

from collections.abc import Mapping

Text = str | tuple[str, str]

CORE = "io.k8s.api.core.v1"
META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_ADMISSION = "io.k8s.api.admissionregistration.v1"
_CRD = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
_AUTHORIZATION = "io.k8s.api.authorization.v1"
_AUTHENTICATION = "io.k8s.api.authentication.v1"

PACKAGES: Mapping[str, str] = {
    "": "io.k8s.api.core",
    "coordination.k8s.io": "io.k8s.api.coordination",
    "events.k8s.io": "io.k8s.api.events",
    "admissionregistration.k8s.io": "io.k8s.api.admissionregistration",
    "authorization.k8s.io": "io.k8s.api.authorization",
    "authentication.k8s.io": "io.k8s.api.authentication",
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
}
"""Where Kubernetes' own groups have their types; other groups: their name backwards."""

_HOOK: Mapping[str, Text] = {
    "admissionReviewVersions": "Versions of AdmissionReview that the webhook understands; the first that the server "
    "knows too is sent.",
    "clientConfig": ("WebhookClientConfig", "How to reach the webhook. Required."),
    "failurePolicy": "What to do when the webhook fails: Fail (default) refuses the request, Ignore goes on.",
    "matchConditions": ("MatchCondition", "CEL expressions that must all be true for the webhook to be called."),
    "matchPolicy": "Exact: only the versions that the rules name. Equivalent (default): others too, after conversion.",
    "name": "Full name of the webhook, a domain name, e.g. unique-mac.tinkerbell.org.",
    "namespaceSelector": (f"{META}.LabelSelector", "Only objects in namespaces with these labels."),
    "objectSelector": (f"{META}.LabelSelector", "Only objects with these labels, before or after the change."),
    "reinvocationPolicy": "IfNeeded: call again when a later webhook has changed the object. Never (default).",
    "rules": ("RuleWithOperations", "Operations and resources that the webhook wants to see."),
    "sideEffects": "Whether the webhook does more than answer: None, or NoneOnDryRun.",
    "timeoutSeconds": "How long the webhook may take, 1 to 30 seconds. Default 10.",
}
_ACCESS: Mapping[str, Text] = {
    "extra": "More about the user, from its authenticator.",
    "groups": "Groups to ask about.",
    "nonResourceAttributes": ("NonResourceAttributes", "The request, when it is for a path that is no resource."),
    "resourceAttributes": ("ResourceAttributes", "The request, when it is for a resource."),
    "uid": "Unique id of the user to ask about.",
    "user": "Name of the user to ask about.",
}
_DECISION: Mapping[str, Text] = {
    "": "The answer to a question about access.",
    "allowed": "Whether it is allowed.",
    "denied": "Whether it is refused whatever else may allow it.",
    "evaluationError": "What went wrong while the server looked for the answer; the answer may be right all the same.",
    "reason": "Why.",
}

TYPES: Mapping[str, Mapping[str, Text]] = {
    f"{CORE}.Namespace": {
        "": "Namespace gives names a scope: names are unique within one.",
        "spec": ("NamespaceSpec", "What the namespace waits for when it is deleted."),
        "status": ("NamespaceStatus", "Whether it is in use or on its way out."),
    },
    f"{CORE}.NamespaceSpec": {
        "": "NamespaceSpec says what must happen before a namespace goes.",
        "finalizers": "Who must agree before the namespace is removed from the store.",
    },
    f"{CORE}.NamespaceStatus": {
        "": "NamespaceStatus is the state of a namespace.",
        "conditions": ("NamespaceCondition", "What holds up the removal of the namespace, if anything."),
        "phase": "Active, or Terminating while it is being removed with all that is in it.",
    },
    f"{CORE}.NamespaceCondition": {
        "": "NamespaceCondition says how far the removal of a namespace is.",
        "lastTransitionTime": "When the condition changed last.",
        "message": "What an operator should know.",
        "reason": "Reason in one word.",
        "status": "True, False or Unknown.",
        "type": "Name of the condition.",
    },
    f"{CORE}.ConfigMap": {
        "": "ConfigMap holds settings that are not secret, as text or bytes by key.",
        "binaryData": "Bytes by key, as base64. Keys are alphanumeric with '-', '_' or '.', and not in data too.",
        "data": "Text (UTF-8) by key. Keys are alphanumeric with '-', '_' or '.'.",
        "immutable": "If true, data and binaryData can't be changed any more; only the metadata can.",
    },
    f"{CORE}.Secret": {
        "": "Secret holds data that not everybody may read, as bytes by key. Up to 1 MiB in all.",
        "data": "Bytes by key, as base64. Keys are alphanumeric with '-', '_' or '.'.",
        "immutable": "If true, the data can't be changed any more; only the metadata can.",
        "stringData": "Text by key, for writing only: it is put into data, and never shown.",
        "type": "Kind of secret, for programs that read it, e.g. Opaque or kubernetes.io/tls.",
    },
    f"{CORE}.Event": {
        "": "Event reports something that happened to an object. Events are informative and may be dropped.",
        "action": "What was done about the object.",
        "count": "How often it happened.",
        "eventTime": "When it happened first.",
        "firstTimestamp": "When it was recorded first.",
        "involvedObject": ("ObjectReference", "The object that the event is about."),
        "lastTimestamp": "When it was recorded last.",
        "message": "What happened, for people.",
        "reason": "Why it happened, in one word that programs may compare.",
        "related": ("ObjectReference", "A second object that took part."),
        "reportingComponent": "Controller that reports, e.g. tinkerbell.org/controller.",
        "reportingInstance": "Which instance of the controller.",
        "series": ("EventSeries", "How it goes on, when it happens again and again."),
        "source": ("EventSource", "Who reports."),
        "type": "Normal or Warning.",
    },
    f"{CORE}.EventSeries": {
        "": "EventSeries counts an event that goes on.",
        "count": "How often it happened up to the last time that was seen.",
        "lastObservedTime": "When it was seen last.",
    },
    f"{CORE}.EventSource": {
        "": "EventSource names who reports an event.",
        "component": "Program that reports.",
        "host": "Machine that it runs on.",
    },
    f"{CORE}.ObjectReference": {
        "": "ObjectReference points to an object, or to a part of one.",
        "apiVersion": "Group and version of the object.",
        "fieldPath": "The part of the object that is meant, as a path, e.g. spec.containers{name}.",
        "kind": "Kind of the object.",
        "name": "Name of the object.",
        "namespace": "Namespace of the object.",
        "resourceVersion": "Version of the object that is meant.",
        "uid": "Unique id of the object.",
    },
    "io.k8s.api.events.v1.Event": {
        "": "Event reports something that happened to an object. Events are informative and may be dropped.",
        "action": "What was done or failed.",
        "deprecatedCount": "For events of the core group: how often it happened.",
        "deprecatedFirstTimestamp": "For events of the core group: when it was recorded first.",
        "deprecatedLastTimestamp": "For events of the core group: when it was recorded last.",
        "deprecatedSource": (f"{CORE}.EventSource", "For events of the core group: who reports."),
        "eventTime": "When it happened first. Required.",
        "note": "What happened, for people, up to 1 kB.",
        "reason": "Why it happened, in one word.",
        "regarding": (f"{CORE}.ObjectReference", "The object that the event is about."),
        "related": (f"{CORE}.ObjectReference", "A second object that took part."),
        "reportingController": "Controller that reports, e.g. tinkerbell.org/controller.",
        "reportingInstance": "Which instance of the controller.",
        "series": ("EventSeries", "How it goes on, when it happens again and again."),
        "type": "Normal or Warning.",
    },
    "io.k8s.api.events.v1.EventSeries": {
        "": "EventSeries counts an event that goes on.",
        "count": "How often it happened up to the last time that was seen.",
        "lastObservedTime": "When it was seen last.",
    },
    "io.k8s.api.coordination.v1.Lease": {
        "": "Lease is held by one of several candidates, e.g. by the leader among the instances of a controller.",
        "spec": ("LeaseSpec", "Who holds it, and until when."),
    },
    "io.k8s.api.coordination.v1.LeaseSpec": {
        "": "LeaseSpec says who holds a lease, and until when.",
        "acquireTime": "When the holder got it.",
        "holderIdentity": "Who holds it.",
        "leaseDurationSeconds": "How long others wait after renewTime before they take it.",
        "leaseTransitions": "How often it went from one holder to another.",
        "preferredHolder": "Who should get it next.",
        "renewTime": "When the holder renewed it last.",
        "strategy": "How the next holder is chosen, when that is coordinated.",
    },
    f"{_CRD}.CustomResourceDefinition": {
        "": "CustomResourceDefinition adds a resource to the API. Its name is <plural>.<group>.",
        "spec": ("CustomResourceDefinitionSpec", "What the resource is called and looks like."),
        "status": ("CustomResourceDefinitionStatus", "Whether it is served."),
    },
    f"{_CRD}.CustomResourceDefinitionSpec": {
        "": "CustomResourceDefinitionSpec says what a resource is called and looks like.",
        "conversion": ("CustomResourceConversion", "How objects get from one version to another."),
        "group": "Group of the API, a domain name. Objects are under /apis/<group>/.",
        "names": ("CustomResourceDefinitionNames", "Names of the resource and its kind."),
        "preserveUnknownFields": "Old; must be false. Set x-kubernetes-preserve-unknown-fields in the schema instead.",
        "scope": "Namespaced or Cluster.",
        "versions": ("CustomResourceDefinitionVersion", "The versions of the API. One of them is stored."),
    },
    f"{_CRD}.CustomResourceDefinitionNames": {
        "": "CustomResourceDefinitionNames holds the names under which clients know a resource.",
        "categories": "Groups of resources to which it belongs, e.g. for `kubectl get all`.",
        "kind": "Kind of its objects, in CamelCase and singular.",
        "listKind": "Kind of its lists. Default: <kind>List.",
        "plural": "Name in paths, plural and in lower case.",
        "shortNames": "Short names, e.g. hw for hardware.",
        "singular": "Singular name in lower case. Default: the kind in lower case.",
    },
    f"{_CRD}.CustomResourceDefinitionVersion": {
        "": "CustomResourceDefinitionVersion is one version of a resource.",
        "additionalPrinterColumns": ("CustomResourceColumnDefinition", "Columns of `kubectl get`. Default: the age."),
        "deprecated": "Whether clients of this version are warned.",
        "deprecationWarning": "What they are told, instead of a standard text.",
        "name": "Name of the version, e.g. v1 or v2beta1.",
        "schema": ("CustomResourceValidation", "What its objects look like."),
        "selectableFields": ("SelectableField", "Fields that field selectors may name, up to 8."),
        "served": "Whether it is served.",
        "storage": "Whether objects are stored in it. True for exactly one version.",
        "subresources": ("CustomResourceSubresources", "Its subresources."),
    },
    f"{_CRD}.CustomResourceValidation": {
        "": "CustomResourceValidation holds the schema of a version.",
        "openAPIV3Schema": ("JSONSchemaProps", "The schema, OpenAPI v3, by which objects are checked and pruned."),
    },
    f"{_CRD}.CustomResourceColumnDefinition": {
        "": "CustomResourceColumnDefinition is one column of `kubectl get`.",
        "description": "What the column shows.",
        "format": "Format of the type, e.g. int32 or date-time.",
        "jsonPath": "Where the value is, e.g. .status.state.",
        "name": "Head of the column.",
        "priority": "0: shown always. More: only with -o wide.",
        "type": "OpenAPI type, or date.",
    },
    f"{_CRD}.SelectableField": {
        "": "SelectableField is a field that field selectors may name.",
        "jsonPath": "Where the field is, e.g. .spec.color; no lists or maps.",
    },
    f"{_CRD}.CustomResourceSubresources": {
        "": "CustomResourceSubresources says which subresources a version has.",
        "scale": ("CustomResourceSubresourceScale", "Makes `kubectl scale` work."),
        "status": ("CustomResourceSubresourceStatus", "Gives the status a path of its own: only there it is written."),
    },
    f"{_CRD}.CustomResourceSubresourceScale": {
        "": "CustomResourceSubresourceScale says where the fields of /scale are.",
        "labelSelectorPath": "Where the label selector of the replicas is, as text.",
        "specReplicasPath": "Where the wanted number of replicas is, below .spec.",
        "statusReplicasPath": "Where the actual number of replicas is, below .status.",
    },
    f"{_CRD}.CustomResourceSubresourceStatus": {"": "CustomResourceSubresourceStatus has no settings."},
    f"{_CRD}.CustomResourceConversion": {
        "": "CustomResourceConversion says how objects get from one version to another.",
        "strategy": "None: only apiVersion changes. Webhook: a webhook does it.",
        "webhook": ("WebhookConversion", "How to call the webhook. Required with strategy Webhook."),
    },
    f"{_CRD}.WebhookConversion": {
        "": "WebhookConversion says how to call a conversion webhook.",
        "clientConfig": ("WebhookClientConfig", "How to reach the webhook."),
        "conversionReviewVersions": "Versions of ConversionReview that the webhook understands.",
    },
    f"{_CRD}.WebhookClientConfig": {
        "": "WebhookClientConfig says where a webhook is: a service or a URL.",
        "caBundle": "Certificates (PEM) that sign the webhook's.",
        "service": ("ServiceReference", "The service that answers, in a cluster."),
        "url": "Where the webhook is: https://host:port/path.",
    },
    f"{_CRD}.CustomResourceDefinitionStatus": {
        "": "CustomResourceDefinitionStatus says whether a resource is served.",
        "acceptedNames": ("CustomResourceDefinitionNames", "The names that are in use."),
        "conditions": ("CustomResourceDefinitionCondition", "NamesAccepted, Established and so on."),
        "observedGeneration": "Generation of the definition that this status is about.",
        "storedVersions": "Versions in which objects may be stored. None of them may leave spec.versions.",
    },
    f"{_CRD}.CustomResourceDefinitionCondition": {
        "": "CustomResourceDefinitionCondition is one side of the state of a definition.",
        "lastTransitionTime": "When the condition changed last.",
        "message": "What an operator should know.",
        "observedGeneration": "Generation that the condition is about.",
        "reason": "Reason in one word.",
        "status": "True, False or Unknown.",
        "type": "Name of the condition.",
    },
    f"{_ADMISSION}.MutatingWebhookConfiguration": {
        "": "MutatingWebhookConfiguration names webhooks that may change objects before they are stored.",
        "webhooks": ("MutatingWebhook", "The webhooks, called one after the other."),
    },
    f"{_ADMISSION}.ValidatingWebhookConfiguration": {
        "": "ValidatingWebhookConfiguration names webhooks that may refuse objects before they are stored.",
        "webhooks": ("ValidatingWebhook", "The webhooks."),
    },
    f"{_ADMISSION}.MutatingWebhook": {"": "MutatingWebhook is a webhook that may change or refuse objects.", **_HOOK},
    f"{_ADMISSION}.ValidatingWebhook": {"": "ValidatingWebhook is a webhook that may refuse objects.", **_HOOK},
    f"{_ADMISSION}.MatchCondition": {
        "": "MatchCondition is a CEL expression that must be true for a webhook to be called.",
        "expression": "The expression; it sees object, oldObject and request.",
        "name": "Name of the condition, for messages.",
    },
    f"{_ADMISSION}.RuleWithOperations": {
        "": "RuleWithOperations says which operations on which resources are meant.",
        "apiGroups": "Groups; * for all.",
        "apiVersions": "Versions; * for all.",
        "operations": "CREATE, UPDATE, DELETE, CONNECT, or * for all.",
        "resources": "Resources, e.g. hardware, hardware/status, */*.",
        "scope": "Cluster, Namespaced, or * (default) for both.",
    },
    f"{_ADMISSION}.WebhookClientConfig": {
        "": "WebhookClientConfig says where a webhook is: a service or a URL.",
        "caBundle": "Certificates (PEM) that sign the webhook's.",
        "service": ("ServiceReference", "The service that answers, in a cluster."),
        "url": "Where the webhook is: https://host:port/path.",
    },
    **{
        f"{package}.ServiceReference": {
            "": "ServiceReference points to a service in the cluster.",
            "name": "Name of the service.",
            "namespace": "Namespace of the service.",
            "path": "Path that is called.",
            "port": "Port of the service. Default 443.",
        }
        for package in (_ADMISSION, _CRD)
    },
    f"{META}.LabelSelector": {
        "": "LabelSelector chooses objects by their labels. All parts must match; an empty one matches everything.",
        "matchExpressions": ("LabelSelectorRequirement", "Conditions on labels."),
        "matchLabels": "Labels that objects must have, with their values.",
    },
    f"{META}.LabelSelectorRequirement": {
        "": "LabelSelectorRequirement is one condition on a label.",
        "key": "Key of the label.",
        "operator": "In, NotIn, Exists or DoesNotExist.",
        "values": "Values for In and NotIn.",
    },
    f"{_AUTHORIZATION}.SelfSubjectAccessReview": {
        "": "SelfSubjectAccessReview asks whether you may do something. It is answered, not stored.",
        "spec": ("SelfSubjectAccessReviewSpec", "The question."),
        "status": ("SubjectAccessReviewStatus", "The answer."),
    },
    f"{_AUTHORIZATION}.SelfSubjectAccessReviewSpec": {
        "": "SelfSubjectAccessReviewSpec is a question about your own access.",
        **{name: _ACCESS[name] for name in ("nonResourceAttributes", "resourceAttributes")},
    },
    f"{_AUTHORIZATION}.SubjectAccessReview": {
        "": "SubjectAccessReview asks whether a user or group may do something.",
        "spec": ("SubjectAccessReviewSpec", "The question."),
        "status": ("SubjectAccessReviewStatus", "The answer."),
    },
    f"{_AUTHORIZATION}.LocalSubjectAccessReview": {
        "": "LocalSubjectAccessReview asks whether a user or group may do something in one namespace.",
        "spec": ("SubjectAccessReviewSpec", "The question; its namespace is that of the request."),
        "status": ("SubjectAccessReviewStatus", "The answer."),
    },
    f"{_AUTHORIZATION}.SubjectAccessReviewSpec": {"": "SubjectAccessReviewSpec is a question about access.", **_ACCESS},
    f"{_AUTHORIZATION}.SubjectAccessReviewStatus": _DECISION,
    f"{_AUTHORIZATION}.NonResourceAttributes": {
        "": "NonResourceAttributes describes a request for a path that is no resource.",
        "path": "The path.",
        "verb": "HTTP verb in lower case.",
    },
    f"{_AUTHORIZATION}.ResourceAttributes": {
        "": "ResourceAttributes describes a request for a resource.",
        "fieldSelector": "Field selector of the request.",
        "group": "Group of the resource; * for all.",
        "labelSelector": "Label selector of the request.",
        "name": "Name of the object; empty for all.",
        "namespace": "Namespace; empty for all, or for none.",
        "resource": "The resource; * for all.",
        "subresource": "The subresource.",
        "verb": "get, list, watch, create, update, patch, delete, or * for all.",
        "version": "Version of the resource; * for all.",
    },
    f"{_AUTHORIZATION}.SelfSubjectRulesReview": {
        "": "SelfSubjectRulesReview asks for all that you may do in a namespace.",
        "spec": ("SelfSubjectRulesReviewSpec", "The question."),
        "status": ("SubjectRulesReviewStatus", "The answer."),
    },
    f"{_AUTHORIZATION}.SelfSubjectRulesReviewSpec": {
        "": "SelfSubjectRulesReviewSpec is a question about your own access.",
        "namespace": "The namespace. Required.",
    },
    f"{_AUTHORIZATION}.SubjectRulesReviewStatus": {
        "": "SubjectRulesReviewStatus lists what is allowed.",
        "evaluationError": "What went wrong while the server looked for the rules.",
        "incomplete": "Whether there may be more rules than these.",
        "nonResourceRules": ("NonResourceRule", "What is allowed on paths that are no resources."),
        "resourceRules": ("ResourceRule", "What is allowed on resources."),
    },
    f"{_AUTHORIZATION}.NonResourceRule": {
        "": "NonResourceRule lists verbs that are allowed on paths.",
        "nonResourceURLs": "The paths.",
        "verbs": "The verbs.",
    },
    f"{_AUTHORIZATION}.ResourceRule": {
        "": "ResourceRule lists verbs that are allowed on resources.",
        "apiGroups": "The groups.",
        "resourceNames": "The names; empty for all.",
        "resources": "The resources.",
        "verbs": "The verbs.",
    },
    f"{_AUTHENTICATION}.SelfSubjectReview": {
        "": "SelfSubjectReview asks who you are. It is answered, not stored.",
        "status": ("SelfSubjectReviewStatus", "The answer."),
    },
    f"{_AUTHENTICATION}.SelfSubjectReviewStatus": {
        "": "SelfSubjectReviewStatus says who you are.",
        "userInfo": ("UserInfo", "You."),
    },
    f"{_AUTHENTICATION}.UserInfo": {
        "": "UserInfo describes a user.",
        "extra": "More about the user, from its authenticator.",
        "groups": "Groups that the user is in.",
        "uid": "Unique id of the user.",
        "username": "Name of the user.",
    },
    f"{_AUTHENTICATION}.TokenReview": {
        "": "TokenReview asks whose token this is. It is answered, not stored.",
        "spec": ("TokenReviewSpec", "The question."),
        "status": ("TokenReviewStatus", "The answer."),
    },
    f"{_AUTHENTICATION}.TokenReviewSpec": {
        "": "TokenReviewSpec holds a token to be checked.",
        "audiences": "For whom the token should be made.",
        "token": "The token.",
    },
    f"{_AUTHENTICATION}.TokenReviewStatus": {
        "": "TokenReviewStatus says whose token it is.",
        "audiences": "For whom the token is made.",
        "authenticated": "Whether the token is known.",
        "error": "Why the token could not be checked.",
        "user": ("UserInfo", "Whose it is."),
    },
}
