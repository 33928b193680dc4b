"""Chapter 7: tokens are shared out. doors.py: gather and scatter; merge.py: attention from parts; positions.py: who has
which tokens; passing.py: blocks around a ring; recompute.py: keep less; numbers.py: bytes of a layer, and seconds of
attention; ring.py: all of a ring attention.
"""

from course_lib.grading.chapters.sequence_parallel.doors import GatherAndScatter
from course_lib.grading.chapters.sequence_parallel.merge import MergedAttention
from course_lib.grading.chapters.sequence_parallel.numbers import AttentionSeconds, LayerBytes
from course_lib.grading.chapters.sequence_parallel.passing import PassAround
from course_lib.grading.chapters.sequence_parallel.positions import DocumentPositions
from course_lib.grading.chapters.sequence_parallel.recompute import Recomputed
from course_lib.grading.chapters.sequence_parallel.ring import WholeRing

EXERCISES = (GatherAndScatter, MergedAttention, DocumentPositions, PassAround, Recomputed, LayerBytes, WholeRing,
             AttentionSeconds)
