"""Every headline of a notebook is contradicted with other data, and has to give way. Files in reading order:

    cell.py         the headlines of a cell, and what they are computed from
    others.py       values that may contradict a value: backwards, nothing, a thousand times as much
    contradict.py   in the notebook's kernel, right after the cell: the picture drawn again of such data
    compare.py      what the verdicts say of the output that is stored: tests/executed.py asks it for each cell
"""
