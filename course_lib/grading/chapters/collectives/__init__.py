"""Chapter 2: collectives from send and receive. ring.py: around a circle; plans.py: other plans of messages."""

from course_lib.grading.chapters.collectives.plans import AllToAll, TreeBroadcast, TwoNodeAllReduce
from course_lib.grading.chapters.collectives.ring import RingAllGather, RingAllReduce, RingReduceScatter

EXERCISES = (RingReduceScatter, RingAllGather, RingAllReduce, TreeBroadcast, AllToAll, TwoNodeAllReduce)
