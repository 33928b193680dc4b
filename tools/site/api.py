"""A page for each package of course_lib, of its public names: `__all__`, in the order in which it stands there.

Docstrings here are plain text with formulas and drawings in it, no markup, so they are shown as they were written.
"""

import importlib
import inspect

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
    constants = [f"`{each}`" for each in module.__all__ if not callable(getattr(module, each))]
    return "\n".join([f"# course_lib.{name}", "", *[f"Constants: {', '.join(constants)}.", ""] * bool(constants),
                      "```{eval-rst}", f".. automodule:: course_lib.{name}", "   :members:", "```", ""])


def as_rst(lines: list[str]) -> list[str]:
    """Plain text as reStructuredText that shows it as it is."""
    text = inspect.cleandoc("\n".join(lines))
    language = "pycon" if ">>>" in text else "text"
    return [f".. code-block:: {language}", "   :class: docstring", "",
            *(f"   {line}" for line in text.splitlines()), ""] if text else []
