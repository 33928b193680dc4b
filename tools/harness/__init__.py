"""What tools, benchmarks and tests share. It stands below all three and imports none of them.

    kernels.py  kernels that are reached through files, for whatever starts many of them beside many ranks
    kernel.py   a real kernel, cell by cell, as a reader's notebook has one
    browser.py  a real JupyterLab and a page in it
    needs.py    which cells launch, and the names that a cell reads
    pretend/    a GPU on machines without one
"""
