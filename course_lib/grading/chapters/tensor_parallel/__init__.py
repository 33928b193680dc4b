"""Chapter 5: every rank computes a part of every layer. conjugates.py: f and g; linears.py: by columns, by rows;
heads.py: whose keys a rank needs; loss.py: of logits that nobody has whole; norms.py: what counts once; block.py: a
whole block; limits.py: how wide a model has to be for it. (../split.py: t ranks in one process, to compare with.)
"""

from course_lib.grading.chapters.tensor_parallel.block import SplitBlock
from course_lib.grading.chapters.tensor_parallel.conjugates import FAndG
from course_lib.grading.chapters.tensor_parallel.heads import QKVRows
from course_lib.grading.chapters.tensor_parallel.limits import SmallestHiddenSize
from course_lib.grading.chapters.tensor_parallel.linears import GatedColumns, RowWithResidual
from course_lib.grading.chapters.tensor_parallel.loss import VocabLoss
from course_lib.grading.chapters.tensor_parallel.norms import GradientNorm

EXERCISES = (FAndG, GatedColumns, RowWithResidual, QKVRows, VocabLoss, GradientNorm, SplitBlock, SmallestHiddenSize)
