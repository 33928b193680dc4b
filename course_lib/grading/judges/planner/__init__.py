"""Chapter 10, the planner. numbers.py: what a given layout holds and idles; plans.py: layouts to be found; runs.py:
plans of a whole run.
"""
