"""Objects as bytes: JSON, Kubernetes' protobuf, and YAML. Pure; knows no requests and no resources."""

from tink.kubeapi.apiserver.serializer.json_reader import JsonError, duplicate_fields, load_json
from tink.kubeapi.apiserver.serializer.protobuf import (
    ProtobufError,
    delimited,
    dump_protobuf,
    load_protobuf,
    message_of,
    varint,
)
from tink.kubeapi.apiserver.serializer.yaml_writer import dump_yaml, dump_yaml_item, dump_yaml_list

__all__ = [
    "JsonError",
    "ProtobufError",
    "delimited",
    "dump_protobuf",
    "dump_yaml",
    "dump_yaml_item",
    "dump_yaml_list",
    "duplicate_fields",
    "load_json",
    "load_protobuf",
    "message_of",
    "varint",
]
