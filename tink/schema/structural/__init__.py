"""Structural schemas, compiled to one walk over an object.

`compiler` makes the walk, `checks` and `formats` are what it asks of single values, `valid_cache` remembers values that
were right a moment ago.
"""

from tink.schema.structural.checks import mark
from tink.schema.structural.compiler import compile_schema, root_schema
from tink.schema.structural.valid_cache import ValidCache, text_of

__all__ = ["ValidCache", "compile_schema", "mark", "root_schema", "text_of"]
