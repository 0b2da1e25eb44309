"""Objects as files hold them: YAML and JSON in, with where each stood and its comments; YAML and JSON out."""

from tink.convert.documents.comments import END, collect, has_comments
from tink.convert.documents.document import DEFAULT_NAMESPACE, Converted, Document, Lookup, validated
from tink.convert.documents.files import file_name, read_all, write_whole
from tink.convert.documents.nodes import compose, value
from tink.convert.documents.reader import read
from tink.convert.documents.writer import json_text, to_json, to_yaml, yaml_document

__all__ = [
    "DEFAULT_NAMESPACE",
    "END",
    "Converted",
    "Document",
    "Lookup",
    "collect",
    "compose",
    "file_name",
    "has_comments",
    "json_text",
    "read",
    "read_all",
    "to_json",
    "to_yaml",
    "validated",
    "value",
    "write_whole",
    "yaml_document",
]
