"""`make site`: the course as pages for any static host, in build/site. Sphinx and myst-nb build them, nothing is run.

    sources.py     build/site_source: the tree's own pages and notebooks under their own names, and what is generated
    outputs.py     recorded outputs as HTML: pictures in files of their own, widgets and predictions as figures
    listings.py    the source files, each line with an address
    conf.py        Sphinx's settings, and when it calls us
    check.py       what every built page must be: links that lead somewhere, nothing from another host
    static/        the style sheet, and a script for the keyboard
    live/          what moves on a page: Pyodide, course_lib, the scripts of pages and worker
"""
