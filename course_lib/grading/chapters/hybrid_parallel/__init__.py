"""Chapter 9: all axes at once. mesh.py: a rank's place, groups of several axes; pieces.py: a small model on a mesh;
reductions.py: which gradients are added up where; norms.py: one norm of all of them; reshard.py: a checkpoint read by
another layout; saving.py: how often to save; cheapest.py: the layout for a given cluster.
"""

from course_lib.grading.chapters.hybrid_parallel.cheapest import CheapestLayout
from course_lib.grading.chapters.hybrid_parallel.mesh import MovedRank, TwoLevels
from course_lib.grading.chapters.hybrid_parallel.norms import GlobalNorm
from course_lib.grading.chapters.hybrid_parallel.reductions import ReducedGradients
from course_lib.grading.chapters.hybrid_parallel.reshard import Resharded
from course_lib.grading.chapters.hybrid_parallel.saving import SaveInterval

EXERCISES = (MovedRank, TwoLevels, ReducedGradients, GlobalNorm, Resharded, SaveInterval, CheapestLayout)
