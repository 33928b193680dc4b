"""How a value draws itself. Files in reading order:

    palette.py   the colours of ranks and of kinds of work, and the ink on them
    units.py     bytes and seconds in a unit that suits
    drawn.py     Drawn, the base of every value with a picture
    figures.py   the one kind of figure that all of them draw
"""
