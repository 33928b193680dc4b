"""Marks of a whole class: what became of every submission, none of them silently 0, and in whose format it goes on.

In reading order:
    record.py       one graded submission as data: the one format, which lies in the graded notebook itself
    handed_in.py    which file in a student's folder is the notebook, and what is wrong with it
    collect.py      from a learning platform's archive to students' folders: a plugin of `nbgrader zip_collect`
    standing.py     where every student stands: graded, or in words why not
    table.py        all of them as a report to read and as a CSV
    platforms.py    a record for Gradescope, for Classroom 50, for a leaderboard; command.py writes all of these
    batch.py        `make grade`: submissions side by side; worker.py grades one after the other; figures.py: how long,
                    how much memory
    alone.py        one notebook where there is no class: what a platform's autograder calls
"""
