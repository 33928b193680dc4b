"""Chapter 10, the planner. memory.py: what a layout holds; reading.py: plans to be read; plans.py: layouts to be found;
runs.py: plans of a whole run; leaks.py: test rows that leak; causes.py: a wrong term; missing.py: a term that is
missing; published.py: the runs that the last two are about.
"""
