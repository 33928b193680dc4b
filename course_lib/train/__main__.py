from course_lib.train.run import main

main()
