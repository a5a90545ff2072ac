"""The list of the package's files in the map: of each file, the first sentence of its docstring."""

import ast
import re
from collections.abc import Iterator

from pages import MAP


def module_list() -> Iterator[str]:
    """Yield a list of the modules of the package, without private folders. Of the `__init__` files it has those with
    definitions."""
    folder = MAP.parent
    for path in sorted(folder.rglob("*.py"), key=lambda path: (len(path.relative_to(folder).parts) > 1, path)):
        if path.parent.name.startswith("_"):
            continue
        module = ast.parse(path.read_text(encoding="utf-8"))
        if path.name != "__init__.py" or any(isinstance(each, ast.FunctionDef | ast.ClassDef) for each in module.body):
            yield f"- `{path.relative_to(folder).as_posix()}`: {_first_sentence(ast.get_docstring(module) or '')}"
    yield ""


def _first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line, as Markdown."""
    line = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"[.:]$|\. (?=[A-Z`])", line)[0].replace("``", "`")
