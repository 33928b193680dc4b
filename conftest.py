"""What every test run needs, the notebooks' own included."""

import os

# Kernels that nbval and the browser tests start inherit it: course_lib then prints nothing that varies.
os.environ["COURSE_LIB_STABLE_OUTPUT"] = "1"
