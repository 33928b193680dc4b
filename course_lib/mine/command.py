"""`python -m course_lib.train --mine workspace/exercises`: the command's run, with the reader's answers in it."""

import sys
from argparse import Namespace
from collections.abc import Callable

from course_lib.hybrid_parallel import TrainingReport
from course_lib.mine.find import find
from course_lib.mine.ledger import AnswerFailed
from course_lib.mine.outcome import Outcome
from course_lib.mine.put import TrainedBy
from course_lib.runtime import LaunchError, context, launch

OUTPUTS = ("save", "metrics", "plot")  # of the run itself; the one to compare with leaves nothing behind


def run(train: Callable[[Namespace], TrainingReport], arguments: Namespace, world_size: int, timeout: float
        ) -> TrainingReport:
    """`train` on `world_size` ranks with the answers in arguments.mine, and once more on one process, to compare.

    SystemExit with what is wrong, in a line or a few: no such folder, an answer that fails in training.
    """
    if context.under_torchrun():
        raise SystemExit("--mine checks your answers on ranks of its own: expected this command without torchrun")
    try:
        answers = find(arguments.mine, arguments.without, lambda text: print(f"checking: {text}", file=sys.stderr))
        print(answers, flush=True)
        report, account = launch(TrainedBy(train, answers), arguments, world_size=world_size, device="cpu",
                                 timeout=timeout, seed=arguments.seed)[0]
        alone = Namespace(**{**vars(arguments), "layout": "dp1", **dict.fromkeys(OUTPUTS)})
        print("the same steps on one process:", flush=True)
        one = launch(train, alone, world_size=1, device="cpu", timeout=timeout, seed=arguments.seed)[0]
    except (ValueError, LaunchError) as error:
        cause = getattr(error, "cause", None)
        raise SystemExit(str(cause if isinstance(cause, AnswerFailed) else error)) from error
    print(Outcome(answers, account, report, one.losses), flush=True)
    return report
