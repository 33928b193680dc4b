"""What every built page must be: links that lead somewhere, nothing from another host, a text for each picture.

No network is asked. Whether outside links answer is another question: make site BUILDER=linkcheck.
"""

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src"),
          ("embed", "src"), ("object", "data"), ("use", "href")}
LOADED_BY_REL = {"stylesheet", "icon", "preload", "modulepreload", "manifest", "preconnect", "dns-prefetch", "prefetch"}
IN_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


class Page(HTMLParser):
    """What a page names: `links` lead elsewhere when clicked, `loads` are fetched when it opens; `silent` are pictures
    without a text alternative.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.links, self.loads, self.silent = set[str](), list[str](), list[str](), list[str]()

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
    for path in sorted([*site.rglob("*.css"), *site.rglob("*.html")]):
        page = read(path)
        found = [f"loads {address} from another host" if is_outside(address) else of_link(site, path, address)
                 for address in dict.fromkeys(page.loads) if not address.startswith(("data:", "#"))]
        found += [of_link(site, path, address) for address in dict.fromkeys(page.links) if not is_outside(address)]
        found += [f"{picture[:60]} has no alt" for picture in page.silent]
        yield from (f"{path.relative_to(site)}: {fault}" for fault in found if fault)


@cache
def read(path: Path) -> Page:
    """A page, or a style sheet as one."""
    page, text = Page(), path.read_text(encoding="utf-8")
    if path.suffix == ".css":
        page.loads = addresses_in(text)
    else:
        page.feed(text)
    return page


def is_outside(address: str) -> bool:
    """Whether the address names a host or a scheme, such as mailto: and data:."""
    return bool(urlsplit(address).scheme) or address.startswith("//")


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
