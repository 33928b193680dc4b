"""Ranks that stay: `start_ranks(world_size=4)` gives a team whose ranks keep what they hold from one cell to the next.

A launch is a call in fresh ranks; a team is one call after the other in the same ranks, by the same path (ranks/).
Files in reading order:

    start.py      start_ranks: checks what is asked for and starts the team
    team.py       the team: calls in it, a look at one rank, what it says of itself
    staying.py    its calls, one at a time, and what is left of it when one goes wrong
    magic.py      %%ranks
    rank_cell.py  a cell as the ranks get it, and its value by rank
    lending.py    which of the notebook's names go along with a cell
    namespace.py  in a rank: the names that it holds, and the cell that runs among them
    holdings.py   in a rank: how many bytes of tensors each name holds, by kind
    snapshot.py   in a rank: the same with the first values, for a picture
"""
