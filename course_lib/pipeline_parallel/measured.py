"""What a step took on ranks, in the form of a simulation: the same timeline and idle share, to lay beside the plan."""

from course_lib.pipeline_parallel.actions import KINDS, Action, Schedule
from course_lib.pipeline_parallel.simulate import Simulation
from course_lib.pipeline_parallel.timing import TimedAction
from course_lib.runtime import Timeline


def measured_step(schedule: Schedule, timeline: Timeline, step: int | None = None) -> Simulation:
    """The actions of one step as `timeline` saw them, `launch(...).timeline` for all ranks, in seconds from its start.

    `step` counts a pipeline's steps from 0; None is the last one recorded. Computing is what is inside the actions,
    idle is everything else: waiting, and the time that messages take. Raises ValueError where an action of the step was
    not recorded.
    """
    spans = [event for event in timeline.events if event.name in KINDS and {"microbatch", "step"} <= set(event.labels)]
    steps = sorted({event.labels["step"] for event in spans})
    step = steps[-1] if step is None and steps else step
    spans = sorted((event for event in spans if event.labels["step"] == step), key=lambda event: event.start_s)
    places = {rank: place for place, rank in enumerate(sorted({event.rank for event in spans}))}
    zero = spans[0].start_s if spans else 0.0
    result = Simulation(schedule, tuple(
        TimedAction(places[event.rank], event.labels["stage"],
                    Action(event.name, event.labels["microbatch"], event.labels["chunk"]),
                    event.start_s - zero, event.end_s - zero, cause=None) for event in spans))
    order = [[timed.action for timed in of_rank] for of_rank in result.by_rank]
    if order != [list(actions) for actions in schedule.actions]:
        raise ValueError(f"step {step} of {schedule.name!r} is not in the timeline as a whole: recorded were steps "
                         f"{steps} on ranks {list(timeline.ranks)}. Expected record_timeline() around the step, on all "
                         f"{schedule.num_ranks} ranks, once")
    return result
