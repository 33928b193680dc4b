"""A class that nobody teaches, to try the class grader on: submissions.py makes it, __main__.py grades and compares."""
