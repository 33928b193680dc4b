"""Every chapter's library code on whatever device its ranks have, held against the same ranks on the CPU.

Each trial is what a cell would do: models and rows lie on the rank's own device, which is the default one. That the
CPU's numbers are right, the chapters' own tests say.
"""

from tests.pretend.trials import collectives, data, models, sums
from tests.pretend.trials.register import TRIALS, run

__all__ = ["TRIALS", "collectives", "data", "models", "run", "sums"]
