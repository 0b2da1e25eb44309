"""The types that every document needs: metadata, options, Status, Scale (k8s.io/apimachinery, meta/v1).

Schemas here and in the rest of the package name other types by `{"$ref": "<name>"}`; `publish` turns that into what
each version of OpenAPI wants. Data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tink.apiserver.discovery.openapi.texts import META
from tink.schema import Raw

_SCALE = "io.k8s.api.autoscaling.v1"
_CRD = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"

OBJECT_META = f"{META}.ObjectMeta"
LIST_META = f"{META}.ListMeta"
STATUS = f"{META}.Status"
PATCH = f"{META}.Patch"
DELETE_OPTIONS = f"{META}.DeleteOptions"
SCALE = f"{_SCALE}.Scale"


def text(description: str = "", **more: Any) -> Raw:
    """Give the schema of a text."""
    return {"type": "string", **({"description": description} if description else {}), **more}


def _number(description: str, size: str = "int64") -> Raw:
    return {"type": "integer", "format": size, "description": description}


def _flag(description: str) -> Raw:
    return {"type": "boolean", "description": description}


def _time(description: str) -> Raw:
    return text(description, format="date-time")


def _list(items: Raw, description: str, kind: str = "atomic", **more: Any) -> Raw:
    return {"type": "array", "items": items, "description": description, "x-kubernetes-list-type": kind, **more}


def _object(description: str, properties: Raw, *required: str, **more: Any) -> Raw:
    made: Raw = {"type": "object", "description": description, "properties": properties}
    return made | ({"required": list(required)} if required else {}) | more


def _kind(kind: str, group: str = "") -> Raw:
    return {"x-kubernetes-group-version-kind": [{"group": group, "kind": kind, "version": "v1"}]}


def _texts(description: str) -> Raw:
    return {"type": "object", "additionalProperties": text(), "description": description}


API_VERSION = text("Group and version of the schema of this object, e.g. tinkerbell.org/v1alpha2.")
KIND = text("Kind of this object, in CamelCase. It can't be changed.")
_TYPE_META: Raw = {"apiVersion": API_VERSION, "kind": KIND}
METADATA: Raw = {"$ref": OBJECT_META, "description": "Name, labels and what else all objects have."}
_MERGED = {"x-kubernetes-patch-strategy": "merge"}

COMMON: Mapping[str, Raw] = {
    OBJECT_META: _object(
        "ObjectMeta is what all stored objects have.",
        {
            "annotations": _texts("Notes by key, for programs and people. They can't be selected by."),
            "creationTimestamp": _time("When the object was created, in UTC. Set by the server."),
            "deletionGracePeriodSeconds": _number("Seconds that the object has to end. Set by the server."),
            "deletionTimestamp": _time(
                "When the object was asked to go; it goes when it has no finalizers any more. Set by the server."
            ),
            "finalizers": _list(
                text(),
                "Who must agree before the object goes; each takes its own entry away when it is done.",
                "set",
                **_MERGED,
            ),
            "generateName": text("Start of a unique name that the server makes, when name is not given."),
            "generation": _number("Counts the changes of the desired state. Set by the server."),
            "labels": _texts("Labels by key, by which objects are selected."),
            "managedFields": _list(
                {"$ref": f"{META}.ManagedFieldsEntry"}, "Who manages which fields. Kept by the server."
            ),
            "name": text("Name, unique among the objects of a kind in a namespace. It can't be changed."),
            "namespace": text("Namespace in which the name is unique. It can't be changed."),
            "ownerReferences": _list(
                {"$ref": f"{META}.OwnerReference"},
                "Objects that this one belongs to: when all of them are gone, it is deleted.",
                "map",
                **{"x-kubernetes-list-map-keys": ["uid"], "x-kubernetes-patch-merge-key": "uid"},
                **_MERGED,
            ),
            "resourceVersion": text(
                "Changes with every change of the object. Sent along with an update, it guards against overwriting "
                "somebody else's. Set by the server."
            ),
            "selfLink": text("No longer set."),
            "uid": text("Id that no other object has or ever had. Set by the server."),
        },
    ),
    f"{META}.OwnerReference": _object(
        "OwnerReference points to an object that another belongs to.",
        {
            "apiVersion": text("Group and version of the owner."),
            "blockOwnerDeletion": _flag(
                "Whether the owner, deleted in the foreground, stays until this object is gone."
            ),
            "controller": _flag("Whether the owner is the controller of this object; only one may be."),
            "kind": text("Kind of the owner."),
            "name": text("Name of the owner."),
            "uid": text("Unique id of the owner."),
        },
        "apiVersion",
        "kind",
        "name",
        "uid",
        **{"x-kubernetes-map-type": "atomic"},
    ),
    f"{META}.ManagedFieldsEntry": _object(
        "ManagedFieldsEntry says which fields one manager manages.",
        {
            "apiVersion": text("Group and version to which the names of the fields belong."),
            "fieldsType": text("Form of the set of fields: FieldsV1."),
            "fieldsV1": {"$ref": f"{META}.FieldsV1", "description": "The set of fields."},
            "manager": text("Name of the manager."),
            "operation": text("How it came to manage them: Apply or Update."),
            "subresource": text("Through which subresource; empty for the object itself."),
            "time": _time("When the entry changed last."),
        },
    ),
    f"{META}.FieldsV1": {
        "type": "object",
        "description": "FieldsV1 is a set of fields as a tree: f:<name> is a field, k:<keys> and v:<value> items of a "
        "list, and . the thing itself.",
    },
    LIST_META: _object(
        "ListMeta is what all lists have.",
        {
            "continue": text("Given when the list is not complete; sent back, it gets the next part."),
            "remainingItemCount": _number("How many objects are left, when that is known."),
            "resourceVersion": text("Version of the whole list, from which a watch can go on."),
            "selfLink": text("No longer set."),
        },
    ),
    f"{META}.Preconditions": _object(
        "Preconditions must hold for a deletion to be done.",
        {"resourceVersion": text("Version that the object must have."), "uid": text("Id that the object must have.")},
    ),
    DELETE_OPTIONS: _object(
        "DeleteOptions says how to delete.",
        {
            **_TYPE_META,
            "dryRun": _list(text(), "All: everything is checked, nothing is deleted."),
            "gracePeriodSeconds": _number("Seconds that the object has to end; 0 is at once."),
            "ignoreStoreReadErrorWithClusterBreakingPotential": _flag("Delete objects that can't be read, unsafely."),
            "orphanDependents": _flag("Old form of propagationPolicy: true is Orphan, false Background."),
            "preconditions": {"$ref": f"{META}.Preconditions", "description": "What must hold, else 409."},
            "propagationPolicy": text(
                "What becomes of the objects that belong to this one: Orphan leaves them, Background deletes them "
                "afterwards, Foreground before."
            ),
        },
        **_kind("DeleteOptions"),
    ),
    PATCH: {"type": "object", "description": "Patch is the body of a PATCH, in one of its media types."},
    STATUS: _object(
        "Status is the answer to a request that gives no object, such as a refusal.",
        {
            **_TYPE_META,
            "code": _number("HTTP status.", "int32"),
            "details": {"$ref": f"{META}.StatusDetails", "description": "More, by reason."},
            "message": text("What an operator should know."),
            "metadata": {"$ref": LIST_META, "description": "Empty."},
            "reason": text("Reason in one word, for programs."),
            "status": text("Success or Failure."),
        },
        **_kind("Status"),
    ),
    f"{META}.StatusDetails": _object(
        "StatusDetails says what a Status is about.",
        {
            "causes": _list({"$ref": f"{META}.StatusCause"}, "What is wrong, one by one."),
            "group": text("Group of the object."),
            "kind": text("Kind or resource of the object."),
            "name": text("Name of the object."),
            "retryAfterSeconds": _number("Seconds after which it makes sense to try again.", "int32"),
            "uid": text("Id of the object."),
        },
    ),
    f"{META}.StatusCause": _object(
        "StatusCause is one thing that is wrong.",
        {
            "field": text("Path of the field."),
            "message": text("What is wrong with it, for people."),
            "reason": text("What is wrong with it, in one word."),
        },
    ),
    SCALE: _object(
        "Scale is how many replicas there should be and are.",
        {
            **_TYPE_META,
            "metadata": METADATA,
            "spec": {"$ref": f"{_SCALE}.ScaleSpec", "description": "What is wanted."},
            "status": {"$ref": f"{_SCALE}.ScaleStatus", "description": "What there is."},
        },
        **_kind("Scale", "autoscaling"),
    ),
    f"{_SCALE}.ScaleSpec": _object(
        "ScaleSpec says how many replicas are wanted.", {"replicas": _number("Number of replicas.", "int32")}
    ),
    f"{_SCALE}.ScaleStatus": _object(
        "ScaleStatus says how many replicas there are.",
        {"replicas": _number("Number of replicas.", "int32"), "selector": text("Label selector of the replicas.")},
        "replicas",
    ),
}


def _schemas(description: str) -> Raw:
    return _list({"$ref": f"{_CRD}.JSONSchemaProps"}, description)


def _by_name(description: str) -> Raw:
    return {
        "type": "object",
        "additionalProperties": {"$ref": f"{_CRD}.JSONSchemaProps"},
        "description": description,
    }


JSON_SCHEMA: Mapping[str, Raw] = {
    f"{_CRD}.JSONSchemaProps": _object(
        "JSONSchemaProps is a schema by OpenAPI v3, in the part of it that CustomResourceDefinitions may use.",
        {
            "$ref": text("Not allowed."),
            "$schema": text("Not used."),
            "additionalItems": {"$ref": f"{_CRD}.JSONSchemaPropsOrBool"},
            "additionalProperties": {
                "$ref": f"{_CRD}.JSONSchemaPropsOrBool",
                "description": "Schema of the values of a map; not together with properties.",
            },
            "allOf": _schemas("All must hold."),
            "anyOf": _schemas("At least one must hold."),
            "default": {"$ref": f"{_CRD}.JSON", "description": "Value of the field when it is not given."},
            "definitions": _by_name("Not allowed."),
            "dependencies": {
                "type": "object",
                "additionalProperties": {"$ref": f"{_CRD}.JSONSchemaPropsOrStringArray"},
                "description": "Not allowed.",
            },
            "description": text("What the field is, for `kubectl explain`."),
            "enum": _list({"$ref": f"{_CRD}.JSON"}, "The values that are allowed."),
            "example": {"$ref": f"{_CRD}.JSON"},
            "exclusiveMaximum": _flag("Whether maximum itself is not allowed."),
            "exclusiveMinimum": _flag("Whether minimum itself is not allowed."),
            "externalDocs": {"$ref": f"{_CRD}.ExternalDocumentation"},
            "format": text("Format of a text or number, e.g. date-time, ipv4, int64."),
            "id": text("Not used."),
            "items": {"$ref": f"{_CRD}.JSONSchemaPropsOrArray", "description": "Schema of the items of a list."},
            **{
                name: _number(description)
                for name, description in (
                    ("maxItems", "Most items of a list."),
                    ("maxLength", "Most characters of a text."),
                    ("maxProperties", "Most entries of a map."),
                    ("minItems", "Fewest items of a list."),
                    ("minLength", "Fewest characters of a text."),
                    ("minProperties", "Fewest entries of a map."),
                )
            },
            **{
                name: {"type": "number", "format": "double", "description": description}
                for name, description in (
                    ("maximum", "Largest number."),
                    ("minimum", "Smallest number."),
                    ("multipleOf", "The number is a multiple of this."),
                )
            },
            "not": {"$ref": f"{_CRD}.JSONSchemaProps", "description": "Must not hold."},
            "nullable": _flag("Whether null is allowed."),
            "oneOf": _schemas("Exactly one must hold."),
            "pattern": text("Regular expression (RE2) that a text must match somewhere."),
            "patternProperties": _by_name("Not allowed."),
            "properties": _by_name("The fields of an object."),
            "required": _list(text(), "Fields that must be given."),
            "title": text("Short name."),
            "type": text("object, array, string, integer, number or boolean."),
            "uniqueItems": _flag("Not allowed; use x-kubernetes-list-type set."),
            "x-kubernetes-embedded-resource": _flag("The value is a whole object, with apiVersion, kind and metadata."),
            "x-kubernetes-int-or-string": _flag("The value is an integer or a text."),
            "x-kubernetes-list-map-keys": _list(text(), "Fields by which the items of a list of type map differ."),
            "x-kubernetes-list-type": text("atomic (default), set or map."),
            "x-kubernetes-map-type": text("granular (default) or atomic."),
            "x-kubernetes-preserve-unknown-fields": _flag("Fields that the schema does not know are kept."),
            "x-kubernetes-validations": _list(
                {"$ref": f"{_CRD}.ValidationRule"},
                "Rules in CEL.",
                "map",
                **{"x-kubernetes-list-map-keys": ["rule"], "x-kubernetes-patch-merge-key": "rule"},
                **_MERGED,
            ),
        },
    ),
    f"{_CRD}.ValidationRule": _object(
        "ValidationRule is a rule in CEL that values must keep.",
        {
            "fieldPath": text("The field that the message is about, e.g. .spec.gateway."),
            "message": text("What to say when the rule is broken."),
            "messageExpression": text("CEL expression that gives the message."),
            "optionalOldSelf": _flag(
                "Whether a rule with oldSelf is checked on creation too; oldSelf is optional then."
            ),
            "reason": text(
                "FieldValueInvalid (default), FieldValueForbidden, FieldValueRequired or FieldValueDuplicate."
            ),
            "rule": text("The rule; self is the value, oldSelf what it was."),
        },
        "rule",
    ),
    f"{_CRD}.ExternalDocumentation": _object(
        "ExternalDocumentation points to a document.", {"description": text(), "url": text()}
    ),
    f"{_CRD}.JSON": {"description": "JSON is any value."},
    f"{_CRD}.JSONSchemaPropsOrArray": {"description": "JSONSchemaPropsOrArray is a schema, or a list of them."},
    f"{_CRD}.JSONSchemaPropsOrBool": {"description": "JSONSchemaPropsOrBool is a schema or a boolean."},
    f"{_CRD}.JSONSchemaPropsOrStringArray": {"description": "JSONSchemaPropsOrStringArray is a schema or texts."},
}
"""The types below openAPIV3Schema of a CustomResourceDefinition; `structural` checks it, not a schema of its own."""
