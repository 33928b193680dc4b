"""matplotlib's backend in the ranks of a notebook: plt.show() shows all open figures under the cell, and closes."""

from typing import Any

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from course_lib.runtime.ranks.showing import display


class FigureManager(FigureManagerBase):
    """matplotlib's manager of a figure, of which only plt.show() matters in a rank."""

    @classmethod
    def pyplot_show(cls, **_: Any) -> None:
        """Show all open figures in the order in which they were made, and close them."""
        for manager in Gcf.get_all_fig_managers():
            display(manager.canvas.figure)
        Gcf.destroy_all()


class FigureCanvas(FigureCanvasAgg):
    """The canvas that matplotlib asks a backend for."""

    manager_class = FigureManager
