"""Chapter 10, the planner: what a layout holds and takes, before anybody has run it. memory.py: bytes by kind;
bubble.py: the idle share; cap.py: a layout under a memory cap; better.py: one that beats a run that was measured;
by_date.py: the cheapest run that ends in time; scaling.py: how far the same batch goes.
"""

from course_lib.grading.chapters.planner.better import BetterLayout
from course_lib.grading.chapters.planner.bubble import BubbleShare
from course_lib.grading.chapters.planner.by_date import CheapestRun
from course_lib.grading.chapters.planner.cap import LayoutUnderCap
from course_lib.grading.chapters.planner.memory import LayoutMemory
from course_lib.grading.chapters.planner.scaling import MostDevices

EXERCISES = (LayoutMemory, BubbleShare, LayoutUnderCap, BetterLayout, CheapestRun, MostDevices)
