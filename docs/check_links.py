"""Print the local links of a built site that lead nowhere: python docs/check_links.py FOLDER."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["broken_links"]


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what it links to, and what can be linked to."""
        for name, value in attributes:
            if name in ("href", "src") and value is not None:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(folder: Path) -> list[str]:
    """`page: link` for each local link of the pages under `folder` without a target."""
    paths = sorted(each for each in folder.rglob("*.html") if "_static" not in each.parts)
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in paths}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            known = pages[target].anchors if target in pages else None
            missing = anchor and known is not None and anchor not in known
            if not target.exists() or missing:
                broken.append(f"{path.relative_to(folder.resolve())}: {link}")
    return broken


if __name__ == "__main__":
    found = broken_links(Path(sys.argv[1]))
    print(*found, sep="\n")
    sys.exit(bool(found))
