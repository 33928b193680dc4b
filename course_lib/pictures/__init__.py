"""How a value draws itself. Files in reading order:

    palette.py   the colours of ranks and of kinds of work, and what the roles of a scene's marks look like
    units.py     bytes and seconds in a unit that suits
    drawn.py     Drawn, the base of every value with a picture and its words
    scene.py     Scene: a picture as data, rectangles, lines and texts with a role and a key each; axis, legend, bars
    painter.py, painter.js   the two painters of scenes: matplotlib, and the browser, where marks move; and the one kind
                 of figure of all that matplotlib draws
"""
