"""Chapter 8: every rank has a few of the experts. gating.py: which experts a token goes to; rows.py: rows in blocks and
back; dispatch.py: to other ranks and home; balance.py: the loss that evens out; capacity.py: what is dropped;
placement.py: who holds which experts; gradients.py: who is averaged with whom; limits.py: how wide an expert has to be.
"""

from course_lib.grading.chapters.expert_parallel.balance import BalanceLoss
from course_lib.grading.chapters.expert_parallel.capacity import Kept
from course_lib.grading.chapters.expert_parallel.dispatch import Dispatch
from course_lib.grading.chapters.expert_parallel.gating import Gate
from course_lib.grading.chapters.expert_parallel.gradients import ExpertGradients
from course_lib.grading.chapters.expert_parallel.limits import SmallestExpert
from course_lib.grading.chapters.expert_parallel.placement import Placed
from course_lib.grading.chapters.expert_parallel.rows import BlockRows

EXERCISES = (Gate, BlockRows, Dispatch, BalanceLoss, Kept, Placed, ExpertGradients, SmallestExpert)
