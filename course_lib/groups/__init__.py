"""What every chapter does with a process group, once.

    membership.py   who am I in it, messages to its other ranks, and what is asked of arguments
    exchange.py     gathers and reduce-scatters begun now and finished later; what one rank sees is wrong, all say
    gradients.py    many tensors in one message: pack, broadcast, sums; gradients when they are complete, one that
                    nobody has, the norm of one in pieces

A group is an argument everywhere: None is the world, and a process group of torch.distributed or a Member will do.
"""
