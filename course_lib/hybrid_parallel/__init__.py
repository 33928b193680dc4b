"""Chapter 9: every axis at once. One model under any mix of dp, pp, cp, tp and ep, and any ZeRO stage.

    layout.py   which rank stands where, and its groups
"""

from course_lib.hybrid_parallel.layout import ParallelLayout

__all__ = ["ParallelLayout"]
