"""The import contract for packages that have a door, for import-linter."""

import ast
from importlib.util import find_spec
from pathlib import Path

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.domain.helpers import pop_import_expressions


class DoorContract(Contract):
    """A package whose `__init__` assigns `__all__` has a door: other packages import only what it lists.

    Options in pyproject.toml:
      open_modules: modules inside such packages that other packages may import by name, too.
      ignore_imports: single imports that are allowed, as "importer -> imported". One that does not exist is an error.
    """

    open_modules = fields.SetField(subfield=fields.StringField(), required=False, default=set())
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False, default=set())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find the imports that go past a door."""
        pop_import_expressions(graph, self.ignore_imports)  # type: ignore[arg-type]  # a field's value, at run time
        doors = {
            package: exported
            for package in graph.modules
            if not graph.is_module_squashed(package) and (exported := _exported_names(package)) is not None
        }
        violations = sorted(
            (importer, imported)
            for package, exported in doors.items()
            for imported in graph.find_descendants(package)
            if not self._is_open(imported, package, exported)
            for importer in graph.find_modules_that_directly_import(imported)
            if importer != package and not importer.startswith(f"{package}.")
        )
        return ContractCheck(kept=not violations, metadata={"violations": violations})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each import that goes past a door."""
        for importer, imported in check.metadata["violations"]:
            output.print_error(f"{importer} imports {imported}: import it from the package that exports it")

    def _is_open(self, module: str, package: str, exported: set[str]) -> bool:
        """Return True if `module` is exported by `package`, listed as open, or inside such a module."""
        listed = (name for name in self.open_modules if name.startswith(f"{package}."))  # type: ignore[attr-defined]
        names = {f"{package}.{name}" for name in exported}.union(listed)
        return any(module == name or module.startswith(f"{name}.") for name in names)


def _exported_names(package: str) -> set[str] | None:
    """Return the names in the package's `__all__`, or None if it has none or is a module."""
    root, *inner = package.split(".")
    spec = find_spec(root)
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).parent.joinpath(*inner, "__init__.py")
    if not source.is_file():
        return None
    for statement in ast.parse(source.read_text()).body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in statement.targets
        ):
            return set(ast.literal_eval(statement.value))
    return None
