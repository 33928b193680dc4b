"""Every chapter's library code on whatever device its ranks have, held against one process on the CPU.

Each trial is what a cell would do: models and rows lie on the rank's own device, which is the default one.
"""

from tests.pretend.trials import collectives, data, models
from tests.pretend.trials.register import TRIALS, run, run_all

__all__ = ["TRIALS", "collectives", "data", "models", "run", "run_all"]
