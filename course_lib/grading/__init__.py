"""Checks for the exercises: `check` for somebody alone in a notebook, `TrustedGrade` for a class under nbgrader."""
