"""A different piece for everyone: rank r's j-th piece becomes rank j's r-th.

n-1 steps; in step s each rank sends to the place s further on and receives from the place s further back, so that in
every step each rank sends once and receives once, and nobody is a bottleneck.
Source: Thakur, Rabenseifner and Gropp 2005.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.collectives.messages import in_place, output, require_rows
from course_lib.groups.membership import Member, member
from course_lib.groups.tensors import sendable


def pairwise_all_to_all(tensor: Tensor, output_split_sizes: Sequence[int] | None = None,
                        input_split_sizes: Sequence[int] | None = None, group: ProcessGroup | None = None,
                        out: Tensor | None = None) -> Tensor:
    """Send piece j of `tensor` to place j, and return the pieces received, in the order of their senders.

    tensor (N0, ...) is cut along dim 0 into rows of input_split_sizes, and output_split_sizes rows arrive. Give both
    or neither; neither: all ranks bring the same shape, cut as torch.tensor_split does. Everything is sent but the
    piece that stays. ValueError for sizes that do not add up.
    """
    me = member(group)
    require_rows(tensor)
    sizes_out, sizes_in = split_sizes(tensor, output_split_sizes, input_split_sizes, me)
    shape = (sum(sizes_out), *tensor.shape[1:])
    out = output(out, shape, tensor)
    with in_place(out, me) as flat:
        outgoing = sendable(tensor, me).split(sizes_in)
        incoming = flat.view(shape).split(sizes_out)
        # The piece that stays needs no message.
        incoming[me.r].copy_(outgoing[me.r])
        # In each step everybody sends to another rank: with a fixed order of receivers, all would send to place 0
        # first.
        for step in range(1, me.n):
            to, source = (me.r + step) % me.n, (me.r - step) % me.n
            me.exchange(outgoing[to], to, incoming[source], source)
    return out


def split_sizes(tensor: Tensor, outputs: Sequence[int] | None, inputs: Sequence[int] | None,
                me: Member) -> tuple[list[int], list[int]]:
    """Rows that arrive from each place and rows that go to each place."""
    if outputs is None and inputs is None:
        inputs = [len(piece) for piece in tensor.tensor_split(me.n)]
        # All ranks bring the same shape, so everybody's piece for this rank is as long as its own.
        return [inputs[me.r]] * me.n, inputs
    if outputs is None or inputs is None:
        raise ValueError("only one of output_split_sizes and input_split_sizes is given: expected both or neither")
    outputs, inputs = list(outputs), list(inputs)
    for name, sizes in (("output_split_sizes", outputs), ("input_split_sizes", inputs)):
        if len(sizes) != me.n or min(sizes) < 0:
            raise ValueError(f"{name}={sizes}: expected {me.n} sizes of 0 or more, one for each rank of the group")
    if sum(inputs) != len(tensor):
        raise ValueError(f"input_split_sizes={inputs} add up to {sum(inputs)}: expected the {len(tensor)} rows "
                         "of the tensor")
    # The one pair of sizes that a rank can compare alone: what the others send, only they know.
    if inputs[me.r] != outputs[me.r]:
        raise ValueError(f"place {me.r} keeps {inputs[me.r]} rows by input_split_sizes and {outputs[me.r]} "
                         "by output_split_sizes: expected the same number")
    return outputs, inputs
