"""A page for each package of course_lib, of its public names: `__all__`, in the order in which it stands there.

Docstrings here are plain text with formulas and drawings in it, no markup, so they are shown as they were written.
"""

import importlib
import inspect

from tools.pages import rendered

# In the order in which the course meets them.
PACKAGES = ("runtime", "reference", "why_distribute", "collectives", "data_parallel", "pipeline_parallel",
            "tensor_parallel", "zero", "sequence_parallel", "expert_parallel", "hybrid_parallel", "checkpoint",
            "planner", "facts", "grading", "mine", "widgets")


def pages() -> dict[str, str]:
    """Path in the site's sources -> its text, in MyST: what a package's docstring says, then its functions and classes.
    """
    modules = {name: importlib.import_module(f"course_lib.{name}") for name in PACKAGES}
    constants = {name: [each for each in module.__all__ if not callable(getattr(module, each))]
                 for name, module in modules.items()}
    return {"api/index.md": rendered("api_index.md", packages=PACKAGES)} | {
        f"api/{name}.md": rendered("api_package.md", package=name, constants=constants[name]) for name in PACKAGES}


def as_rst(lines: list[str]) -> list[str]:
    """Plain text as reStructuredText that shows it as it is."""
    text = inspect.cleandoc("\n".join(lines))
    language = "pycon" if ">>>" in text else "text"
    return [f".. code-block:: {language}", "   :class: docstring", "",
            *(f"   {line}" for line in text.splitlines()), ""] if text else []
