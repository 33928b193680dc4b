"""Every headline of a notebook is contradicted with other data, and has to give way. Files in reading order:

    cell.py         the headlines of a cell, and what they are computed from
    others.py       values that may contradict a value: backwards, nothing, a thousand times as much
    contradict.py   in the notebook's kernel: the picture drawn again of such data
    plugin.py       a test after each cell with headlines, in the kernel that nbval runs
"""
