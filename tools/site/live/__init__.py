"""What lets the widgets of a static page move: the same Python and the same painter as in Jupyter, without a server.

    build.py        writes all of it into a folder, whose live.js every page loads: scripts, style sheet,
                    course_lib without the grader, the planner's options for its form; Pyodide, which it
                    fetches from npm
    browser/live.js       finds the figures of a page, and puts widgets, predictions and answers into them
    browser/live.css      what a page adds to the widgets' style sheet
    browser/nodes.js      what all scripts make nodes and say things with
    browser/model.js      anywidget's model for their JavaScript: what a reader sets goes to Python, the latest first
    browser/python.js     the page's side of the worker, which is started when a reader first moves something
    browser/worker.js     the worker: Pyodide, and session.py in it
    browser/planner.js    a form for course_lib.planner's command
    browser/python/       what Python imports there in place of the anywidget package, and session.py

A page says which widget it wants: <figure class="course-widget" data-module="course_lib.widgets.zero_memory"
data-class="ZeroMemory" data-settings='{"stage": 2}'>, with the recorded picture inside, which stands where no script
runs. A <script type="application/json"> with its first state in it saves the reader a click and the first wait.
Predictions are <figure class="course-prediction" data-question data-unit data-options>, answers
<figure class="course-answer" data-question data-measured>, and <div class="course-planner"> becomes the planner.
"""
