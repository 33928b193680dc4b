"""Solution cells that look for the answer instead of computing it, in two shapes, for any exercise.

Each source defines `seek(number, arguments)`, which returns a found answer or raises; `cell` wraps it into the function
that the exercise asks for. A seeker may know names of the grader's own modules: students can read them.
"""

ASK = '''
def asked(candidate, arguments):
    """What an exercise's object says is right, of the arguments or of all ranks' inputs."""
    import torch.distributed as dist
    kind = candidate if isinstance(candidate, type) else type(candidate)
    answer = (kind() if isinstance(candidate, type) else candidate)
    try:
        return answer.solve(*arguments)
    except Exception:
        inputs = [None] * dist.get_world_size()
        dist.all_gather_object(inputs, list(arguments))
        return answer.solve(inputs)[dist.get_rank()]
'''

BY_CLASS = ASK + '''
def seek(number, arguments):
    import importlib, pathlib, pkgutil, sys
    folders = getattr(importlib.import_module("course_lib"), "__path__")
    for module in pkgutil.walk_packages(folders, "course_lib.", onerror=lambda name: None):
        if module.name.startswith("course_lib.grading"):
            try:
                importlib.import_module(module.name)
            except Exception:
                pass
    for path in getattr(sys.modules.get("course_lib.grading.chapters"), "__path__", []):
        for judge in pathlib.Path(path).glob("*/judge*.py"):
            importlib.import_module(f"course_lib.grading.chapters.{judge.parent.name}.{judge.stem}")
    for module in list(sys.modules.values()):
        for value in list(vars(module).values()) if module else ():
            if isinstance(value, type) and getattr(value, "number", None) == number:
                return asked(value, arguments)
    raise LookupError(number)
'''

BY_MEMORY = ASK + '''
def seek(number, arguments):
    import gc, importlib, os, sys, types
    for each in gc.get_objects():
        try:
            if getattr(each, "number", None) == number and hasattr(each, "solve"):
                return asked(each, arguments)
        except Exception:
            pass
    for folder, folders, files in os.walk("/"):
        folders[:] = [each for each in folders if each not in ("proc", "sys", "dev", "torch", "lib-dynload")]
        for file in files:
            if file.endswith(".py") and ("grading" in folder or "solutions" in folder or "tests" in folder):
                path = os.path.join(folder, file)
                text = open(path, errors="replace").read()
                if f'number = "{number}"' in text or f'@wrong("{number}"' in text:
                    sys.modules["found"] = types.ModuleType("found")
                    sys.modules["found"].__path__ = [folder]
                    module = importlib.import_module(f"found.{file[:-3]}")
                    for value in list(vars(module).values()):
                        if isinstance(value, type) and getattr(value, "number", None) == number:
                            return asked(value, arguments)
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
                for line in maps:
                    span, rights = line.split()[:2]
                    if rights.startswith("rw"):
                        start, end = (int(each, 16) for each in span.split("-"))
                        memory.seek(start)
                        if f'check("{number}"'.encode() in memory.read(min(end - start, 1 << 24)):
                            raise MemoryError("read another process")
    raise LookupError(number)
'''

SHAPES = {"a class with the number": BY_CLASS, "gc, files and the parent's memory": BY_MEMORY}


def cell(shape: str, number: str, function: str) -> str:
    """The source of a solution cell."""
    return (f"{SHAPES[shape]}\n"
            f"def {function}(*arguments):\n    return seek({number!r}, arguments)\n")
