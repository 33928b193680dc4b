"""matplotlib's backend in the ranks of a notebook: plt.show() shows all open figures under the cell, and closes."""

from typing import Any

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from course_lib.runtime.ranks.showing import display


class FigureManager(FigureManagerBase):
    @classmethod
    def pyplot_show(cls, **_: Any) -> None:
        for manager in Gcf.get_all_fig_managers():
            display(manager.canvas.figure)
        Gcf.destroy_all()


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager
