"""Closed forms, without torch: what memory, messages, idle time and money come to before anything is run.

Each formula is defined once, here, with the letters of its paper; chapters export and show it, widgets draw it. What
goes in is plain numbers, a Shape or a Fact of course_lib.facts; units stand in the names.

    checks.py       what a number has to be before a formula takes it
    flops.py        parameters and FLOPs of a shape: 6ND, and the exact count; MFU and HFU; roofline
    money.py        from FLOPs to seconds, dollars, kilowatt-hours; tokens eaten and read a second
    memory.py       parameters, gradients, optimiser state: by precision, ZeRO stage and offload, and its seconds; LoRA
    activations.py  what the forward pass keeps
    experts.py      experts dealt out over ranks: bytes, drops, and when it is too much to send
    hybrid.py       what each rank sends in a step under any layout, axis by axis
    context_parallel.py  attention over tokens that are dealt out: who does how much, what is sent
    sharding.py     what this course's ZeRO holds and sends, to the byte; peak.py, the most that a step takes
    caching_allocator.py  what an allocator takes from a GPU beside what a run holds
    kernels.py      how long a matrix product takes by its sizes, and a pass over memory
    links.py        T = alpha + beta M, added up for every collective; a link fitted to measured times
    reached.py      how much of their data sheets wires were seen to reach
    network.py      what a collective gets on a cluster: which wires, how many bytes a second, how many seconds
    hiding.py       from how many tokens on the messages hide behind the arithmetic
    buckets.py      gradients cut into messages
    overlap.py      how much of the all-reduce is hidden behind backward
    stragglers.py   what one slow rank costs
    scaling.py      Amdahl, Gustafson, T1/n + alpha + beta M, strong and weak efficiency
    failures.py     how often n devices fail, what that costs, and how often to save (Young, Daly)
    bubbles.py      idle time and micro-batches in flight of pipeline schedules
    splitting.py    layers cut over devices: what they send, and how many devices are too many

Nothing here needs more than Python.
"""
