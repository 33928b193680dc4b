"""Chapter 2: collectives from send and receive. ring.py: around a circle; plans.py: other plans of messages; choice.py:
what alpha and beta say about them.
"""

from course_lib.grading.chapters.collectives.choice import Crossover, LargestModel
from course_lib.grading.chapters.collectives.plans import AllToAll, TreeReduce, TwoNodeAllReduce
from course_lib.grading.chapters.collectives.ring import RingAllGather, RingAllReduce, RingReduceScatter

EXERCISES = (RingReduceScatter, RingAllGather, RingAllReduce, TreeReduce, AllToAll, TwoNodeAllReduce, Crossover,
             LargestModel)
