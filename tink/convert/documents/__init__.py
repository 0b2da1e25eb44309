"""Objects as files hold them. `reader` reads YAML and JSON, `writer` writes them, `comments` keeps YAML comments."""

from tink.convert.documents.comments import END, collect, has_comments
from tink.convert.documents.reader import DEFAULT_NAMESPACE, Converted, Document, Lookup, read, read_all, validated
from tink.convert.documents.writer import file_name, json_text, to_json, to_yaml, write_whole, yaml_document

__all__ = [
    "DEFAULT_NAMESPACE",
    "END",
    "Converted",
    "Document",
    "Lookup",
    "collect",
    "file_name",
    "has_comments",
    "json_text",
    "read",
    "read_all",
    "to_json",
    "to_yaml",
    "validated",
    "write_whole",
    "yaml_document",
]
