"""Structural schemas, compiled to one walk over an object.

`compiler` makes the walk, `checks` and `formats` are what it asks of single values.
"""

from tink.kubeapi.schema.structural.checks import mark
from tink.kubeapi.schema.structural.compiler import compile_schema, root_schema

__all__ = ["compile_schema", "mark", "root_schema"]
