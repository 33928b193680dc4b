"""Chapter 4: pipeline parallelism. partition.py: which layers go together; orders.py: what a rank does after what,
judged by the chapter's validate and simulate; chunks.py: the same with several stages a rank; bubble.py: idle time as a
formula; backward.py: gradients between ranks; layout.py: how many stages and micro-batches.

The chapter's functions are imported where an answer is judged: these modules are also loaded beside the student's code,
where there is no course_lib.pipeline_parallel to borrow from.
"""

from course_lib.grading.chapters.pipeline_parallel.backward import PipelineBackward
from course_lib.grading.chapters.pipeline_parallel.bubble import Bubble, LeastBatch
from course_lib.grading.chapters.pipeline_parallel.chunks import InterleavedOrder
from course_lib.grading.chapters.pipeline_parallel.layout import Layout
from course_lib.grading.chapters.pipeline_parallel.orders import OneFOneBOrder, ParSchedule, RoundsOrder
from course_lib.grading.chapters.pipeline_parallel.partition import Partition

EXERCISES = (Partition, RoundsOrder, Bubble, OneFOneBOrder, PipelineBackward, ParSchedule, InterleavedOrder, Layout,
             LeastBatch)
