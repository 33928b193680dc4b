"""How a value draws itself. Files in reading order:

    palette.py   the colours of ranks and of kinds of work, and the ink on them
    units.py     bytes and seconds in a unit that suits
    drawn.py     Drawn, the base of every value with a picture
    alt_text.py  a picture as HTML with its words, for who cannot see it
    stable.py    whether output must come out the same each time
    figures.py   the one kind of figure that all of them draw
    roles.py     what the roles of a scene's marks look like, for both painters
    scene.py     Scene: a picture as data, rectangles, lines and texts with a role and a key each
    parts.py     what several scenes have in common: axis, legend, bars
    painter.py, painter.js   the two painters of scenes: matplotlib, and the browser, where marks move
"""
