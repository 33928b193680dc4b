"""Parameters that are not sharded: whole on every rank, their gradients averaged when a backward pass ends."""

import math
from collections.abc import Sequence

from torch import nn

from course_lib.groups.gradients import average_gradients
from course_lib.groups.membership import Member


class Replicated:
    """As in chapter 3, in one message a dtype: few and small parameters, norms say, that nobody wants to cut."""

    def __init__(self, parameters: Sequence[nn.Parameter], me: Member) -> None:
        self.parameters, self.me = list(parameters), me

    def average_gradients(self) -> None:
        average_gradients(self.parameters, self.me, cap_bytes=math.inf)
