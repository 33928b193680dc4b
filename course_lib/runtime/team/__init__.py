"""Ranks that stay: `start_ranks(world_size=4)` gives a team whose ranks keep what they hold from one cell to the next.

A launch is a call in fresh ranks; a team is one call after the other in the same ranks, by the same path (ranks/).
Files in reading order:

    team.py       the team: start_ranks, calls in it, a look at one rank, what it says of itself, and %%ranks
    staying.py    its calls, one at a time, and what is left of it when one goes wrong
    rank_cell.py  a cell as the ranks get it, its value by rank, and which of the notebook's names go along
    namespace.py  in a rank: the names that it holds, the cell that runs among them, and how many bytes they are
"""
