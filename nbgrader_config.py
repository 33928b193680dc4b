"""How nbgrader finds and treats the exercises; `make exercises` and TEACHING.md use it."""

import os
import sys

from course_lib.grading.trusted import pages

# nbgrader calls `alembic` by name, which lies beside the Python that runs it, activated or not.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])

c = get_config()  # noqa: F821 (nbgrader puts it here)

c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", ".git", ".venv", "feedback", "answers.py",
                            "judge*.py", "on_rank.py", "recorded.json", "hints.md", "right_mutants.md"]

# Files that were handed in are read with limits, whatever stands in them.
c.Autograde.exporter_class = "course_lib.grading.trusted.notebooks.SubmittedNotebook"
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
    "course_lib.grading.trusted.preprocessor.SaveMarks",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
# "required": no grades rather than less protection. "auto": as much as this machine can, and the feedback says it.
c.TrustedGrade.isolation = "required"
# Of the points, for an answer that is right and spends more than its budget.
c.TrustedGrade.over_budget = 0.5
# Feedback and formgrader in nbgrader's own templates, where nothing of a student's notebook is more than text.
c.GenerateFeedback.exporter_class = "course_lib.grading.trusted.pages.FeedbackPage"
pages.guard_formgrader(c)

# `nbgrader zip_collect` takes the archive that a learning platform gives: say which one behind PLATFORM.
# Moodle, "Download all submissions", in folders or not: "Zoë Noether_1234567_assignsubmission_file/06_zero.ipynb" or
# "Zoë Noether_1234567_assignsubmission_file_06_zero.ipynb" (its mod/assign/classes/downloader.php). The number tells
# two people of one name apart; Moodle gives them another one in each assignment.
MOODLE = r"(?P<student_id>[^/]+?_\d+)_assignsubmission_file(?:_?/|_)"
# Canvas, "Download Submissions": "noetherzoë_LATE_4711_67890_06_zero-1.ipynb", with the numbers of user and file, and
# -1 where an earlier file had that name (its lib/content_zipper.rb).
CANVAS = r"(?P<student_id>[^/]+?)(?:_LATE)?_\d+_\d+_"
# Blackboard, "Assignment File Download": "Chapter 6_noether_attempt_2026-01-30-15-04-05_06_zero.ipynb", with the user's
# name (nbgrader's manual; github.com/kwurst/bb-file-cleanup). Of several attempts the last one counts. Of the time the
# hour is read, as nbgrader takes minutes behind a dash for a time zone. Of a user name with an underscore the end is
# read: where you have such names write the assignment's own name in place of [^/]*?.
BLACKBOARD = r"[^/]*?_(?P<student_id>[^/_]+)_attempt_(?P<timestamp>\d{4}-\d\d-\d\d-\d\d)-\d\d-\d\d_"
PLATFORM = MOODLE  # or CANVAS, or BLACKBOARD
# What somebody hands in instead of a notebook goes along, so that `make grade` can say so. Hidden files do not, nor
# does a time that nbgrader would believe.
c.FileNameCollectorPlugin.valid_ext = [".ipynb", ".json", ".txt", ".html", ".pdf", ".docx", ".py", ".zip", ".gz"]
# A student chooses names, too: what counts is the platform's own prefix, the first one from the left, below the archive
# and at most one more folder that has none.
PREFIX = r"[^/]*(?:_assignsubmission_|_attempt_\d|_\d+_\d+_)"
c.FileNameCollectorPlugin.named_regexp = (
    rf"(?>.*?/downloaded/[^/]+/extracted)(?!.*/\.)/(?:(?!{PREFIX})[^/]+/){{0,2}}?{PLATFORM}"
    r"/?(?P<file_id>(?!/|timestamp\.txt).+)$")
c.ZipCollectApp.extractor_plugin = "tools.collect.Archives"
c.ZipCollectApp.collector_plugin = "tools.collect.Students"
