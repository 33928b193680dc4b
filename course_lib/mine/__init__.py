"""The capstone: a GPT trained by the reader's own functions, those of the exercises, in the places of the course's.

    cells.py     a notebook's cells as code; whose code a frame or an error is
    world.py     torch.distributed as an answer sees it whose world is one group of a larger run
    find.py      find(folder): which answers there are, each checked once (checks.py)
    slots.py     which answer does what in training: the table
    gradients.py, sharding.py, layers.py, pipeline.py, experts.py, resharding.py    the places, chapter by chapter
    put.py       TrainedBy(train, answers): a function to launch, with the answers in it
    ledger.py    calls and bytes by answer; an error's answer
    outcome.py   whose code did what, and whether the loss is one process's
    command.py   python -m course_lib.train --mine workspace/exercises
"""

from course_lib.mine.find import Answers, Part, count_answers, find
from course_lib.mine.ledger import AnswerFailed
from course_lib.mine.outcome import Outcome
from course_lib.mine.put import Account, TrainedBy, put
from course_lib.mine.slots import SLOTS

__all__ = [
    "SLOTS", "Account", "AnswerFailed", "Answers", "Outcome", "Part", "TrainedBy", "count_answers", "find", "put",
]
