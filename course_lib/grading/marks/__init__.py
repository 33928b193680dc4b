"""Marks of a whole class: what became of every submission, none of them silently 0, and the tables that follow.

In reading order:
    record.py       one graded submission as data: the one format, which lies in the graded notebook itself
    reading.py      a notebook that was handed in, read in a child with limits
    handed_in.py    which of a student's files is the notebook, and what is refused
    standing.py     where every student stands: graded, or in words why not; the table
    batch.py        `make grade`: submissions side by side, by workers that grade one after the other
    gradescope.py   one submission where there is no class, as Gradescope's autograder has it
"""
