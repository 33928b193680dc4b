"""Pipeline parallelism: one schedule, drawn, simulated and run."""

from course_lib.pipeline_parallel.actions import Action, Schedule

__all__ = ["Action", "Schedule"]
