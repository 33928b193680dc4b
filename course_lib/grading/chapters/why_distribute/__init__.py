"""Chapter 1: numbers.py: arithmetic before hardware; rows.py: who reads what; order.py: how many nodes to order."""

from course_lib.grading.chapters.why_distribute.numbers import MFU, ParallelShare, TrainingBytes, TrainingDays
from course_lib.grading.chapters.why_distribute.order import WhatToOrder
from course_lib.grading.chapters.why_distribute.rows import ShardedRows

EXERCISES = (TrainingBytes, TrainingDays, MFU, ParallelShare, ShardedRows, WhatToOrder)
