"""Chapter 3: data parallelism. averages.py: gradients of all ranks, by parameter or by bucket; buckets.py: which
gradient goes into which bucket; accumulation.py: once in k micro-batches; compression.py: top-k with
error feedback; sampling.py: which rank learns from what; overlap.py: a step that hides its messages; limits.py: when
it can.
"""

from course_lib.grading.chapters.data_parallel.accumulation import AccumulatedBackward
from course_lib.grading.chapters.data_parallel.averages import AverageGradients, BucketedAverage
from course_lib.grading.chapters.data_parallel.buckets import Buckets
from course_lib.grading.chapters.data_parallel.compression import TopKAverage
from course_lib.grading.chapters.data_parallel.limits import MostDevices, SmallestBatch
from course_lib.grading.chapters.data_parallel.overlap import OverlappedStep
from course_lib.grading.chapters.data_parallel.sampling import Shard

EXERCISES = (AverageGradients, Buckets, BucketedAverage, AccumulatedBackward, TopKAverage, Shard, OverlappedStep,
             SmallestBatch, MostDevices)
