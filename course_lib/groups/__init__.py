"""What every chapter does with a process group, once.

    membership.py   who am I in it, and messages to the other places
    tensors.py      a tensor as a backend can send it, as an error names it, and as autocast would have it
    packing.py      many tensors in one message: pack and unpack, buckets, broadcast, sums
    exchange.py     gathers and reduce-scatters begun now and finished later
    agreement.py    what only one rank can see is wrong, every rank says
    gradients.py    gradients when they are complete, on their way into a message, and one that nobody has
    norms.py        the norm of a gradient in pieces
    replaced.py     an optimiser of parameters that have been cut since

A group is an argument everywhere: None is the world, and a process group of torch.distributed or a Member will do.
"""
