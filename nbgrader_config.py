"""How nbgrader finds and treats the exercises; `make exercises` and TEACHING.md use it."""

import os
import sys

# nbgrader calls `alembic` by name, which lies beside the Python that runs it, activated or not.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])

c = get_config()  # noqa: F821 (nbgrader puts it here)

c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "feedback", "answers.py", "judge*.py",
                            "on_rank.py", "recorded.json", "hints.md", "right_mutants.md"]

# First of all, cells that were duplicated, deleted or renamed are as they were given out.
c.Autograde.sanitize_preprocessors = [
    "course_lib.grading.trusted.notebooks.RestoreCells",
    "nbgrader.preprocessors.ClearOutput",
    "nbgrader.preprocessors.DeduplicateIds",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# Marks come from isolated ranks, not from a kernel of the student's: TrustedGrade stands where nbgrader has Execute.
c.Autograde.autograde_preprocessors = [
    "course_lib.grading.trusted.preprocessor.TrustedGrade",
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
# "required": no grades rather than less protection. "auto": as much as this machine can, and the feedback says it.
c.TrustedGrade.isolation = "required"
# Of the points, for an answer that is right and spends more than its budget.
c.TrustedGrade.over_budget = 0.5
# Feedback in nbgrader's own template, where long lines wrap and the contents name the exercises.
c.GenerateFeedback.exporter_class = "course_lib.grading.trusted.notebooks.FeedbackPage"
# `nbgrader zip_collect` knows how Moodle, Canvas and Blackboard name the files of an archive.
c.ZipCollectApp.collector_plugin = "course_lib.grading.marks.collect.LearningPlatformFiles"
