"""Imports point down only. The tables below are the architecture; this file reads every import and compares."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Lowest first. A module may import itself and every layer below its own. Modules of one layer may import one
# another (never in a circle) only where PEERS says so.
LAYERS: list[tuple[str, set[str]]] = [
    ("facts", {"facts", "lazy", "command_line"}),
    ("pictures", {"pictures"}),
    ("bench", {"runtime", "reference"}),
    ("closed forms", {"costs"}),
    ("floor", {"groups"}),
    ("chapters", {
        "why_distribute", "collectives", "data_parallel", "pipeline_parallel", "tensor_parallel", "zero",
        "sequence_parallel", "expert_parallel",
    }),
    ("plots", {"plots"}),
    ("composition", {"hybrid_parallel", "planner", "checkpoint"}),
    ("surface", {"widgets", "grading", "show"}),
    ("capstone", {"mine"}),
    ("entry points", {"train", "nano3d"}),
]
LAYER_OF = {module: number for number, (_, modules) in enumerate(LAYERS) for module in modules}
PEERS = {"composition", "surface"}
FOR_EVERY_CHAPTER = "collectives"  # composition happens in hybrid_parallel, so chapters share this one only

# What stands around course_lib and may import all of it, lowest first; a folder inside another is a room of its own.
WORKSHOP = ["tools/harness", "tools", "benchmarks", "tools/gpu_day", "tests"]

NEVER_IMPORTED = {"notebooks", "exercises", "solutions", "tests", "benchmarks", "tools"}
WITHOUT_TORCH = {"facts", "pictures", "costs"}
WIDGET_LIBRARIES = {"ipywidgets", "anywidget"}


def module_name(path: Path, root: Path) -> str:
    """The dotted name of the file at `path`: course_lib/runtime/__init__.py is course_lib.runtime."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in the file, at any depth, relative ones made absolute."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*above, *([node.module] if node.module else [])])
            # `from course_lib import zero` imports course_lib.zero; a name that is no module does no harm
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def complaint(importer: str, imported: str, modules: set[str]) -> str | None:
    """Why the module `importer` ("" is course_lib itself) may not import `imported`; None where it may."""
    top, *rest = imported.split(".")
    if top in NEVER_IMPORTED:
        return f"course_lib never imports {top}"
    if top in WIDGET_LIBRARIES and importer != "widgets":
        return f"only course_lib/widgets imports {top}"
    if top == "torch" and importer in WITHOUT_TORCH:
        return f"{importer} holds plain numbers and imports no torch"
    if top != "course_lib" or not rest or rest[0] not in modules or rest[0] == importer:
        return None
    target = rest[0]
    if not importer:
        return "course_lib/__init__.py imports no module, so that importing one never loads the others"
    if LAYER_OF[target] > LAYER_OF[importer]:
        return f"{importer} stands below {target}, and imports point down only"
    if LAYER_OF[target] == LAYER_OF[importer]:
        layer = LAYERS[LAYER_OF[target]][0]
        if layer == "chapters" and target != FOR_EVERY_CHAPTER:
            return f"a chapter imports no chapter but {FOR_EVERY_CHAPTER}; compose them in hybrid_parallel"
        if layer not in PEERS | {"chapters"}:
            return f"{importer} and {target} stand side by side and do not know each other"
    return None


def reach(edges: dict[str, set[str]], start: str) -> set[str]:
    """Whatever can be reached from `start`; itself only through others."""
    found, open_ends = set(), [start]
    while open_ends:
        for target in edges.get(open_ends.pop(), set()) - found:
            found.add(target)
            open_ends.append(target)
    return found


def circles(edges: dict[str, set[str]]) -> list[str]:
    """One message for each pair of modules that import each other, directly or through others."""
    reached = {module: reach(edges, module) for module in edges}
    return [f"course_lib/{a} and course_lib/{b} import each other, directly or through others"
            for a in sorted(edges) for b in sorted(edges) if a < b and b in reached[a] and a in reached[b]]


def files_in_a_circle(root: Path, folders: Iterable[str] = ("course_lib",)) -> list[str]:
    """The names of the files that import each other, directly or through others, at any depth; joined, by circle.

    An import of a name that is no file is one of the package that has it.
    """
    file_of = {module_name(path, root): path for folder in folders for path in sorted((root / folder).rglob("*.py"))}
    edges = {}
    for importer, path in file_of.items():
        named = [name if name in file_of else name.rpartition(".")[0] for _, name in imports(path, root)]
        edges[importer] = {name for name in named if name in file_of} - {importer}
    reached = {module: reach(edges, module) for module in edges}
    around = {tuple(other for other in edges if other in reached[module] and module in reached[other])
              for module in edges}
    return [" and ".join(circle) for circle in sorted(around) if circle]


def problems(root: Path) -> list[str]:
    """Every broken rule in root/course_lib, each with file, line and reason."""
    files = sorted((root / "course_lib").rglob("*.py"))
    module_of = {path: (module_name(path, root).split(".") + [""])[1] for path in files}
    modules = {module for module in module_of.values() if module}
    known = modules & LAYER_OF.keys()
    found = [f"course_lib/{module} is in no layer: add it to LAYERS in tests/test_layers.py"
             for module in sorted(modules - known)]
    edges: dict[str, set[str]] = {}
    for path in files:
        importer = module_of[path]
        if importer and importer not in LAYER_OF:
            continue
        for line, imported in imports(path, root):
            reason = complaint(importer, imported, known)
            if reason:
                found.append(f"{path.relative_to(root).as_posix()}:{line} imports {imported}: {reason}")
            elif imported.startswith("course_lib.") and imported.split(".")[1] in known - {importer}:
                edges.setdefault(importer, set()).add(imported.split(".")[1])
    return found + circles(edges)


def room_of(name: str) -> str | None:
    """The room of WORKSHOP that a dotted name belongs to; None where it is elsewhere."""
    rooms = [room for room in WORKSHOP if f"{name}.".startswith(room.replace("/", ".") + ".")]
    return max(rooms, key=len, default=None)


def problems_around(root: Path) -> list[str]:
    """Every import in root's WORKSHOP that points up, with file and line."""
    found = []
    folders = {room.split("/")[0] for room in WORKSHOP}
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        here = room_of(module_name(path, root))
        for line, imported in imports(path, root):
            there = room_of(imported)
            if there and WORKSHOP.index(there) > WORKSHOP.index(here):
                found.append(f"{path.relative_to(root).as_posix()}:{line} imports {imported}: "
                             f"{here} stands below {there}, and imports point down only")
    return found


def tree(root: Path, **sources: str) -> Path:
    """A made-up course_lib under `root`; the key runtime__launch is the file runtime/launch.py."""
    for name in ("__init__", *sources):
        path = root / "course_lib" / f"{name if name == '__init__' else name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sources.get(name, ""))
    return root


def test_course_lib_imports_point_down_only():
    assert problems(ROOT) == []


def test_no_files_import_each_other_in_a_circle():
    assert files_in_a_circle(ROOT) == []


def test_tools_benchmarks_and_tests_import_down_only():
    assert problems_around(ROOT) == []


def test_no_files_around_course_lib_import_each_other_in_a_circle():
    assert files_in_a_circle(ROOT, ("tools", "benchmarks", "tests")) == []


def test_a_tool_that_imports_a_test_or_a_benchmark_is_refused_and_the_harness_imports_no_tool(tmp_path):
    made_up = {
        "tools/gpu_day/steps.py": "from tests.pretend import cells\nfrom benchmarks import ranks",
        "tools/lock.py": "from benchmarks import ranks",
        "tools/harness/a.py": "from tools import lock",
        "benchmarks/ranks.py": "from tools.harness import a",
        "tests/b.py": "import tools.gpu_day.steps",
    }
    for name, source in made_up.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    assert sorted(problem.split(": ")[0] for problem in problems_around(tmp_path)) == [
        "tools/gpu_day/steps.py:1 imports tests.pretend.cells", "tools/harness/a.py:1 imports tools.lock",
        "tools/lock.py:1 imports benchmarks.ranks"]


def test_files_of_one_package_that_import_each_other_are_found_also_where_they_do_it_lazily(tmp_path):
    made_up = tree(
        tmp_path,
        zero__sums="from course_lib.zero.parts import part",
        zero__parts="def f():\n    from . import whole\ndef g():\n    from course_lib.facts import numbers",
        zero__whole="import course_lib.zero.sums",
        facts__numbers="",
    )
    names = "course_lib.zero.parts and course_lib.zero.sums and course_lib.zero.whole"
    assert files_in_a_circle(made_up) == [names]


def test_imports_that_point_down_are_accepted(tmp_path):
    made_up = tree(
        tmp_path,
        facts__hardware="import dataclasses",
        runtime__launch="import torch\nfrom course_lib.facts import hardware\nfrom .errors import A",
        runtime__errors="A = 1",
        collectives="from course_lib import runtime",
        zero="from course_lib.collectives import ring_all_reduce\nfrom .reference import GPT",
        reference__model="import torch",
        hybrid_parallel="from course_lib import zero, __version__\nfrom course_lib import checkpoint",
        checkpoint="import course_lib.zero",
        widgets__base="import anywidget\nfrom course_lib.planner import estimate",
        planner__cost="from ..hybrid_parallel import ParallelLayout",
        train="from course_lib.hybrid_parallel import HybridTrainer\nfrom course_lib.runtime import launch",
    )
    assert problems(made_up) == []


def one_problem(root: Path, **sources: str) -> str:
    (problem,) = problems(tree(root, **sources))
    return problem


def test_an_import_that_points_up_is_refused_with_file_and_line(tmp_path):
    problem = one_problem(tmp_path, runtime__launch="import os\nimport course_lib.zero", zero="")
    assert problem.startswith("course_lib/runtime/launch.py:2 imports course_lib.zero")
    assert "down only" in problem


def test_an_import_inside_a_function_counts(tmp_path):
    source = "def f():\n    from course_lib import runtime"
    problem = one_problem(tmp_path, facts__seeds=source, runtime__launch="")
    assert "facts stands below runtime" in problem


def test_a_relative_import_counts(tmp_path):
    problem = one_problem(tmp_path, facts__seeds="from ..runtime import launch", runtime__launch="")
    assert "facts stands below runtime" in problem


def test_an_import_by_name_counts(tmp_path):
    source = "import importlib\nimportlib.import_module('course_lib.widgets')"
    assert "down only" in one_problem(tmp_path, zero=source, widgets__base="")


def test_a_chapter_imports_no_other_chapter_but_collectives(tmp_path):
    problem = one_problem(tmp_path, zero="from .data_parallel import fp16_hook", data_parallel="")
    assert "compose them in hybrid_parallel" in problem


def test_collectives_imports_no_chapter(tmp_path):
    assert "no chapter but" in one_problem(tmp_path, collectives="import course_lib.zero", zero="")


def test_runtime_and_reference_do_not_know_each_other(tmp_path):
    problem = one_problem(tmp_path, reference__train="from ..runtime import span", runtime__span="")
    assert "side by side" in problem


def test_facts_imports_no_torch(tmp_path):
    assert "no torch" in one_problem(tmp_path, facts__hardware="from torch import nn")


def test_widget_libraries_stay_in_widgets(tmp_path):
    assert "only course_lib/widgets" in one_problem(tmp_path, show="import ipywidgets.widgets")


def test_course_lib_never_imports_what_stands_on_it(tmp_path):
    assert len(problems(tree(tmp_path, zero="import tests.helpers\nfrom benchmarks import harness"))) == 2


def test_importing_course_lib_loads_none_of_its_modules(tmp_path):
    problem = one_problem(tmp_path, __init__="from . import facts", facts__hardware="")
    assert "__init__.py imports no module" in problem


def test_peers_that_import_each_other_are_refused(tmp_path):
    problem = one_problem(tmp_path, planner="from . import checkpoint", checkpoint="from . import planner")
    assert "course_lib/checkpoint and course_lib/planner import each other" in problem


def test_a_module_outside_the_table_is_refused_with_the_place_to_add_it(tmp_path):
    problem = one_problem(tmp_path, quantum_parallel="import torch")
    assert "course_lib/quantum_parallel" in problem and "LAYERS in tests/test_layers.py" in problem


# Inside grading: who may know whom. What a rank sees knows no judge; the class grader knows exercises by the registry.
WALL = {"on_rank": ("on_rank",), "trusted/inside": ("trusted.inside",),
        "trusted": ("trusted", "exercise", "recorded", "registry", "report", "spent", "marks.record")}


def test_no_import_goes_through_the_wall_of_the_grader():
    for room, known in WALL.items():
        for path in sorted((ROOT / "course_lib" / "grading" / room).glob("*.py")):
            for line, name in imports(path, ROOT):
                within = name.removeprefix("course_lib.grading").lstrip(".")
                chapter = name.startswith("course_lib.") and name.split(".")[1] in dict(LAYERS)["chapters"]
                assert not chapter, f"{path.name}:{line} knows the chapter {name}"
                if name.startswith("course_lib.grading.") and within.split(".")[0] not in ("check", "Any"):
                    assert within.startswith(known), f"{room}/{path.name}:{line} imports {name}"
