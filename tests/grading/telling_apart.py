"""Whether an exercise's mistakes differ from its answer, and from one another, in some trial."""

from course_lib.grading.compare import alike


def told_and_apart(asked, seed: int = 2) -> tuple[set[str], set[str]]:
    """(causes that `asked` knows, those of them whose answer is no other's in some trial)."""
    told, apart = set(), set()
    for trial in asked.trials(seed=seed):
        arguments = asked.arguments(trial)
        answers = [("right", asked.expected(*arguments)), *asked.mistakes(*arguments)]
        told |= {cause for cause, _ in answers[1:]}
        seen = []
        for cause, given in answers:
            if not any(alike(given, other, asked.tolerance) for _, other in seen):
                apart.add(cause)
            seen.append((cause, given))
    return told, apart - {"right"}
