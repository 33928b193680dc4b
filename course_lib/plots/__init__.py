"""Pictures of what was measured, counted or sent: figures that a notebook shows and nobody moves.

    chart.py            Chart: measured points beside predicted lines
    panels.py           MemoryPanels: recordings of memory, each beside its formula; RankPanels: figures of every rank,
                        step by step; Strips: numbers by kind around the value that they should have
    grids.py            HeatMap: a table of shares; RankGrid: the ranks of a layout, once for each axis, coloured by
                        group; RoutedText: a text in the colours of the experts that its characters went to
    cells.py            who holds which chunk with whose contributions, before and after, as real ranks hold it
    cell_style.py       how its cells look, in words: what widgets go by, too
    network_picture.py  TreeAndTorus: how many wires lie between two chips of a fat tree, and of a torus

Readers take them from course_lib.widgets, beside the widgets that they do move.
"""
