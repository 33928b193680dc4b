"""Marks for a class: students' functions on isolated ranks, judged in nbgrader's own process.

It knows exercises only as `exercise.py` has them, by a registry, and nothing of what they are about.

    preprocessor.py   TrustedGrade, in the place of nbgrader's Execute; SaveMarks, in that of SaveAutoGrades
    notebooks.py      what was handed in, and cells that were doubled or deleted, before; the feedback page, after
    grader.py         one notebook's exercises, one after the other, and what a student hears
    worker.py         starts a worker, asks it for answers and traffic
    replies.py        what ranks say until time is up, why something did not come back, and how much was sent
    sandbox.py        what a worker is kept from
    inside/           what runs over there: all of this package that a rank can see
"""
