"""One notebook's exercises on isolated ranks: the marks, and what the student hears.

An answer is marked on trials of a seed that nobody knew. Of a wrong one the trials of SEED are run too, on which known
mistakes were recorded, and there the ranks' own count of bytes is believed: it names a cause, and moves no mark.
"""

import os
from dataclasses import replace
from typing import Any

from course_lib.grading import recorded
from course_lib.grading.exercise import SEED, Exercise, Trial
from course_lib.grading.report import OVER_BUDGET, Report, Verdict
from course_lib.grading.spent import Judgement
from course_lib.grading.trusted import sandbox
from course_lib.grading.trusted.replies import NOT_JUDGED, NoAnswers
from course_lib.grading.trusted.worker import GraderBroken, IsolatedWorker, Limits

TRIALS_OF_TIME = 3  # an exercise may use so many trials' limit of time; right answers need less than one's
LONGEST_CAUSE = 5000  # characters
Cells = list[dict[str, Any]]  # {"source", "name", "own": whether it is the exercise's own solution cell}


class Grader:
    """Reports on one notebook's exercises. Of the last one, `broken`: what went wrong on our side, else None; and
    `tried`: what its code did outside of its task, "" for nothing.
    """

    def __init__(self, isolation: str, limits: Limits, over_budget: float = OVER_BUDGET) -> None:
        self.isolation = sandbox.choose(isolation)
        self.limits = limits
        self.over_budget = over_budget
        self.broken: str | None = None
        self.tried = ""
        self._worker: IsolatedWorker | None = None
        self.left_s = 0.0  # for all that is run for an exercise

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker and its ranks, if there are any."""
        if self._worker:
            self._worker.close()
            self._worker = None

    def worker(self) -> IsolatedWorker:
        """The worker for the next exercise: a new one, or where no rank can reach it, the last."""
        if self._worker and not (self.isolation.separate or self.isolation.other_user):
            self.close()
        if not self._worker:
            # nbgrader has changed to the course's folder, where gradebook and submissions lie.
            self._worker = IsolatedWorker(self.isolation, self.limits, hidden=(os.getcwd(),)).__enter__()
        return self._worker

    def report(self, exercise: Exercise, cells: Cells, seed: int, again: bool = False) -> Report:
        """The marks of one exercise. cells: the code above its check cell; again: in the time left by the last."""
        report = Report(exercise.number, exercise.function, Verdict.NOT_JUDGED, exercise.points, exercise.budget,
                        cause="the grader could not run this; your teacher sees why", over_budget=self.over_budget)
        self.left_s = self.left_s if again else TRIALS_OF_TIME * self.limits.trial_s
        for _ in range(2):  # the second time in a new worker, in case that the first one was not well
            self.broken = None
            try:
                verdict, cause, figures = self.outcome(exercise, cells, seed)
                # An answer may hold a key of a megabyte, which then stands in the sentence on it.
                return replace(report, verdict=verdict, cause=cause[:LONGEST_CAUSE], measured="\n".join(figures))
            except GraderBroken as error:
                self.broken = str(error)
                self.close()
            finally:
                self.tried = "; ".join(sorted(self._worker.tried))[:1000] if self._worker else ""
        return report

    def outcome(self, exercise: Exercise, cells: Cells, seed: int) -> tuple[Verdict, str, list[str]]:
        """Verdict, cause and figures: all trials up to the first that fails, of which alone the figures are then."""
        worker = self.worker()
        figures: list[str] = []
        label = ""
        worker.tried.clear()
        try:
            worker.prepare(exercise, cells)
            for trial in exercise.trials(seed):
                label = f"{trial.label}: "
                judged = self.judge(exercise, trial, *self.run(worker, trial))
                measured = list(filter(None, [judged.figures(believed=False)]))  # what the ranks claim proves nothing
                if judged.fault:
                    verdict = Verdict.COSTLY if judged.right else Verdict.WRONG
                    return verdict, self.known_cause(exercise, cells) or judged.cause or "", measured
                figures += measured
        except NoAnswers as failure:
            if failure.kind == "not written":
                return Verdict.NOT_WRITTEN, "" if str(failure).endswith(": not written yet") else str(failure), []
            verdict = Verdict.NOT_JUDGED if failure.kind == "late" else Verdict.WRONG
            return verdict, "\n".join([f"{label}{failure}", *exercise.meaning(str(failure))]), []
        return Verdict.CORRECT, "", figures

    def known_cause(self, exercise: Exercise, cells: Cells) -> str:
        """The recorded mistake that gives what this answer gives on the trials of SEED, "" where none does."""
        worker = self.worker()
        try:
            # Records were made of exact counts, which the system cannot give: headers are in its own. The ranks' counts
            # may be forged, and whoever forges them gets another sentence and the same mark.
            worker.prepare(exercise, cells, believed=True)
            for place, trial in enumerate(exercise.trials(SEED)):
                judged = self.judge(exercise, trial, *self.run(worker, trial))
                if judged.fault:
                    cause = recorded.cause(exercise.number, exercise.tolerance, place, judged,
                                           lambda other: self.judge_again(exercise, other))
                    return judged.with_cause(cause).cause or "" if cause else ""
        except NoAnswers:
            pass
        return ""

    def judge_again(self, exercise: Exercise, place: int) -> Judgement | None:
        """What another trial of SEED gives, None where it has no results."""
        trial = exercise.trials(SEED)[place]
        try:
            return self.judge(exercise, trial, *self.run(self.worker(), trial))
        except NoAnswers:
            return None

    def run(self, worker: IsolatedWorker, trial: Trial) -> Any:
        """Answers and traffic of a trial, where there is time left for one."""
        if self.left_s <= 0:
            raise NoAnswers(f"its runs together take longer than {TRIALS_OF_TIME * self.limits.trial_s:g} s\n"
                            f"{NOT_JUDGED}", "late")
        try:
            return worker.trial(trial)
        finally:
            self.left_s -= worker.spent_s

    def judge(self, exercise: Exercise, trial: Trial, *answers_traffic: Any) -> Judgement:
        """What the exercise says of the answers, which may be of a form that it did not think of."""
        try:
            return exercise.judge(trial, *answers_traffic)
        except Exception as error:  # the words are what the report to the teacher looks for
            return Judgement(trial.label, f"the answers are not of the form that was asked ({type(error).__name__})")
