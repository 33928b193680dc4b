"""What every chapter does with a process group, once.

    membership.py   who am I in it, and messages to the other places
    tensors.py      a tensor as a backend can send it, and as an error names it
    agreement.py    what only one rank can see is wrong, every rank says
    packing.py      many tensors in one message
    exchange.py     reduce-scatter and all-gather, begun now and finished later
    gradients.py    a gradient that is not there
"""
