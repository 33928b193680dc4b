"""A page for each package of course_lib, of its public names: `__all__`, in the order in which it stands there.

Docstrings here are plain text with formulas and drawings in it, no markup, so they are shown as they were written:
paragraphs as paragraphs, examples and whatever is indented or set in columns line by line.
"""

import importlib
import inspect
import re

# In the order in which the course meets them.
PACKAGES = ("runtime", "reference", "why_distribute", "collectives", "data_parallel", "pipeline_parallel",
            "tensor_parallel", "zero", "sequence_parallel", "expert_parallel", "hybrid_parallel", "checkpoint",
            "planner", "facts", "grading", "mine", "widgets")
INDEX = """\
# Public names

What notebooks and exercises import from `course_lib`, package by package. Everything else may change without notice.
[Sources](../source/index.md) has all files.

```{{toctree}}
:maxdepth: 1

{pages}
```
"""


def pages() -> dict[str, str]:
    """Path in the site's sources -> its text, in MyST."""
    return {"api/index.md": INDEX.format(pages="\n".join(PACKAGES)),
            **{f"api/{name}.md": package_page(name) for name in PACKAGES}}


def package_page(name: str) -> str:
    """One package: what its docstring says, then its functions and classes."""
    module = importlib.import_module(f"course_lib.{name}")
    names = [each for each in module.__all__ if is_documented(getattr(module, each))]
    others = [each for each in module.__all__ if each not in names]
    entries = [f".. auto{kind(getattr(module, each))}:: course_lib.{name}.{each}" for each in names]
    constants = [f"Constants: {', '.join(f'`{each}`' for each in others)}.", ""] * bool(others)
    docstring = "\n".join(as_rst((module.__doc__ or "").splitlines()))
    return "\n".join([f"# course_lib.{name}", "", "```{eval-rst}", docstring, "```", "", *constants, "```{eval-rst}",
                      f".. currentmodule:: course_lib.{name}", "", *"\n\n".join(entries).splitlines(), "```", ""])


def is_documented(thing: object) -> bool:
    return inspect.isclass(thing) or inspect.isroutine(thing)


def kind(thing: object) -> str:
    return "class" if inspect.isclass(thing) else "function"


def as_rst(lines: list[str]) -> list[str]:
    """Plain text as reStructuredText that shows it as it is."""
    result: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc("\n".join(lines))):
        rows = paragraph.splitlines()
        if rows and rows[0].startswith(">>>"):
            result += [*rows, ""]
        elif any(row.startswith(" ") or re.search(r"\S {2,}\S", row) for row in rows):
            # An introduction that ends where the drawing begins stays a paragraph.
            drawn = next(place for place, row in enumerate(rows) if row.startswith(" ") or re.search(r"\S {2,}\S", row))
            introduction = rows[:drawn] if drawn and rows[drawn - 1].endswith((":", "::")) else []
            result += [*map(prose, introduction), *([""] if introduction else []), "::", ""]
            result += [*(f"    {row}" for row in rows[len(introduction):]), ""]
        else:
            result += [*map(prose, rows), ""]
    return result


def prose(row: str) -> str:
    """A line of a paragraph: `code` is code, and no other sign means anything."""
    parts = row.split("`")
    if len(parts) % 2 == 0:
        return escape(row)
    return "".join(f"\\ ``{part}``\\ " if place % 2 and part.strip() == part and part else escape(part)
                   for place, part in enumerate(parts))


def escape(text: str) -> str:
    return re.sub(r"([\\*_|`:])", r"\\\1", text)
