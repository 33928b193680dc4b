"""Closed forms, without torch: what memory, messages, idle time and money come to before anything is run.

Each formula is defined once, here, with the letters of its paper; chapters export and show it, widgets draw it. What
goes in is plain numbers, a Shape or a Fact of course_lib.facts; units stand in the names.

    flops.py        parameters, FLOPs and activations of a shape: 6ND, and the exact count; MFU and HFU; roofline; how
                    long products and passes over memory take
    money.py        from FLOPs to seconds, dollars, kilowatt-hours; how often runs fail, and how often to save
    links.py        T = alpha + beta M, added up for every collective; a link fitted to measured times, or to its data
                    sheet as it was seen to reach it
    network.py      what a collective gets on a cluster: which wires, how many bytes a second, how many seconds
    overlap.py      gradients hidden behind backward; from how many tokens on messages hide behind the arithmetic
    scaling.py      Amdahl, Gustafson, T1/n + alpha + beta M, strong and weak efficiency; idle time and micro-batches in
                    flight of pipeline schedules; what one slow rank costs
    splitting.py    layers, tokens and experts dealt out to devices: what they send, and how many devices are too many

What does a rank hold, and what does it send? One file answers for each kind of trainer:

    of whom                                held                                      sent
    the papers', without padding           memory.py, flops.py (activations)         links.py, splitting.py
    this course's ZeRO, to the byte        sharding.py, and the most of a step       sharding.py
    chapter 9's trainer, to the byte       hybrid.py, stage by stage                 hybrid.py, axis by axis
      (hybrid_parallel.forecast asks both with a layout)
    a real trainer, such as Megatron       planner/memory.py                         planner/estimate.py, in seconds
    what a GPU's allocator takes on top    memory.py

Nothing here needs more than Python.
"""
