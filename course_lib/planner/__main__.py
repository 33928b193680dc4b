"""python -m course_lib.planner --help"""

from course_lib.planner.command import main

if __name__ == "__main__":
    raise SystemExit(main())
