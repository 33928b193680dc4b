"""The capstone: a GPT trained by the reader's own functions, those of the exercises.

    loop.py      the training, from top to bottom, with a hole for each answer
    model.py     what a rank has of the model: holes for what cuts matrices, rows and layers
    holes.py     what a hole is: the reader's function in the world of a group, and the ledger of its calls and bytes
    yours.py     find(folder): which answers there are; run(answers, layout): the loop beside one process
"""

from course_lib.mine.holes import HOLES
from course_lib.mine.yours import Answers, Outcome, find, run

__all__ = ["HOLES", "Answers", "Outcome", "find", "run"]
