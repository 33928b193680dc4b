"""Each number and each formula has one home: facts/ alone makes a Fact, and nobody defines what costs/ defines."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = {"why_distribute", "collectives", "data_parallel", "pipeline_parallel", "tensor_parallel", "zero",
            "sequence_parallel", "expert_parallel"}


def tree(root: Path, **sources: str) -> Path:
    """A made-up course_lib under `root`; the key costs__memory is the file costs/memory.py."""
    for name, source in sources.items():
        path = root / "course_lib" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


def facts_made_elsewhere(root: Path) -> list[str]:
    """file:line of every call of Fact outside course_lib/facts."""
    return [f"{path.relative_to(root).as_posix()}:{node.lineno}"
            for path in sorted((root / "course_lib").rglob("*.py")) if path.parts[len(root.parts) + 1] != "facts"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "Fact"]


def definitions(path: Path) -> Iterator[str]:
    """The functions, classes and constants that the file itself defines; an import defines nothing."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        targets = getattr(node, "targets", []) + ([node.target] if isinstance(node, ast.AnnAssign) else [])
        for name in (name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)):
            if name.id.isupper():
                yield name.id


def second_definitions(root: Path) -> list[str]:
    """What a file of costs/ defines, and another one there, in groups/ or in a chapter defines again."""
    homes: dict[str, list[str]] = {}
    costs = set()
    for package in ("costs", "groups", *sorted(CHAPTERS)):
        for path in sorted((root / "course_lib" / package).rglob("*.py")):
            for name in sorted(set(definitions(path)) - {"__all__"}):
                homes.setdefault(name, []).append(path.relative_to(root / "course_lib").as_posix())
                costs |= {name} if package == "costs" else set()
    return [f"{name}: {', '.join(homes[name])}" for name in sorted(costs) if len(homes[name]) > 1]


def test_a_fact_is_made_in_facts_alone():
    assert facts_made_elsewhere(ROOT) == []


def test_a_formula_has_one_definition():
    assert second_definitions(ROOT) == []


def test_a_fact_made_by_a_widget_and_one_made_by_attribute_would_be_found(tmp_path):
    made_up = tree(tmp_path, facts__hardware="A = Fact(1)", widgets__chart="\nH100 = Fact(989)",
                   zero="from course_lib import facts\nfacts.Fact(1)")
    assert facts_made_elsewhere(made_up) == ["course_lib/widgets/chart.py:2", "course_lib/zero.py:2"]


def test_a_formula_a_class_and_a_constant_defined_again_would_be_found_and_an_import_would_not(tmp_path):
    made_up = tree(tmp_path, costs__memory="USABLE = 0.9\nclass Memory: pass\ndef training_memory(): pass",
                   costs__money="USABLE: float = 0.8", zero__memory="class Memory: pass",
                   why_distribute__plan="from course_lib.costs.memory import training_memory\ndef plan_run(): pass",
                   tensor_parallel__plan="def plan_run(): pass")
    assert second_definitions(made_up) == ["Memory: costs/memory.py, zero/memory.py",
                                           "USABLE: costs/memory.py, costs/money.py"]
