"""What every built page must be: links that lead somewhere, nothing from another host, a text for each picture.

No network is asked. Whether outside links answer is another question: python -m tools.site --linkcheck.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src"),
          ("embed", "src"), ("object", "data"), ("use", "href")}
LOADED_BY_REL = {"stylesheet", "icon", "preload", "modulepreload", "manifest", "preconnect", "dns-prefetch", "prefetch"}
IN_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


@dataclass
class Page(HTMLParser):
    """What a page names: `links` lead elsewhere when clicked, `loads` are fetched when it opens."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)  # pictures without a text alternative

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.loads += [given[name] for of, name in LOADED if of == tag and given.get(name)]
        self.loads += addresses_in(given.get("style", ""))
        if tag == "link" and LOADED_BY_REL & set(given.get("rel", "").split()):
            self.loads.append(given["href"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img" and "alt" not in given:
            self.silent.append(given.get("src", ""))


def addresses_in(style: str) -> list[str]:
    return [one or other for one, other in IN_STYLE.findall(style)]


def faults(site: Path) -> Iterator[str]:
    """A sentence for each fault of the site in the folder `site`."""
    for path in sorted(site.rglob("*.css")):
        yield from of_loads(site, path, addresses_in(path.read_text(encoding="utf-8")))
    for path in sorted(site.rglob("*.html")):
        page = read(path)
        yield from of_loads(site, path, page.loads)
        for address in dict.fromkeys(page.links):
            if not is_outside(address) and (fault := of_link(site, path, address)):
                yield f"{path.relative_to(site)}: {fault}"
        for picture in page.silent:
            yield f"{path.relative_to(site)}: {picture[:60]} has no alt"


@cache
def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def is_outside(address: str) -> bool:
    """Whether the address names a host or a scheme, such as mailto: and data:."""
    return bool(urlsplit(address).scheme) or address.startswith("//")


def of_loads(site: Path, path: Path, addresses: list[str]) -> Iterator[str]:
    for address in dict.fromkeys(addresses):
        if address.startswith(("data:", "#")):
            continue
        if is_outside(address):
            yield f"{path.relative_to(site)}: loads {address} from another host"
        elif fault := of_link(site, path, address):
            yield f"{path.relative_to(site)}: {fault}"


def of_link(site: Path, path: Path, address: str) -> str:
    """What is wrong with a link inside the site; "" where nothing is."""
    if address.startswith("/"):
        return f"{address} leaves the site where it lies below a path"
    parts = urlsplit(address)
    target = path.parent / unquote(parts.path) if parts.path else path
    if not target.resolve().is_relative_to(site.resolve()):
        return f"{address} leaves the site"
    if not target.is_file():
        return f"{address} leads nowhere"
    fragment = unquote(parts.fragment)
    if fragment and target.suffix == ".html" and fragment not in read(target.resolve()).ids:
        return f"{address}: the page has no such place"
    return ""
