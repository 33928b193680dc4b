"""Checkpoints: what a training run writes down so that it can go on after a crash, and on other ranks.

piece.py   what a rank holds of a tensor, and where it lies in the whole
"""

from course_lib.checkpoint.piece import Piece, Placement, State, whole

__all__ = ["Piece", "Placement", "State", "whole"]
