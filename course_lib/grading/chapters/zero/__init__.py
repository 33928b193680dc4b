"""Chapter 6: everybody holds a part. memory.py: the formula, to the byte; optimizer.py: the state of one's own part;
gradients.py: reduce-scatter in backward; parameters.py: gathered just in time and freed; master.py: fp32 beneath bf16;
clipping.py: one norm over all parts; whole_step.py: all of it at once; limits.py: how far it goes.
"""

from course_lib.grading.chapters.zero.clipping import ClipOverShards
from course_lib.grading.chapters.zero.gradients import ScatteredGradients
from course_lib.grading.chapters.zero.limits import MostDevices
from course_lib.grading.chapters.zero.master import MasterSteps
from course_lib.grading.chapters.zero.memory import BytesPerRank
from course_lib.grading.chapters.zero.optimizer import ShardedAdamW
from course_lib.grading.chapters.zero.parameters import GatheredOnUse
from course_lib.grading.chapters.zero.whole_step import WholeStep

EXERCISES = (BytesPerRank, ShardedAdamW, ScatteredGradients, GatheredOnUse, MasterSteps, ClipOverShards, WholeStep,
             MostDevices)
