"""TrustedGrade against students who want points without the work, and for those whose right answer looks odd."""

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbgrader import utils

from course_lib.grading import frames, registry, replies, sandbox, trusted
from course_lib.grading.isolated import IsolatedWorker, Limits
from course_lib.grading.report import Report, Verdict
from course_lib.runtime import context
from tests.class_exercise import HONEST, PassOn, PassOnSmall

ROOT = Path(__file__).resolve().parent.parent
NAMESPACES = sandbox.why_no_namespaces() is None
MODES = ["none", *(["required"] if NAMESPACES else [])]
in_namespaces = pytest.mark.skipif(not NAMESPACES, reason=f"no namespaces here: {sandbox.why_no_namespaces()}")
LIMITS = Limits(trial_s=20.0)
IMPATIENT = Limits(trial_s=2.0)
EXERCISE = PassOn()
WRONG = "def pass_on(tensor):\n    return tensor\n"
CALLS_HONEST = HONEST.replace("def pass_on", "def honest")  # for cells that do something and then answer rightly

Grade = Callable[..., Report]


@pytest.fixture(scope="module")
def graders() -> Iterator[dict]:
    made: dict = {}
    yield made
    for grader in made.values():
        grader.__exit__()


@pytest.fixture
def grade(graders: dict) -> Grade:
    """The report on a solution cell, `above` being the sources of other cells before it."""
    def report(own: str, *above: str, mode: str = MODES[-1], limits: Limits = LIMITS, exercise=EXERCISE) -> Report:
        key = mode, limits
        if key not in graders:
            graders[key] = trusted.Grader(mode, limits, [PassOn(), PassOnSmall()])
        return graders[key].report(exercise, trusted.cells_above(*notebook(own, *above)), seed=1)
    return report


def notebook(own: str, *above: str):
    """A notebook and the place of its check cell."""
    cells = [*(new_code_cell(source) for source in above), new_code_cell(own), new_code_cell('check("0.1", pass_on)')]
    for cell, grade_id in zip(cells[-2:], ("pass_on", "check_pass_on")):
        is_check = grade_id.startswith("check")
        cell.metadata.nbgrader = {"grade": is_check, "solution": not is_check, "locked": is_check, "task": False,
                                  "grade_id": grade_id, "schema_version": 3} | ({"points": 2} if is_check else {})
    return new_notebook(cells=cells), len(cells) - 1


def points(report: Report) -> float:
    """What nbgrader itself reads from the outputs made for `report`."""
    nb, check = notebook("")
    nb.cells[check].outputs = [trusted.output(report, "")]
    return utils.determine_grade(nb.cells[check])[0]


def survivors(worker: IsolatedWorker) -> list[psutil.Process]:
    def carries(process: psutil.Process) -> bool:
        try:
            return process.environ().get(context.RANK_MARK) == worker.mark and process.status() != "zombie"
        except psutil.Error:
            return False
    return [process for process in psutil.process_iter() if carries(process)]


# ---- honest answers keep their marks

@pytest.mark.parametrize("mode", MODES)
def test_a_right_answer_gets_all_points_and_a_wrong_one_none(grade, mode):
    assert points(grade(HONEST, mode=mode)) == 2
    wrong = grade(WRONG, mode=mode)
    assert points(wrong) == 0
    assert "every rank returns its own tensor" in repr(wrong)


@pytest.mark.parametrize("above", [
    "import warnings, sys\nwarnings.warn('old')\nprint('hm', file=sys.stderr)",
    "this does not parse (",
    "while True: pass",
    "import os\nos._exit(3)",
    "raise SystemExit",
    "%matplotlib inline\n!ls\nx = !ls\nimport torch",
    "%%bash\nrm -rf somewhere",
    "import a_package_that_nobody_has\nimport torch",
])
def test_what_stands_in_other_cells_costs_nothing(grade, above):
    assert points(grade(HONEST, above)) == 2


@pytest.mark.parametrize("own", [
    "%%time\n" + HONEST,
    HONEST + "\n%timeit pass_on\n",
    HONEST + "\npass_on(torch.ones(2), torch.ones(3))\nimport sys\nsys.exit(1)\n",
    HONEST.replace("    r, n", "    import sys, warnings; warnings.warn('old'); print('!', file=sys.stderr)\n    r, n"),
    HONEST.replace("    r, n", "    [print('x' * 100_000) for _ in range(300)]\n    r, n"),
    HONEST.replace("return received", "return torch.nn.Parameter(received)"),
])
def test_a_right_answer_with_something_beside_it_gets_all_points(grade, own):
    assert points(grade(own)) == 2


def test_helpers_of_the_students_own_are_there_and_assignments_of_plain_values_too(grade):
    helper = "import torch.distributed as dist\nSTEP = 1 + 0\nright = lambda: (dist.get_rank() + STEP) % 2\n"
    assert points(grade(HONEST.replace("(r + 1) % n", "right()"), helper)) == 2


def test_a_definition_below_the_stub_counts_as_it_does_in_the_notebook(grade):
    nb, check = notebook("def pass_on(tensor):\n    raise NotImplementedError\n")
    nb.cells.insert(check, new_code_cell(HONEST))
    cells = trusted.cells_above(nb, check + 1)
    with trusted.Grader(MODES[-1], LIMITS, [EXERCISE]) as grader:
        assert grader.report(EXERCISE, cells, 1).passed


# ---- no answer, no marks

@pytest.mark.parametrize("own", ["", "def pass_on(tensor):\n    raise NotImplementedError\n", "pass_off = 3"])
def test_what_is_not_written_is_called_so(grade, own):
    report = grade(own)
    assert points(report) == 0
    assert report.verdict is Verdict.NOT_WRITTEN


@pytest.mark.parametrize("body, words, mode", [
    ("import sys; sys.exit(0)", "SystemExit", "none"),
    ("import os; os._exit(0)", "ended without an answer", "none"),
    ("return torch.ones(1 << 36)", "allocate", "none"),
    ("import sys; sys.exit(0)", "SystemExit", MODES[-1]),
    ("import os; os._exit(0)", "ended without an answer", MODES[-1]),
    ("return torch.ones(1 << 36)", "allocate", MODES[-1]),
    ("x = bytearray(1 << 32)", "MemoryError", MODES[-1]),
    ("return 1 / 0", "ZeroDivisionError", MODES[-1]),
    ("return torch.sparse_coo_tensor(size=(3,))", "torch.sparse_coo tensor", MODES[-1]),
    ("return None", "nothing (None)", MODES[-1]),
])
def test_a_function_that_fails_costs_its_own_points_and_hears_why(grade, mode, body, words):
    report = grade(f"import torch\nimport torch.distributed as dist\ndef pass_on(tensor):\n    {body}\n", mode=mode)
    assert points(report) == 0
    assert words in repr(report)


def test_a_cell_that_does_not_parse_is_named_with_its_line(grade):
    report = grade("def pass_on(tensor:\n    pass")
    assert points(report) == 0
    assert "does not parse" in repr(report) and "line 1" in repr(report)


def test_one_rank_that_ends_is_named_while_the_others_still_wait(grade):
    body = "    os._exit(0) if dist.get_rank() == 1 else time.sleep(1000)\n"
    report = grade("import os, time\nimport torch.distributed as dist\ndef pass_on(tensor):\n" + body)
    assert "rank 1 ended without an answer" in repr(report)


def test_an_operation_that_torch_does_not_know_is_not_called_unwritten(grade):
    report = grade("import torch\ndef pass_on(tensor):\n    return torch.ops.aten.relu(tensor.to_sparse().bool())\n")
    assert "NotImplementedError" in repr(report)
    assert report.verdict is Verdict.WRONG


def test_a_helper_that_is_not_written_yet_is_named(grade):
    report = grade("def pass_on(tensor):\n    return helper(tensor)", "def helper(x):\n    raise NotImplementedError()")
    assert report.verdict is Verdict.NOT_WRITTEN
    assert "it calls helper, which is not written yet" in repr(report)


def test_a_judge_that_raises_gives_no_points_and_the_teacher_hears_of_it(monkeypatch):
    monkeypatch.setattr(PassOn, "judge", lambda *_: 1 / 0)
    with trusted.Grader(MODES[-1], LIMITS, [EXERCISE]) as grader:
        report = grader.report(EXERCISE, trusted.cells_above(*notebook(HONEST)), 1)
        assert not report.passed
        assert "ZeroDivisionError" in grader.broken


@pytest.mark.parametrize("own, words", [
    ("def pass_on(tensor):\n    while True: pass", "did not finish within 2 s"),
    ("import time\ndef pass_on(tensor):\n    time.sleep(1000)", "did not finish within 2 s"),
    ("while True: pass", "the solution cell itself did not end"),
    ("import torch.distributed as dist\ndef pass_on(tensor):\n    dist.recv(tensor, 1 - dist.get_rank())",
     "a receive that nobody sends to"),
])
def test_an_endless_run_is_ended_at_the_limit(grade, own, words):
    report = grade(own, limits=IMPATIENT)
    assert points(report) == 0
    assert words in repr(report)


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
        "import course_lib.grading.tensors as t\nt.TensorExercise.judge = lambda *_: None\n"
        "import course_lib.grading.exercise as e\ne.Exercise.judge = lambda *_: None\n"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_no_change_to_the_notebooks_machinery_gives_points(grade, cheat):
    body = "return tensor.as_subclass(Yes)" if "Yes" in CHEATS[cheat] else "return tensor"
    assert points(grade(f"{CHEATS[cheat]}\ndef pass_on(tensor):\n    {body}\n", CHEATS[cheat])) == 0


def test_outputs_that_came_with_the_submission_are_removed_and_never_scored(monkeypatch):
    monkeypatch.setattr(registry, "exercise", lambda number: EXERCISE)
    nb, check = notebook(WRONG)
    for cell in nb.cells:
        cell.outputs = [new_output("execute_result", {"text/plain": "2"}, execution_count=1)]
    graded, _ = trusted.TrustedGrade(isolation=MODES[-1], seed=1).preprocess(nb, {})
    assert graded.cells[0].outputs == []
    assert [output.output_type for output in graded.cells[check].outputs] == ["error"]
    assert utils.determine_grade(graded.cells[check])[0] == 0


@pytest.mark.parametrize("source", ["", "pass", 'check("9.9", f)', 'check("2.1", other)', "check('2.1')"])
def test_a_check_cell_without_its_check_is_an_error_and_not_full_marks(source):
    with pytest.raises(ValueError, match="expected"):
        trusted.exercise_of(source)


LIBRARY = {
    "by name": "return dist.all_reduce(tensor)",
    "by another name": "from torch.distributed import all_gather as mine; mine([tensor], tensor)",
    "by a string": "getattr(dist, 'all_' + 'reduce')(tensor)",
    "by the module beneath": "import torch.distributed.distributed_c10d as c; getattr(c, 'broad' + 'cast')(tensor, 0)",
    "by the group's own method": "getattr(dist.group.WORLD, 'all' + 'reduce')(tensor).wait()",
    "by the course's own": "import importlib; importlib.import_module('course_lib.' + 'collectives')",
}


@pytest.mark.parametrize("way", LIBRARY)
def test_a_librarys_collective_is_refused(grade, way):
    report = grade(CALLS_HONEST + f"\ndef pass_on(tensor):\n    {LIBRARY[way]}\n    return honest(tensor)\n")
    assert points(report) == 0
    assert "write it with send and recv" in repr(report) or "course_lib.collectives" in repr(report)


def test_the_word_reduce_alone_is_no_librarys_collective(grade):
    own = HONEST + "\nfrom functools import reduce\ngather = torch.gather\ndef scatter(x): return x.broadcast_to(2)\n"
    assert points(grade(own)) == 2


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


@pytest.mark.parametrize("value", [
    torch.zeros(1).expand(1 << 40),
    torch.sparse_coo_tensor(size=(3,), check_invariants=True),
    {1, 2},
    [[[[[[[[[[[[1]]]]]]]]]]]],
    b"bytes",
    torch.zeros(200),
], ids=["huge", "sparse", "set", "deep", "bytes", "too many bytes"])
def test_a_result_of_a_form_or_size_that_no_answer_has_is_refused(value):
    file = io.BytesIO()
    torch.save({"answer": value, "sent": []}, file)
    with pytest.raises(replies.Failed):
        replies.read(file.getvalue(), max_bytes=500)


def test_a_compressed_result_is_refused_before_it_is_unpacked():
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save({"answer": torch.zeros(1 << 20), "sent": []}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    with pytest.raises(replies.Failed, match="not as torch.save writes it"):
        replies.read(packed.getvalue(), max_bytes=1 << 30)
    with pytest.raises(replies.Failed):
        replies.read(pickle.dumps({"answer": 1}), max_bytes=1 << 30)


def test_a_message_is_refused_by_its_length_before_it_arrives():
    with pytest.raises(frames.BadFrame, match="at most 10"):
        frames.Inbox(limit=10).feed(frames.HEADER.pack(b"A", 11))


# ---- what is left behind, and what can be reached

FORKS = """
import os, time
def pass_on(tensor):
    for _ in range(50):
        try:
            if os.fork() == 0:
                {leave}
                while True:
                    time.sleep(1)
        except OSError:
            pass
    return honest(tensor)
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("leave", ["pass", "os.setsid(); os.fork() and os._exit(0)"])
def test_nothing_is_left_of_fifty_children(mode, leave):
    cells = trusted.cells_above(*notebook(CALLS_HONEST + FORKS.replace("{leave}", leave)))
    with trusted.Grader(mode, LIMITS, [EXERCISE]) as grader:
        grader.report(EXERCISE, cells, 1)
        worker = grader.worker()
        if mode == "required":  # the worker lives on for the next exercise; its ranks and theirs do not
            assert len(survivors(worker)) <= 2  # `unshare` and the worker
    assert survivors(worker) == []


@in_namespaces
@pytest.mark.parametrize("finding", [
    f"os.path.exists({str(ROOT / 'solutions')!r}) or os.path.exists({str(ROOT / 'tests' / 'test_layers.py')!r})",
    f"not set(os.listdir({str(ROOT)!r})) <= {{'course_lib', '.venv', 'tests'}}",
    "os.path.exists('/home') or os.path.exists('/var') or os.path.exists('/etc/passwd')",
    f"any(os.access(folder, os.W_OK) for folder in ({str(ROOT)!r}, {sys.prefix!r}, '/', '/run', '/usr'))",
    "[int(pid) for pid in os.listdir('/proc') if pid.isdigit()] != [1]",
    "len(os.listdir('/tmp')) > 0",
    "any(os.access(f'/run/grader/{name}', os.W_OK) for name in ['', *os.listdir('/run/grader')])",
    "socket.socket().connect_ex(('192.0.2.1', 80)) != errno.ENETUNREACH",
    "any(name.startswith(('PYTEST', 'PYTHONPATH', 'USER')) for name in os.environ)",
    "open('/proc/self/status').read().count('0000000000000000') < 5",  # CapInh, Prm, Eff, Bnd and Amb
    "os.geteuid() == 0 and open('/proc/self/uid_map').read().split()[2] == '4294967295'",  # the machine's own root
], ids=["solutions", "course", "system", "writable", "processes", "scratch", "store", "network",
        "environment", "capabilities", "root"])
def test_inside_there_is_nothing_to_find(grade, finding):
    report = grade(f"import errno, os, socket\n{CALLS_HONEST}\ndef pass_on(tensor):\n    assert not ({finding})\n"
                   "    return honest(tensor)\n")
    assert points(report) == 2, repr(report)


@in_namespaces
def test_a_submission_that_writes_into_the_grader_helps_neither_itself_nor_the_next(grade):
    files = [ROOT / "course_lib/grading" / name for name in ("trusted.py", "tensors.py", "isolated_rank.py")]
    before = [file.read_bytes() for file in files]
    own = f"for file in {list(map(str, files))!r}:\n    open(file, 'a').write('# mine')\n{WRONG}"
    assert points(grade(own)) == 0
    assert points(grade(WRONG)) == 0
    assert [file.read_bytes() for file in files] == before


SIDE_WAYS = {
    "a file": """
def pass_on(tensor):
    mine, theirs = (f"/tmp/covert-{os.getppid()}-{r}" for r in (dist.get_rank(), 1 - dist.get_rank()))
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
    ("the network", EXERCISE, "another way than the process group"),
    ("a local socket", PassOnSmall(), "another way than the process group"),
])
def test_data_that_goes_around_the_process_group_is_stopped_or_seen(grade, way, exercise, words):
    report = grade(IMPORTS + SIDE_WAYS[way], limits=IMPATIENT, exercise=exercise)
    assert points(report) == 0
    assert words in repr(report)


def test_without_namespaces_bytes_that_took_another_way_are_missed_in_the_count(grade):
    report = grade(IMPORTS + SIDE_WAYS["a file"], mode="none")
    assert points(report) == 0
    assert "the least that can carry it" in repr(report)


# ---- the protection that was asked for, or a word about what is missing

def test_where_unshare_works_the_full_isolation_is_there():
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    try:
        works = subprocess.run(["unshare", *user, "--mount", "--pid", "--net", "--fork", "--mount-proc", "true"],
                               capture_output=True).returncode == 0
    except OSError:
        works = False
    assert not works or sandbox.why_no_namespaces() is None


def test_required_isolation_is_never_replaced_by_less(monkeypatch):
    monkeypatch.setattr(sandbox, "why_no_namespaces", lambda: "no such thing")
    with pytest.raises(RuntimeError, match="no such thing"):
        sandbox.choose("required")
    assert "no such thing" in trusted.footnotes(1, sandbox.choose("auto"))
    with pytest.raises(ValueError, match="expected"):
        sandbox.choose("some")


def test_the_feedback_holds_the_seed_and_what_protection_was_missing():
    assert "seed 7" in trusted.footnotes(7, sandbox.Isolation(True))
    assert "less protection" in trusted.footnotes(7, sandbox.choose("none"))


def test_where_nobody_outside_can_count_the_ranks_do_and_it_is_said(monkeypatch):
    tool = sandbox.tool
    monkeypatch.setattr(sandbox, "tool", lambda name: None if name == "ss" else tool(name))
    isolation = sandbox.choose("none")
    assert any("forged" in line for line in isolation.missing)
    with IsolatedWorker(isolation, LIMITS, [EXERCISE]) as worker:
        worker.prepare(EXERCISE, trusted.cells_above(*notebook(HONEST)))
        _, traffic = worker.trial(EXERCISE.trials(1)[0])
    assert traffic.exact and traffic.sent == [[0, 4 * EXERCISE.N], [4 * EXERCISE.N, 0]]


# ---- the count

@pytest.mark.parametrize("mode", MODES)
def test_the_systems_count_of_a_ring_is_within_one_percent_of_the_formula(mode):
    exercise = registry.exercise("2.1")
    trial = next(trial for trial in exercise.trials(1) if 4 * trial.inputs[0][0].numel() >= 1 << 18)
    n, M = trial.world_size, 4 * trial.inputs[0][0].numel()
    ring = """
import torch, torch.distributed as dist
def my_ring_reduce_scatter(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = tensor.chunk(n)
    partial = chunks[r - 1]
    for step in range(n - 1):
        received = torch.empty_like(partial)
        sending = dist.isend(partial, (r + 1) % n)
        dist.recv(received, (r - 1) % n)
        sending.wait()
        partial = received + chunks[(r - 2 - step) % n]
    return partial
"""
    with IsolatedWorker(sandbox.choose(mode), LIMITS) as worker:
        worker.prepare(exercise, [{"source": ring, "name": "ring", "own": True}])
        answers, traffic = worker.trial(trial)
    assert exercise.judge(trial, answers, traffic) is None
    assert not traffic.exact
    for rank in range(n):
        assert traffic.sent[rank][(rank + 1) % n] == pytest.approx((n - 1) / n * M, rel=0.01)
        assert traffic.sent_by(rank) == pytest.approx((n - 1) / n * M, rel=0.01)
