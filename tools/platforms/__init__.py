"""The course's grader, packed for a platform: `make gradescope NAME=02_collectives`, and the same for classroom50."""
