"""Pictures of what was measured, counted or sent: figures that a notebook shows and nobody moves.

    chart.py              Chart: measured points beside predicted lines
    heat_map.py           HeatMap: a table of shares, the larger the darker
    strips.py             Strips: numbers by kind around the value that they should have
    memory_panels.py      MemoryPanels: recordings of memory on one scale, each beside its formula
    rank_panels.py        RankPanels: figures of every rank, step by step, one panel a figure
    rank_grid.py          RankGrid: the ranks of a layout, once for each axis, coloured by group
    holdings_picture.py   who holds which chunk with whose contributions, as real ranks hold it
    routed_text.py        RoutedText: a text in the colours of the experts that its characters went to
    network_picture.py    TreeAndTorus: how many wires lie between two chips of a fat tree, and of a torus
    cell_style.py         how cells of who holds what look, and the key to them
    cells_picture.py      what the pictures of who holds what are drawn with

Readers take them from course_lib.widgets, beside the widgets that they do move.
"""
