"""What runs in the sandbox: main.py forks ranks and counts; rank.py joins the others, then meets the student's code.

    student_code.py   what of a notebook is executed, and which names it must not use
    needs.py          of cells that are no solution what the solution needs
    frames.py         messages to and from the grader; privileges.py: what a rank gives up first
"""
