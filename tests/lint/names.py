"""Check names and exceptions over the whole product: `python -m tests.lint.names [PATH]`.

- A class name has one meaning. Two packages may have the same name; a name that a third defines is reported.
- Every public exception derives from `tink.errors.TinkedgeError`, so that a command can report it. Private exceptions
  never leave their module.
- The name of a maximum begins with MAX_.
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("edge", "tink", "hegel", "ipxe")
MAX_DEFINITIONS: Final = 2
"""Places that may define a class of the same name."""
_BUILT_IN: Final = re.compile(r"(?:Exception|[A-Z]\w*Error)")
_ROOT_CLASS: Final = "TinkedgeError"
_MAXIMUM: Final = re.compile(r"_?(?!MAX_)(?:[A-Z0-9]+_)*(?:LARGEST|LONGEST|MOST|FEW|ENOUGH|AT_ONCE)(?:_[A-Z0-9]+)*")


class Names:
    """The classes and constants that the product defines."""

    def __init__(self, root: Path = ROOT) -> None:
        self._bases: dict[str, set[str]] = defaultdict(set)
        self._places: dict[str, list[str]] = defaultdict(list)
        self._constants: list[tuple[str, str]] = []
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                self._read(path, str(path.relative_to(root)))

    def _read(self, path: Path, where: str) -> None:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self._places[node.name].append(f"{where}:{node.lineno}")
                self._bases[node.name] |= {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            self._constants += [(t.id, f"{where}:{node.lineno}") for t in targets if isinstance(t, ast.Name)]

    def problems(self) -> Iterator[str]:
        """Yield a line for each name that breaks a rule."""
        for name, places in sorted(self._places.items()):
            if len(places) > MAX_DEFINITIONS and not name.startswith("_"):
                yield f"{name} is the name of {len(places)} classes: {', '.join(places)}"
            if not name.startswith("_") and self._is_exception(name) and not self._has_root(name):
                yield f"{name} does not derive from {_ROOT_CLASS}: {', '.join(places)}"
        for name, place in self._constants:
            if _MAXIMUM.fullmatch(name):
                yield f"the name of the maximum {name} does not begin with MAX_: {place}"

    def _is_exception(self, name: str) -> bool:
        own = self._bases.get(name)
        if own is None:
            return _BUILT_IN.fullmatch(name) is not None
        return any(self._is_exception(base) for base in own if base != name)

    def _has_root(self, name: str) -> bool:
        return name == _ROOT_CLASS or any(self._has_root(base) for base in self._bases.get(name, ()) if base != name)


def main() -> None:
    """Print the problems. Exit with 1 if there are any."""
    parser = argparse.ArgumentParser(prog="names", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("path", nargs="?", default="", help="print only problems in files below this path")
    path = parser.parse_args().path
    problems = [line for line in Names().problems() if path in line]
    print("\n".join(problems) or "names: no problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
