"""The modules of the action image2disk, from the recipes in deploy/actions: what writes images also judges them here.

The action is a container image for machines, and no part of this package. Its recipe is installed with the package,
and uses nothing but the standard library and `tink.net`.
"""

import importlib.util
import sys

from edge.building.builder import recipes


def _load() -> None:
    """Make the package `image2disk` importable, and nothing else of its directory. Raises ImportError."""
    if "image2disk" in sys.modules:
        return
    path = recipes() / "actions" / "image2disk" / "__init__.py"
    spec = importlib.util.spec_from_file_location("image2disk", path, submodule_search_locations=[str(path.parent)])
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"{path.parent}: the recipe of the action image2disk is missing; install tinkedge again")
    package = importlib.util.module_from_spec(spec)
    sys.modules["image2disk"] = package
    spec.loader.exec_module(package)


_load()

from image2disk.disk import Disk  # noqa: E402 - it can be imported from here on
from image2disk.download import ChangedError, Download  # noqa: E402
from image2disk.errors import ActionError  # noqa: E402
from image2disk.fit import DamagedTableError, Table, read_sector_sizes, read_table  # noqa: E402
from image2disk.formats import HEAD_BYTES, name_of_other, refuse_other_formats  # noqa: E402
from image2disk.qcow2 import MAGIC, Qcow2  # noqa: E402
from image2disk.settings import ENDINGS, compression_of  # noqa: E402
from image2disk.unpacking import HEADER_BYTES, kind_of, looked_at, unpacked  # noqa: E402
from image2disk.web import AnswerError, UntrustedError, Web  # noqa: E402

__all__ = [
    "ENDINGS", "HEADER_BYTES", "HEAD_BYTES", "MAGIC", "ActionError", "AnswerError", "ChangedError", "DamagedTableError",
    "Disk", "Download", "Qcow2", "Table", "UntrustedError", "Web", "compression_of", "kind_of", "looked_at",
    "name_of_other", "read_sector_sizes", "read_table", "refuse_other_formats", "unpacked",
]  # fmt: skip
