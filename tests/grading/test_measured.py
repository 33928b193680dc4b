"""What a report calls measured was measured on the answer it reports on, and is never the bound."""

import pytest

from course_lib.grading.exercise import SentBytes
from course_lib.grading.registry import exercise
from course_lib.grading.selfstudy import check
from course_lib.grading.spent import Judgement, Spent
from course_lib.grading.trusted import sandbox
from course_lib.grading.trusted.grader import Grader
from course_lib.grading.trusted.worker import Limits

HEAD = "import torch\nimport torch.distributed as dist\n"

# Right results that cost too much, and what the report has to say of the first trial.
WASTEFUL = {
    "2.1": ("""
def my_ring_reduce_scatter(tensor):  # whole tensors go around
    n, r = dist.get_world_size(), dist.get_rank()
    total, travelling = tensor.clone(), tensor.clone()
    for _ in range(n - 1):
        received = torch.empty_like(tensor)
        sending = dist.isend(travelling, (r + 1) % n)
        dist.recv(received, (r - 1) % n)
        sending.wait()
        travelling = received
        total += travelling
    return total.chunk(n)[r].clone()
""", "sent at most 16 B to one neighbour a rank, 8 B allowed"),
    "3.1": ("""
def my_average_gradients(model, num_rows):  # everything twice
    total = torch.tensor(float(num_rows))
    dist.all_reduce(total)
    for share in (num_rows / total, 1 / dist.get_world_size()):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= share
                dist.all_reduce(parameter.grad)
""", "took 3 calls, 2 allowed; sent at most 36 B a rank, 144 B allowed"),
}


def answer(number, source):
    names = {"__name__": "__main__"}
    exec(HEAD + source, names)
    return names[exercise(number).function]


@pytest.mark.parametrize("number", WASTEFUL)
def test_a_right_but_wasteful_answer_sees_its_own_figures_beside_the_bound(number):
    source, words = WASTEFUL[number]
    report = check(number, answer(number, source))
    assert not report.passed and ", but over budget: " in report.cause
    assert words in report.measured


@pytest.mark.ci
def test_for_marks_only_what_the_system_or_the_grader_counted_is_shown():
    with Grader("auto", Limits(trial_s=30.0)) as grader:
        reports = {number: grader.report(exercise(number), [{"source": HEAD + WASTEFUL[number][0], "name": "own",
                                                             "own": True}], seed=1) for number in WASTEFUL}
    assert not any(report.passed for report in reports.values())
    assert "calls" not in reports["3.1"].measured
    if sandbox.tool("ss"):
        assert ("sent at most 6.3 MB to one neighbour a rank, 786.4 kB allowed (the operating system's count, with "
                "headers)") in reports["2.1"].measured
        assert "the operating system's count, with headers and gloo's own algorithm" in reports["3.1"].measured


def test_what_ranks_claim_is_left_out_where_it_proves_nothing():
    judged = Judgement("2 ranks", None, [Spent("took", 3, 4, "call", claimed=True), Spent("sent", 1 << 20, 1 << 20)])
    assert judged.figures() == "2 ranks: took 3 calls, 4 allowed; sent 1.0 MB, 1.0 MB allowed"
    assert judged.figures(believed=False) == "2 ranks: sent 1.0 MB, 1.0 MB allowed"


@pytest.mark.parametrize("spent, words", [
    (Spent("took", 1, 1, "call"), None),
    (Spent("took", 2, 1, "call", why="once will do"), "over budget: it took 2 calls, where 1 will do: once will do"),
    (Spent("sent", 1100, 1024, rank=2, slack=100), None),
    (Spent("sent", 100_001, 100_000, rank=2), "over budget: rank 2 sent 100,001 B, where 100,000 B will do"),
    (Spent("sent", 1200, 1024, rank=2, slack=100), "over budget: rank 2 sent 1.2 kB, where 1.0 kB will do"),
    (Spent("idle", 0.162, 0.125, "share", who="the ranks are"),
     "over budget: the ranks are idle 16.2 %, where 12.5 % will do"),
])
def test_a_budget_complains_of_what_is_beyond_its_slack_and_of_nothing_else(spent, words):
    assert spent.complaint == words


def test_headers_are_said_to_be_in_the_systems_count_and_small_ones_are_not_shown():
    asked = exercise("2.1")
    small, *_, large = asked.trials(0)
    for trial, shown in ((small, False), (large, True)):
        n, bound = trial.world_size, asked.bound(trial)
        answers = [{"returned": chunk} for chunk in asked.solve(trial.inputs)]
        sent = [[bound + 100 if to in ((rank + 1) % n, (rank - 1) % n) else 0 for to in range(n)] for rank in range(n)]
        figures = asked.judge(trial, answers, SentBytes(sent, exact=False)).figures(believed=False)
        assert ("with headers" in figures) == shown
        assert asked.judge(trial, answers, SentBytes(sent, exact=True)).figures(believed=False) == ""  # the ranks' own
