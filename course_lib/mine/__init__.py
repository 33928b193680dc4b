"""The capstone: a GPT trained by the reader's own functions, those of the exercises.

    loop.py      the training, from top to bottom, with a hole for each answer
    experts.py   its layers of experts; memory.py, ZeRO, recomputation and checkpoints
    holes.py     what a hole is: an answer in the world of a group, its calls and bytes, its errors
    find.py      find(folder): which answers there are, each checked once
    outcome.py   run(answers, layout): the loop beside one process, and whose code did what
"""

from course_lib.mine.find import Answers, Part, count_answers, find
from course_lib.mine.holes import HOLES, AnswerFailed
from course_lib.mine.outcome import Outcome, run

__all__ = ["HOLES", "AnswerFailed", "Answers", "Outcome", "Part", "count_answers", "find", "run"]
