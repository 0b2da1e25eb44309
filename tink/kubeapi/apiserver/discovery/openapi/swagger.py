"""Path items of OpenAPI 3, written as OpenAPI 2 (Swagger): bodies are parameters, media types stand with the operation.

The schemas of both versions come from `publish`; here only names of schemas move. Pure.
"""

from __future__ import annotations

from typing import Any

from tink.kubeapi.schema import Raw

_V3 = "#/components/schemas/"
_V2 = "#/definitions/"
_METHODS = ("get", "put", "post", "delete", "patch")


def path_item(item: Raw) -> Raw:
    """Write what `paths` gives for one path as OpenAPI 2."""
    made: Raw = {method: _operation(item[method]) for method in _METHODS if method in item}
    made["parameters"] = [_parameter(parameter) for parameter in item["parameters"]]
    return made


def _operation(operation: Raw) -> Raw:
    body = operation.get("requestBody")
    answers: dict[str, Raw] = operation["responses"]
    content = answers["200"]["content"]
    parameters = [_parameter(parameter) for parameter in operation.get("parameters", [])]
    if body:
        required = {"required": True} if body.get("required") else {}
        given = {"name": "body", "in": "body", **required, "schema": _schema(body["content"])}
        parameters.insert(0, given)
    made: Raw = {
        "description": operation["description"],
        "consumes": sorted(body["content"]) if body else ["*/*"],
        "produces": sorted(content),
        "schemes": ["https"],
        "tags": operation["tags"],
        "operationId": operation["operationId"],
    }
    if parameters:
        made["parameters"] = parameters
    made["responses"] = {
        code: {
            "description": answer["description"],
            **({"schema": _schema(answer["content"])} if "content" in answer else {}),
        }
        for code, answer in answers.items()
    }
    return made | {key: value for key, value in operation.items() if key.startswith("x-")}


def _schema(content: dict[str, Any]) -> Raw:
    reference: str = next(iter(content.values()))["schema"]["$ref"]
    return {"$ref": reference.replace(_V3, _V2)}


def _parameter(parameter: Raw) -> Raw:
    kept = {key: value for key, value in parameter.items() if key != "schema"}
    return {**parameter["schema"], **kept}
