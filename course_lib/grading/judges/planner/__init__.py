"""Chapter 10, the planner. numbers.py: what a given layout holds and idles; plans.py: layouts and runs to be found."""
