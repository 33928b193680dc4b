"""The exercises, a module a chapter, named like the chapter: the trials, the likely mistakes, the budget.

What the reader is asked stands in solutions/, in the notebook; here is what an answer has to do.
"""
