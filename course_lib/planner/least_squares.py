"""Constants that are most likely where each has a prior, in plain Python: Gauss-Newton on 25 unknowns needs no library.

Unknowns theta begin at 0 with standard deviations sigma, rows have residuals r(theta), in units of what a good row is
missed by. Least becomes

    sum over rows of 2 log(1 + r^2 / 2)  +  sum over unknowns of (theta / sigma)^2

The logarithm lets a row that nothing explains pull less and less (Student's t); with robust=False r^2 stands in its
place, for measurements that nobody has copied or rounded. Derivatives are differences. Deterministic. Standard
deviations are those of the linear problem at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log1p, sqrt

ROW_ERROR = 0.05  # what a good row is expected to miss by: publishing rounds, runs differ
STEPS, DIFFERENCE = 25, 1e-3
FARTHEST = 3.0  # standard deviations


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """x of matrix x = right, for a symmetric matrix whose x' matrix x is above 0: Gauss, without pivots."""
    rows = [[*row, value] for row, value in zip(matrix, right)]
    for k, pivot in enumerate(rows):
        for row in rows[k + 1:]:
            share = row[k] / pivot[k]
            row[k:] = [value - share * above for value, above in zip(row[k:], pivot[k:])]
    x = [0.0] * len(rows)
    for k in reversed(range(len(rows))):
        x[k] = (rows[k][-1] - sum(a * b for a, b in zip(rows[k][k + 1:-1], x[k + 1:]))) / rows[k][k]
    return x


def objective(residuals: Sequence[float], theta: Sequence[float], sigma: Sequence[float], robust: bool = True) -> float:
    """What is to be smallest: squares of residuals, large ones damped where `robust`, and of how far theta is from its
    priors.
    """
    rows = (2 * log1p(r * r / 2) if robust else r * r for r in residuals)
    return sum(rows) + sum((t / s) ** 2 for t, s in zip(theta, sigma))


def most_likely(residuals_at: Callable[[Sequence[float]], list[float]], sigma: Sequence[float],
                tolerance: float, robust: bool = True) -> tuple[list[float], list[float]]:
    """(theta, its standard deviations) where the objective is least, from theta = 0 on."""
    theta, n = [0.0] * len(sigma), range(len(sigma))
    r = residuals_at(theta)
    best, curvature = objective(r, theta, sigma, robust), [[(i == j) / sigma[i] ** 2 for j in n] for i in n]
    for _ in range(STEPS):
        slopes = [[(moved - now) / DIFFERENCE for moved, now in zip(
            residuals_at([t + DIFFERENCE * (i == j) for j, t in enumerate(theta)]), r)] for i in n]
        weighted = [[slope / (1 + robust * now * now / 2) for slope, now in zip(of_one, r)] for of_one in slopes]
        curvature = [[sum(a * b for a, b in zip(weighted[i], slopes[j])) + (i == j) / sigma[i] ** 2 for j in n]
                     for i in n]
        step = solve(curvature, [sum(a * b for a, b in zip(weighted[i], r)) + theta[i] / sigma[i] ** 2 for i in n])
        # A whole step of a curved problem may overshoot: it is halved until the objective falls.
        for shortened in (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16):
            tried = [min(max(t - shortened * d, -FARTHEST * s), FARTHEST * s) for t, d, s in zip(theta, step, sigma)]
            r_tried = residuals_at(tried)
            if (now := objective(r_tried, tried, sigma, robust)) < best - tolerance:
                theta, r, best = tried, r_tried, now
                break
        else:
            break
    return theta, [sqrt(solve(curvature, [float(i == j) for j in n])[i]) for i in n]
