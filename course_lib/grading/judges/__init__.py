"""What an answer has to do, a package for each chapter, named like it: trials, right answers, budgets.

Nothing here is shown to a reader's function, neither as a file nor as a module: what runs beside it is in on_rank/.
What the reader is asked, the hints and the likely mistakes stand in solutions/; recorded/ has what mistakes give.

    numbers.py, tensors.py    exercises whose answer is a number, or a tensor made by messages
    calls.py                  exercises that may call collectives, which are counted
    models.py, split.py       what the trials of several chapters share
"""
