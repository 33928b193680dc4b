"""What a notebook shows and the reader moves. The names of course_lib/plots, which nobody moves, can be had here, too.

    base.py                 Explorable: a widget whose picture is a Scene of course_lib.pictures, with a static picture
                            and a sentence for where no browser is; SteppedExplorable: one whose steps play
    scene_widget.js         a widget with a scene in the browser; controls.js: its controls and its picture
    explorable.js, .css     what all of their JavaScript stands on
    prediction.py, .js      predict: a question whose answer the reader locks before it is measured
    which_wire.py           WhichWire: two nodes, and which of their wires a group of ranks uses for a collective
    ring.py                 RingAllReduce: one all-reduce around the ring, chunk by chunk
    fits_or_not.py          FitsOrNot: a model's training memory against the devices', days and dollars
    collective_explorer.py  CollectiveExplorer: every collective as a grid of ranks and chunks
    bucket_overlap.py       BucketOverlap: how much communication is hidden behind backward
    stragglers.py           Stragglers: one slow rank, and who waits for it
    pipeline_schedule.py, .js  PipelineSchedule: a pipeline schedule, chosen or placed by hand, with its idle time
    activation_memory.py    ActivationMemory: what one layer keeps for its backward pass, term by term, on each rank
    ring_attention_steps.py RingAttentionSteps: whose keys and values a rank has in each step, and what it computes
    matrix_cut.py           MatrixCut: two matrices cut over ranks, by columns or rows: who holds and sends what
    token_dispatch.py       TokenDispatch: tokens in the queues of experts on four ranks: the slowest rank, and drops
    expert_load.py          ExpertLoad: experts' shares of the tokens while a router trains, balanced or not
    mesh_explorer.py        MeshExplorer: 64 ranks on eight nodes, who talks to whom along each axis, over which link
    layout_planner.py       LayoutPlanner: a published run under any layout: memory, time by cause, MFU, money
    team_view.py            TeamView: what each rank of a team holds, and in which elements a tensor differs
    zero_memory.py          ZeroMemory: what one of N devices holds at each ZeRO stage, and which GPU has room for it

Names load on first use: a rank that calls `label_chunks` does not have to import the widget libraries.
"""

from course_lib.lazy import load_on_use

load_on_use(__name__, {
    "activation_memory": ("ActivationMemory",),
    "bucket_overlap": ("BucketOverlap",),
    ".plots.cells": ("HoldingsPicture", "HoldingsSheet", "each_collective", "who_holds_what"),
    ".plots.chart": ("Chart",),
    ".plots.grids": ("HeatMap", "RankGrid", "RoutedText"),
    "collective_explorer": ("CollectiveExplorer",),
    "expert_load": ("ExpertLoad",),
    "base": ("Explorable",),
    "fits_or_not": ("FitsOrNot",),
    ".collectives.holdings": ("Holdings", "label_chunks"),
    "layout_planner": ("LayoutPlanner",),
    "matrix_cut": ("MatrixCut",),
    "mesh_explorer": ("MeshExplorer",),
    "pipeline_schedule": ("PipelineSchedule",),
    "prediction": ("Prediction", "predict"),
    "ring": ("RingAllReduce",),
    "ring_attention_steps": ("RingAttentionSteps",),
    "stragglers": ("Stragglers",),
    "team_view": ("TeamView",),
    "token_dispatch": ("TokenDispatch",),
    ".plots.network_picture": ("TreeAndTorus",),
    ".plots.panels": ("MemoryPanels", "RankPanels", "Strips"),
    "which_wire": ("WhichWire",),
    "zero_memory": ("ZeroMemory",),
})
