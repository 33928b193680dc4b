"""TrustedGrade and students who want points without the work: nothing they do helps, and nothing of it is left."""

import ctypes
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch
from nbgrader import utils

from course_lib.grading.registry import exercise
from course_lib.grading.report import Verdict
from course_lib.grading.trusted import replies
from course_lib.grading.trusted.grader import Grader
from course_lib.grading.trusted.inside import frames, main, student_code
from course_lib.grading.trusted.notebooks import is_check
from course_lib.grading.trusted.preprocessor import TrustedGrade, cells_above, exercise_of
from course_lib.runtime import context
from tests.grading import seekers
from tests.grading.class_exercise import (
    CALLS_HONEST,
    EXERCISE,
    HONEST,
    IMPATIENT,
    LIMITS,
    MODES,
    NAMESPACES,
    WRONG,
    notebook,
    points,
)
from tests.grading.toy_exercises import PassOn, PassOnSmall
from tests.processes import processes_with

ROOT = Path(__file__).resolve().parents[2]
RELEASED = sorted((ROOT / "exercises").glob("*/*.ipynb"))
SHAPES = list(seekers.SHAPES)
SEARCHES = [(path, shape) for path in RELEASED for shape in SHAPES]
ONE_EACH = [*zip(RELEASED, SHAPES)]  # each way once
in_namespaces = pytest.mark.skipif(not NAMESPACES, reason="this machine allows no namespaces")


# ---- cheats

CHEATS = {
    "an input transformer that empties later cells": (
        "ip = get_ipython()\nip.input_transformers_post.append(lambda lines: [])\n"),
    "an AST transformer that drops asserts": (
        "import ast\nclass Drop(ast.NodeTransformer):\n    def visit_Assert(self, node): return ast.Pass()\n"
        "get_ipython().ast_transformers.append(Drop())\n"),
    "a patched comparison": (
        "import torch\nclass Yes(torch.Tensor):\n    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n"
        "torch.allclose = torch.equal = torch.testing.assert_close = lambda *_, **__: True\n"),
    "a replaced run_cell_async": (
        "async def run_cell_async(self, *_, **__): return None\n"
        "type(get_ipython()).run_cell_async = run_cell_async\n"),
    "a patched judge": (
        "from importlib import import_module as of\n"
        "of('course_lib.grading.kinds').TensorExercise.judge = lambda *_: None\n"),
    "a patched run": (
        "from importlib import import_module as of\n"
        "of('course_lib.grading.on_rank').tensor = lambda *_: {'returned': None, 'tensor': None}\n"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_no_change_to_the_notebooks_machinery_gives_points(grade, cheat):
    body = "return tensor.as_subclass(Yes)" if "Yes" in CHEATS[cheat] else "return tensor"
    assert points(grade(f"{CHEATS[cheat]}\ndef pass_on(tensor):\n    {body}\n", CHEATS[cheat])) == 0


REACHED = """
from course_lib.grading.registry import exercise
right = exercise("1.1")
for trial in right.trials(seed=5):
    assert found(*trial.inputs[0]) == right.solve(*trial.inputs[0])
"""


@pytest.mark.parametrize("shape", SHAPES)
def test_where_an_answer_can_be_reached_a_search_finds_it(shape):
    there = f"import gc, re, sys\nassert {MEMORY} and {MODULES}\n"
    subprocess.run([sys.executable, "-c", seekers.cell(shape, "1.1", "found") + REACHED + there], cwd=ROOT, check=True)


@pytest.mark.ci
@in_namespaces
@pytest.mark.sweep("search", few=ONE_EACH, all=SEARCHES, ids=lambda search: f"{search[0].stem}-{search[1]}",
                   words=f"each of {len(SHAPES)} ways to look for an answer, in 1 chapter of {len(RELEASED)}")
def test_whoever_looks_for_an_answer_finds_none(search):
    path, shape = search
    submission = nbformat.read(path, as_version=4)
    for index, cell in enumerate(submission.cells):
        if is_check(cell):
            exercise = exercise_of(cell.source)
            own = max(above for above in range(index) if utils.is_solution(submission.cells[above]))
            submission.cells[own].source = seekers.cell(shape, exercise.number, exercise.function)
    graded, _ = TrustedGrade(isolation="required", seed=3).preprocess(submission, {})
    checks = list(filter(is_check, graded.cells))
    assert checks and {exercise_of(cell.source).number for cell in checks if utils.determine_grade(cell)[0]} == set()


# Of course_lib a rank sees these files and has these modules, and nothing else: no judge, no registry, no chapter but
# the text of the one on_rank.py that its exercise needs.
SEEN = (r"(__init__|lazy)\.py|(facts|pictures|reference|runtime)/.*"
        r"|grading/(__init__\.py|on_rank\.py|trusted/inside/.*|trusted/__init__\.py)")
HAS = (r"course_lib(\.lazy|\.(facts|pictures|reference|runtime)(\..*)?"
       r"|\.grading(\.on_rank|\.trusted|\.trusted\.inside(\..*)?|\.chapters\.06_zero\.on_rank)?)?")

FILES = (f"[path for folder, _, names in os.walk({str(ROOT)!r}) for name in names if not name.endswith('.pyc')"
         " and not (path := os.path.relpath(os.path.join(folder, name), "
         f"{str(ROOT / 'course_lib')!r})).startswith('../.venv') and not re.fullmatch({SEEN!r}, path)]")
MODULES = ("[name for name, module in sys.modules.items() if module and name.startswith('course_lib')"
           f" and not re.fullmatch({HAS!r}, name)]")
MEMORY = ("[each for each in gc.get_objects() if isinstance(each, type)"
          " and hasattr(each, 'judge') and hasattr(each, 'solve')]")


@pytest.mark.parametrize("mode", MODES)
def test_nothing_of_the_judges_is_in_a_ranks_files_or_modules_or_memory(grade, mode):
    files = FILES if mode == "required" else "[]"  # which only namespaces can hide
    look = f"    found = {files} + {MODULES} + {MEMORY}\n    assert not found, found[:9]\n"
    report = grade(f"import gc, os, re, sys\n{CALLS_HONEST}\ndef pass_on(tensor):\n{look}    return honest(tensor)\n",
                   mode=mode)
    assert points(report) == 2, repr(report)
    report = grade(f"import gc, os, re, sys\ndef my_clip_over_shards(pieces, max_norm):\n{look}"
                   "    text = vars(sys.modules['course_lib.grading.chapters.06_zero.on_rank'])\n"
                   "    raise RuntimeError(f'it has {sorted(text)}')\n", mode=mode, exercise=exercise("6.6"))
    assert "it has ['Any', 'Callable', 'Iterator', 'LR', 'Looks'" in report.cause and "judge" not in report.cause


LIBRARY = {
    "by name": "return dist.all_reduce(tensor)",
    "by another name": "from torch.distributed import all_gather as mine; mine([tensor], tensor)",
    "by a string": "getattr(dist, 'all_' + 'reduce')(tensor)",
    "by the module beneath": "import torch.distributed.distributed_c10d as c; getattr(c, 'broad' + 'cast')(tensor, 0)",
    "by the group's own method": "getattr(dist.group.WORLD, 'all' + 'reduce')(tensor).wait()",
    "by the backend": "dist.group.WORLD._get_backend(tensor.device).allreduce([tensor]).wait()",
    "past the dispatcher's first kernels": (
        "keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA); lists = [[tensor, tensor]], [tensor]; "
        "torch.ops.c10d.allgather_.default.redispatch(keys, *lists, dist.group.WORLD.boxed(), True, -1)"),
    "by a wrapped tensor": (
        "from torch.distributed.tensor import DTensor, Partial, init_device_mesh as mesh; "
        "DTensor.from_local(tensor, mesh('cpu', (2,)), [Partial()]).full_tensor()"),
    "by a sharded model": (
        "from torch.distributed.fsdp import fully_shard; fully_shard(torch.nn.Linear(4, 4))(torch.ones(4))"),
    "by the store": "dist.distributed_c10d._get_default_store().set('mine', 'a few words')",
    "in spite of the refusal": (
        "\n    try: getattr(dist, 'all_' + 'reduce')(tensor)\n    except BaseException: pass\n"
        "    dist._broadcast_coalesced(dist.group.WORLD, [tensor], 1 << 20, 0)"),
    "by the course's own": "import importlib; importlib.import_module('course_lib.' + 'collectives')",
    "by the library's file": "import ctypes; ctypes.CDLL(torch._C.__file__)",
}


@pytest.mark.parametrize("way", LIBRARY)
def test_a_librarys_collective_is_refused(grade, way):
    report = grade(CALLS_HONEST + f"\ndef pass_on(tensor):\n    {LIBRARY[way]}\n    return honest(tensor)\n")
    assert points(report) == 0
    assert any(words in repr(report) for words in ("write it with send and recv", "course_lib.collectives",
                                                   "dist.Store.set: what it sends is not counted", "by ctypes"))


ALL_REDUCE = ("_ZN4c10d16ProcessGroupGloo9allreduceERSt6vectorIN2at6TensorESaIS3_EERKNS_16AllreduceOptionsE",
              "libtorch_cpu.so")
BY_ADDRESS = """
import ctypes, time
import numpy as np
def start_of(library):
    return next(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if line.rstrip().endswith(library))
class At:
    def __init__(self, address):
        self.__array_interface__ = {"shape": (1,), "typestr": "<i8", "data": (address, False), "version": 3}
def pass_on(tensor):
    peek, mine = lambda address: int(np.asarray(At(address))[0]), tensor.clone()
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * 4)(start_of("LIBRARY") + OFFSET)
    backend, options = dist.group.WORLD._get_backend(tensor.device), dist.AllreduceOptions()
    memory = np.zeros(5, dtype=np.int64)
    at = memory.__array_interface__["data"][0]
    memory[:4] = tensor._cdata, at, at + 8, at + 8  # a tensor, and a vector of it
    call(at + 32, peek(id(backend) + 16), at + 8, peek(id(options) + 16))
    while torch.equal(tensor, mine):
        time.sleep(0.01)
    return tensor - mine  # the other one of two
"""


@in_namespaces
@pytest.mark.skipif(sys.platform != "linux", reason="the symbol is that of a Linux build")
def test_a_collective_that_no_refusal_in_the_process_could_see_is_seen_on_the_network(grade):
    symbol, library = ALL_REDUCE
    maps = Path("/proc/self/maps").read_text().splitlines()
    start, path = next((int(line.split("-")[0], 16), line.split()[-1]) for line in maps if line.endswith(library))
    offset = ctypes.cast(ctypes.CDLL(path)[symbol], ctypes.c_void_p).value - start
    attack = BY_ADDRESS.replace("LIBRARY", library).replace("OFFSET", str(offset))
    report = grade(f"{CALLS_HONEST}\n{attack}")
    assert points(report) == 0 and "as the messages on their network say" in repr(report), report


TRIES = """
def pass_on(tensor):
    import os, socket, subprocess
    for attempt in (lambda: open("/etc/passwd"), lambda: open("../gradebook.db", "a"), lambda: os.remove("/etc/mine"),
                    lambda: socket.socket(), lambda: subprocess.run(["true"]),
                    lambda: dist.group.WORLD._get_backend(tensor.device).allgather([[tensor]], [tensor])):
        try:
            attempt()
        except (OSError, RuntimeError):
            pass
    open("mine", "w").close()
    open(os.__file__).close()
    return honest(tensor)
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_teacher_hears_of_files_outside_sockets_programs_and_collectives_that_were_tried_and_of_nothing_else(mode):
    with Grader(mode, LIMITS) as grader:
        assert grader.report(EXERCISE, cells_above(*notebook(CALLS_HONEST + TRIES)), seed=1).passed
        assert grader.tried.split("; ") == [
            "called dist.all_gather, by Backend.allgather", "open /etc/passwd", "os.remove /etc/mine",
            "socket.__new__", "subprocess.Popen true", "write ../gradebook.db"]
        assert grader.report(EXERCISE, cells_above(*notebook(HONEST)), seed=1).passed and grader.tried == ""


FIND_CONNECTION = """
import os, pickle, socket, struct
def connection():
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            one = socket.socket(fileno=os.dup(fd))
            if one.family == socket.AF_UNIX:
                return one
        except OSError:
            pass
class Bomb:
    def __reduce__(self):
        return os.system, ("touch {marker}",)
def pass_on(tensor):
    payload = {payload}
    connection().sendall({header} + payload)
    os._exit(0)
"""
FORGED = {
    "a pickle that runs a command": ("pickle.dumps(Bomb())", "struct.pack('!cQ', b'A', len(payload))"),
    "words of an error": ("b'{\"kind\": 7, \"words\": [1]}'", "struct.pack('!cQ', b'E', len(payload))"),
    "a length without end": ("b''", "struct.pack('!cQ', b'A', 1 << 62)"),
    "nonsense": ("os.urandom(100_000)", "b''"),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_forged_messages_give_no_points_and_run_nothing(grade, forgery, tmp_path):
    marker = tmp_path / "ran"
    payload, header = FORGED[forgery]
    own = (FIND_CONNECTION.replace("{marker}", str(marker)).replace("{payload}", payload)
           .replace("{header}", header))
    assert points(grade(own)) == 0
    assert not marker.exists()


def written(form: str, numbers: bytes = b"") -> bytes:
    """An answer as a rank could write it that does not use `pack`."""
    text = f'["dict", ["answer", {form}], ["sent", ["list"]]]'.encode(errors="surrogatepass")
    return frames.LENGTH.pack(len(text)) + text + numbers


@pytest.mark.parametrize("answer", [torch.sparse_coo_tensor(size=(3,), check_invariants=True), {1, 2}, b"bytes",
                                    torch.nn.Parameter(torch.zeros(1)), torch.zeros(1, device="meta")])
def test_what_no_answer_holds_is_not_sent(answer):
    with pytest.raises((TypeError, NotImplementedError)):
        frames.pack(answer)


def test_an_answer_comes_back_as_it_was_sent():
    sent = {"answer": [1, 2.5, True, None, "\ud800", (1, [2]), {1: torch.eye(3)[1:].t(), "b": torch.tensor(3.5).half()},
                       torch.zeros(0, 4), torch.tensor([True, False])], "sent": [[1, 8]]}
    assert repr(replies.read([frames.pack(sent)])) == repr([sent])


HOSTILE = {
    "deep": "[" * 500_000, "numbers": '["list"' + ", 0" * 300_000 + "]", "objects": "[" + "{}, " * 200_000 + "1]",
    "lists": '["list"' + ', ["list"]' * 87_000 + ", 0" * 20_000 + "]",
    "a huge tensor": '["tensor", "float64", [1000000, 1000000]]', "no such numbers": '["tensor", "uint8", [9]]',
    "a long empty tensor": '["tensor", "float64", [1000000000000, 0]]', "half a size": '["tensor", "float64", [0.5]]',
    "a negative size": '["tensor", "float64", [-1]]', "a key that is none": '["dict", [["list"], 1]]',
    "eleven lists": '["list", ' * 11 + "1" + "]" * 11, "no name": "[[1]]", "too long": " " * (1 << 20),
    "a number of a million digits": "1" * 1_000_000, "nonsense": "\ud800",
}


@pytest.mark.parametrize("data", [*map(written, HOSTILE.values()), pickle.dumps({"answer": 1}), b"", frames.pack([1]),
                                  frames.pack({"answer": torch.zeros((1 << 23) + 1, dtype=torch.uint8), "sent": []})],
                         ids=[*HOSTILE, "pickle", "nothing", "a list", "too many numbers"])
def test_a_result_of_a_form_or_size_that_no_answer_has_is_refused_at_once(data):
    start = time.process_time()
    with pytest.raises(replies.NoAnswers, match="the result"):
        replies.read([data])
    assert time.process_time() - start < 1


def test_a_message_is_refused_by_its_length_before_it_arrives():
    with pytest.raises(frames.BadFrame, match="at most 10"):
        frames.Inbox(limit=10).feed(frames.HEADER.pack(b"A", 11))


SOURCES = {  # each would take the parser's memory, time or stack
    "a long sum": "x = " + "+".join(["1"] * 20_000), "elif": "if x: 1\n" + "elif x: 1\n" * 3000,
    "attributes": "x" + ".y" * 5000, "minus": "-" * 100_000 + "1", "lists": "[" * 5000, "null": "x = '\0'",
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_no_parser_takes_costs_its_own_cell(name):
    def prepare(own: str, *above: str) -> student_code.Code:
        return main.read_code(cells_above(*notebook(own, *above)), None, "pass_on")

    assert prepare("def pass_on(x):\n    return x\n", SOURCES[name]).refusal is None
    assert "pass_on does not parse: " in prepare(SOURCES[name]).refusal


def test_sources_that_take_too_long_or_end_the_parser_are_refused_and_nothing_else_happens(monkeypatch):
    monkeypatch.setattr(main, "READING_S", 1)
    for source in ("%a\n" * 501, "f'" + "{x}" * 300_000 + "'"):
        refusal = main.read_code(cells_above(*notebook(WRONG, source)), None, "pass_on").refusal
        assert "cannot be read: that takes more than" in refusal
    monkeypatch.setattr(student_code, "prepare", lambda *_: os._exit(3))
    assert "cannot be read" in main.read_code([], None, "").refusal


OWN_LOAD = {
    "children": "    for _ in range(30):\n        if os.fork() == 0:\n            while True: pass\n",
    "threads": "    x = torch.ones(900, 900)\n    def load():\n        while True: x @ x\n"
               "    for _ in range(3): threading.Thread(target=load).start()\n",
    "a long answer in each trial": "    time.sleep(1.5)\n    return honest(tensor)\n",
}


@pytest.mark.parametrize("way", OWN_LOAD)
def test_a_submission_gets_no_time_by_a_load_of_its_own_and_no_more_than_three_limits(way, monkeypatch):
    monkeypatch.setattr(PassOn, "trials", lambda self, seed, trials=PassOn.trials: trials(self, seed) * 9)
    own = f"{IMPORTS}import threading\n{CALLS_HONEST}\ndef pass_on(tensor):\n{OWN_LOAD[way]}    while True: pass\n"
    start = time.monotonic()
    with Grader(MODES[0], IMPATIENT) as grader:
        report = grader.report(EXERCISE, cells_above(*notebook(own)), 1)
    assert report.verdict is Verdict.NOT_JUDGED and grader.broken is None and time.monotonic() - start < 30, report


# ---- what is left behind, and what can be reached

FORKS = """
import os, time
def pass_on(tensor):
    for number in range(50):
        try:
            if os.fork() == 0:
                if number % 2:  # away from the rank's session, and from its parent
                    os.setsid()
                    os.fork() and os._exit(0)
                while True:
                    time.sleep(1)
        except OSError:
            pass
    return honest(tensor)
"""


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_left_of_fifty_children(mode):
    cells = cells_above(*notebook(CALLS_HONEST + FORKS))
    with Grader(mode, LIMITS) as grader:
        grader.report(EXERCISE, cells, 1)
        worker = grader.worker()
        if mode == "required":  # the worker lives on for the next exercise; its ranks and theirs do not
            assert len(processes_with(context.RANK_MARK, worker.mark)) <= 2  # `unshare` and the worker
    assert processes_with(context.RANK_MARK, worker.mark) == []


# Folders of every system in which neither the course nor its Python lie.
NOT_NEEDED = ["/etc/passwd", *(folder for folder in ("/home", "/root", "/var", "/opt")
                               if not any(os.path.realpath(needed).startswith(folder)
                                          for needed in (ROOT, sys.prefix, sys.base_prefix)))]


FINDINGS = {
    "solutions": f"os.path.exists({str(ROOT / 'solutions')!r})",
    "tests": f"os.path.exists({str(ROOT / 'tests' / 'grading' / 'seekers.py')!r})",
    "course": f"not set(os.listdir({str(ROOT)!r})) <= {{'course_lib', '.venv'}}",
    "system": f"any(map(os.path.exists, {NOT_NEEDED!r}))",
    "writable": f"any(os.access(folder, os.W_OK) for folder in ({str(ROOT)!r}, {sys.prefix!r}, '/', '/run', '/usr'))",
    "processes": "[int(pid) for pid in os.listdir('/proc') if pid.isdigit()] != [1]",
    "scratch": "len(os.listdir(os.environ['HOME'])) > 0",
    "store": "any(os.access(f'/run/grader/{name}', os.W_OK) for name in ['', *os.listdir('/run/grader')])",
    "network": "[line.split(':')[0].strip() for line in list(open('/proc/net/dev'))[2:]] != ['lo']",
    "environment": "any(name.startswith(('PYTEST', 'PYTHONPATH', 'USER')) for name in os.environ)",
    "capabilities": "open('/proc/self/status').read().count('0000000000000000') < 5",  # CapInh, Prm, Eff, Bnd and Amb
    "root": "os.geteuid() == 0 and open('/proc/self/uid_map').read().split()[2] == '4294967295'",  # the machine's own
}


@in_namespaces
def test_inside_there_is_nothing_to_find(grade):
    findings = "".join(f"    if {found}:\n        there.append({name!r})\n" for name, found in FINDINGS.items())
    report = grade(f"import errno, os, socket\n{CALLS_HONEST}\ndef pass_on(tensor):\n    there = []\n{findings}"
                   "    assert not there, there\n    return honest(tensor)\n")
    assert points(report) == 2, repr(report)


@in_namespaces
def test_a_submission_that_writes_into_the_grader_helps_neither_itself_nor_the_next(grade):
    files = [ROOT / "course_lib/grading" / name for name in ("report.py", "compare.py", "trusted/inside/rank.py")]
    before = [file.read_bytes() for file in files]
    own = f"for file in {list(map(str, files))!r}:\n    open(file, 'a').write('# mine')\n{WRONG}"
    assert points(grade(own)) == 0
    assert points(grade(WRONG)) == 0
    assert [file.read_bytes() for file in files] == before


SIDE_WAYS = {
    "a file": """
def pass_on(tensor):
    mine, theirs = (f"{os.environ['HOME']}/covert-{os.getppid()}-{r}" for r in (dist.get_rank(), 1 - dist.get_rank()))
    open(mine + ".new", "wb").write(tensor.numpy().tobytes())
    os.rename(mine + ".new", mine)
    while not os.path.exists(theirs): time.sleep(0.01)
    return torch.frombuffer(bytearray(open(theirs, "rb").read()), dtype=tensor.dtype)
""",
    "the network": """
def pass_on(tensor):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("127.0.0.1", 40000 + dist.get_rank()))
    time.sleep(0.3)
    data = tensor.numpy().tobytes()
    for i in range(0, len(data), 16384):
        one.sendto(data[i:i + 16384], ("127.0.0.1", 40001 - dist.get_rank()))
    return torch.frombuffer(bytearray(b"".join(one.recv(16384) for _ in range(8))), dtype=tensor.dtype)
""",
    "a local socket": """
def pass_on(tensor):
    global one
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.bind(f"\\0covert-{dist.get_rank()}")
    time.sleep(0.3)
    one.sendto(tensor.numpy().tobytes(), f"\\0covert-{1 - dist.get_rank()}")
    return torch.frombuffer(bytearray(one.recv(1 << 20)), dtype=tensor.dtype)
""",
}
IMPORTS = "import os, socket, time, torch\nimport torch.distributed as dist\n"


@in_namespaces
@pytest.mark.parametrize("way, exercise, words", [
    ("a file", EXERCISE, "did not finish within 2 s"),
    ("the network", EXERCISE, "Operation not permitted"),
    ("a local socket", PassOnSmall(), "Operation not permitted"),
])
def test_data_that_goes_around_the_process_group_is_stopped_or_seen(grade, way, exercise, words):
    report = grade(IMPORTS + SIDE_WAYS[way], limits=IMPATIENT, exercise=exercise)
    assert points(report) == 0
    assert words in repr(report)


# Each is a way around the count of bytes or the limit of memory, and is refused in every mode; by a program, as the
# filter holds there too and ctypes is refused in the rank itself.
PROGRAM = """
import ctypes, fcntl, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
TRIES = {
    "messages of the kernel": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2),
    "a local socket": lambda: socket.socket(socket.AF_UNIX),
    "a pair of them": lambda: socket.socketpair(),
    "locks": lambda: fcntl.lockf(open(os.__file__), fcntl.LOCK_SH),
    "locks, of open files": lambda: fcntl.fcntl(open(os.__file__), 37, struct.pack("hhqqi", 0, 0, 0, 1, 0)),
    "locks, with more bits than are looked at": lambda: call(
        "fcntl", open(os.__file__).fileno(), ctypes.c_long((1 << 32) + fcntl.F_SETLK), bytes(32)),
    "a lock of the whole file": lambda: fcntl.flock(open(os.__file__), fcntl.LOCK_SH),
    "who opens a file": lambda: call("inotify_init1", 0),
    "who has read a file": lambda: os.preadv(os.open(os.__file__, 0), [bytearray(8)], 0, os.RWF_NOWAIT),
    "a file in memory": lambda: os.memfd_create("mine"),
    "a segment of memory": lambda: call("shmget", 0, 1 << 20, 0o1600),
    "a queue of messages": lambda: call("msgget", 0, 0o1600),
    "namespaces": lambda: call("unshare", 0x10000000),
    "many open files": lambda: [os.pipe() for _ in range(70)],
}
allowed = []
for name, attempt in TRIES.items():
    try:
        attempt()
    except OSError:
        continue
    allowed.append(name)
print(f"of {len(TRIES)} allowed: {allowed}", end="")
"""
SYSTEM = f"""
import subprocess, sys
def pass_on(tensor):
    raise RuntimeError(subprocess.run([sys.executable, "-c", {PROGRAM!r}], capture_output=True, text=True).stdout)
"""


@pytest.mark.parametrize("mode", MODES)
def test_no_system_call_leads_around_the_counters_and_limits(grade, mode):
    assert "of 14 allowed: []" in repr(grade(SYSTEM, mode=mode))


def test_without_namespaces_bytes_that_took_another_way_are_missed_in_the_count(grade):
    report = grade(IMPORTS + SIDE_WAYS["a file"], mode="none")
    assert points(report) == 0
    assert "the least that can carry it" in repr(report)
