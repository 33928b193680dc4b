"""How nbgrader finds and treats the exercises; `make exercises` and TEACHING.md use it."""

c = get_config()  # noqa: F821 (nbgrader puts it here)

c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "feedback", "wrong_answers.py"]

# A cell that a student has deleted comes back, and scores nothing.
c.OverwriteCells.add_missing_cells = True
c.Execute.interrupt_on_timeout = True
c.Execute.raise_on_iopub_timeout = False

# TrustedGrade: its settings go here.
