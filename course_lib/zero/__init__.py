"""Chapter 6: ZeRO and fully sharded data parallelism. From "every device holds everything" to one N-th each.

    memory.py   bytes of each device, in closed form
"""
