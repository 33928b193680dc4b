"""Chapter 4: pipeline parallelism. partition.py: which layers go together; orders.py: what a rank does after what,
judged by the chapter's validate and simulate; bubble.py: idle time as a formula; backward.py: gradients between ranks.

The chapter's functions are imported where an answer is judged: these modules are also loaded beside the student's code,
where there is no course_lib.pipeline_parallel to borrow from.
"""

from course_lib.grading.chapters.pipeline_parallel.backward import PipelineBackward
from course_lib.grading.chapters.pipeline_parallel.bubble import Bubble
from course_lib.grading.chapters.pipeline_parallel.orders import GPipeOrder, OneFOneBOrder, ParSchedule
from course_lib.grading.chapters.pipeline_parallel.partition import Partition

EXERCISES = (Partition, GPipeOrder, Bubble, OneFOneBOrder, PipelineBackward, ParSchedule)
