"""Sphinx's settings for the site. Nothing is run, and nothing comes from another host: no CDN, font or tracker.

Sphinx calls us to write what it reads (build/site_source), what moves on a page, and to look at what it has built.
"""

import inspect
import pydoc
import sys
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sphinx.util import logging  # noqa: E402

from course_lib.lazy import load_on_use  # noqa: E402, F401 - the tree on this path, and no other
from tools.site import check, listings, sources  # noqa: E402
from tools.site.live.build import build as build_live  # noqa: E402

project = "Training large models on many devices"
author = "the course's authors"
project_copyright = ""
language = "en"
smartquotes = False  # docstrings and hints are shown as they were written
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.linkcode"]
exclude_patterns = ["extra"]
suppress_warnings = ["mystnb.lexer"]  # %%ranks and what else is not plain Python
nitpicky = False

myst_enable_extensions = []
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": False, "inherited-members": False}
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
pygments_style = "a11y-high-contrast-light"  # of accessible-pygments, which furo brings
pygments_dark_style = "a11y-high-contrast-dark"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/favicon.svg"
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_last_updated_fmt = None
html_theme_options = {"navigation_with_keys": False}

# Outside links are looked at by `make site BUILDER=linkcheck`, at night.
linkcheck_timeout = 20
linkcheck_workers = 4
linkcheck_ignore = [r"http://localhost"]


def is_whole(app):
    """Whether these are all pages of the course; tests build some."""
    return Path(app.srcdir).resolve() == ROOT / "build" / "site_source"


def write_sources(app, config):
    if is_whole(app):
        sources.write_sources(Path(app.srcdir))
    extra = Path(app.srcdir, sources.EXTRA)
    extra.mkdir(exist_ok=True)
    config.html_extra_path = [str(extra)]


def write_live(app):
    if is_whole(app) and app.builder.name == "html":
        build_live(Path(app.srcdir, sources.EXTRA, "course"))


def tell_faults(app, exception):
    if is_whole(app) and app.builder.name == "html" and exception is None:
        for fault in check.faults(Path(app.outdir)):
            logging.getLogger(__name__).warning(fault)


def linkcode_resolve(domain, info):
    """The line of the source page where a name of an api page is defined; all of these pages stand in api/."""
    thing = pydoc.locate(f"{info['module']}.{info['fullname']}")
    try:
        thing = inspect.unwrap(thing.fget if isinstance(thing, property) else thing)
        file = Path(inspect.getsourcefile(thing)).resolve().relative_to(ROOT).as_posix()
        address, line = listings.address_of(file), inspect.getsourcelines(thing)[1]
    except (TypeError, OSError, ValueError):  # no source, or none of ours
        return None
    return f"../{address}#L-{line}" if address else None


def show_docstring(app, what, name, obj, options, lines):
    """Docstrings are plain text."""
    lines[:] = sources.as_rst(lines)


def link_sources(app, doctree, docname):
    """A file that a page names in `code` is linked."""
    for literal in list(doctree.findall(nodes.literal)):
        page = listings.source_files().get(literal.astext())
        if page and not isinstance(literal.parent, nodes.reference):
            target = app.builder.get_relative_uri(docname, "index").removesuffix("index.html")
            link = nodes.reference("", "", literal.deepcopy(), refuri=f"{target}{page}.html", internal=True)
            literal.replace_self(link)


def number_cells(app, doctree, docname):
    """Errors name cells by their number, In[16], so cells have it."""
    for cell in list(doctree.findall(nodes.container)):
        count = cell.get("exec_count") if cell.get("nb_element") == "cell_code" else None
        if count:
            label = f'<span class="cell-number" id="In-{count}">In[{count}]</span>'
            cell.insert(0, nodes.raw("", label, format="html"))


def add_live(app, pagename, templatename, context, doctree):
    """The one script of the widgets, where it was built."""
    if Path(app.config.html_extra_path[0], "course/live.js").exists():
        up = "../" * pagename.count("/")
        context["metatags"] = context.get("metatags", "") + f'<script type="module" src="{up}course/live.js"></script>'


def name_levels(app, pagename, templatename, context, doctree):
    """Sphinx writes captions of the sidebar as headings without a level, which a screen reader needs."""
    for part in ("furo_navigation_tree", "body"):
        if context.get(part):
            context[part] = context[part].replace('class="caption" role="heading"',
                                                  'class="caption" role="heading" aria-level="2"')


def setup(app):
    app.connect("config-inited", write_sources, priority=100)  # before Sphinx looks for html_extra_path
    app.connect("builder-inited", write_live)
    app.connect("build-finished", tell_faults)
    app.connect("autodoc-process-docstring", show_docstring)
    app.connect("doctree-resolved", link_sources)
    app.connect("doctree-resolved", number_cells)
    app.connect("html-page-context", add_live)
    app.connect("html-page-context", name_levels, priority=900)  # after furo has made the sidebar
    return {"parallel_read_safe": True, "parallel_write_safe": True}
