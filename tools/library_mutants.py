"""python -m tools.library_mutants [COUNT] [--seed N] [--package NAME]: who notices a change of course_lib?

Draws COUNT one-change mutants of the library by cosmic-ray's operators, as many of each package, and runs the tests
that mirror it, in a copy of this tree, until one fails. Prints each change with the test that killed it, and keeps all
in build/mutants.json. Exit status 1 where one survives: it is equivalent, or the tests have a hole.
"""

import argparse
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
# What fails at once: bits of floats, types of annotations, exceptions and decorators that do not exist.
LEFT = re.compile(r"_(?:BitOr|BitAnd|BitXor|LShift|RShift)(?:_|$)|ExceptionReplacer|Decorator|Variable")
LONGEST_S = 900  # of one mutant; the tests' own limit ends what hangs
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def packages() -> dict[str, list[Path]]:
    """The files of course_lib by package that has tests of its own."""
    return {file.parent.name: sorted(set(file.parent.rglob("*.py")) - {file})
            for file in sorted(Path(ROOT, "course_lib").glob("*/__init__.py"))
            if Path(ROOT, "tests", file.parent.name).is_dir()}


def draw(files: list[Path], random: random.Random) -> tuple[Path, str, str]:
    """(file, its text, the mutant's text): a file by its length, then any operator that applies, anywhere."""
    while True:
        file = random.choices(files, [file.stat().st_size for file in files])[0]
        text = file.read_text(encoding="utf-8")
        nodes = list(ast_nodes(get_ast(text)))
        name = random.choice([name for name in plugins.operator_names() if not LEFT.search(name)])
        operator = plugins.get_operator(name)()
        if places := sum(len(list(operator.mutation_positions(node))) for node in nodes):
            mutant = mutate_code(text, operator, random.randrange(places))
            if mutant not in (None, text):
                return file, text, mutant


def killer(copy: Path, package: str) -> str | None:
    """The first test of the package that fails in `copy`; None where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not browser"]
    try:
        finished = subprocess.run([*command, f"tests/{package}"], cwd=copy, capture_output=True, text=True,
                                  timeout=LONGEST_S, env=os.environ | {"PYTHONPATH": str(copy)})
    except subprocess.TimeoutExpired:
        return f"ended after {LONGEST_S} s"
    if finished.returncode == 0:
        return None
    return (FAILED.findall(finished.stdout) or [finished.stdout[-300:] + finished.stderr[-300:]])[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--package")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    chance, found = random.Random(asked.seed), []
    of_packages = {asked.package: packages()[asked.package]} if asked.package else packages()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "build", "workspace*", "dist"))
        for number in tqdm(range(asked.count), unit="mutant", disable=None):
            package = list(of_packages)[number % len(of_packages)]
            file, text, mutant = draw(of_packages[package], chance)
            there = copy / file.relative_to(ROOT)
            there.write_text(mutant, encoding="utf-8")
            test = killer(copy, package)
            there.write_text(text, encoding="utf-8")
            lines = difflib.unified_diff(text.splitlines(), mutant.splitlines(), lineterm="", n=0)
            change = [line for line in lines if not line.startswith(("---", "+++"))]
            found.append({"file": str(file.relative_to(ROOT)), "change": change, "killed_by": test})
            print(f"{file.relative_to(ROOT)} {' '.join(change)}\n    {test or 'SURVIVED'}", flush=True)
            Path(ROOT, "build").mkdir(exist_ok=True)
            Path(ROOT, "build", "mutants.json").write_text(json.dumps({"seed": asked.seed, "mutants": found}, indent=1))
    survived = sum(each["killed_by"] is None for each in found)
    print(f"{len(found) - survived} of {len(found)} were killed, seed {asked.seed}")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
