"""Links to the glossary: the first use of each of its terms on a page leads there.

Pages need no markup for it. A term is linked in running text and in tables, not in headings, bold
text, code or other links. Words that also mean something else are linked only where they are
emphasised, and other emphasised text is left alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["first_uses", "glossary_terms", "setup"]

# Words of everyday English: `*level*` is the term, `level` may be anything.
AMBIGUOUS = frozenset({"batch", "bin", "decibel", "K", "kernel", "level", "magnitude", "model",
                       "online", "pass", "power", "source", "statistics"})  # fmt: skip
OTHER_FORMS = {"mini-batch": "batch", "mini-batches": "batch", "dictionaries": "dictionary",
               "hop length": "hop", "spectra": "spectrum"}  # fmt: skip
# A word of these is not the term.
OTHER_MEANINGS = ("Gaussian mixture",)
# No links: the glossary itself, and what is made from code or from other pages.
NOT_LINKED = ("glossary", "reference/", "commands", "changelog", "contributing", "results")


def glossary_terms(text: str) -> list[str]:
    """The terms that the text of glossary.md defines, in its order."""
    listed = re.search(r"^```\{glossary\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^(\S.*)$", listed[1], re.MULTILINE) if listed else []


def forms_of(terms: list[str]) -> dict[str, str]:
    """Each form in which a term is written, in lower case unless it is an abbreviation -> term."""
    forms = {form: term for form, term in OTHER_FORMS.items() if term in terms}
    for term in terms:
        forms[term] = term
        if term.islower():
            forms[f"{term}s"] = term
    return forms


def first_uses(text: str, forms: dict[str, str], seen: set[str]) -> list[tuple[int, int, str]]:
    """Start, end and term of each first use in a text; adds the terms to `seen`."""
    longest_first = sorted([*forms, *OTHER_MEANINGS], key=len, reverse=True)
    pattern = rf"(?<![\w/.-])({'|'.join(map(re.escape, longest_first))})(?![\w/-]|\.\w)"
    uses = []
    for match in re.finditer(pattern, text, re.IGNORECASE):
        found = match[0] if match[0] in forms else match[0].lower()
        term = forms.get(found)
        if term and term not in seen:
            seen.add(term)
            uses.append((match.start(), match.end(), term))
    return uses


def link_terms(app: Any, doctree: Any) -> None:
    """Replace first uses by links, once Sphinx has read a page."""
    from docutils import nodes
    from sphinx import addnodes

    page = app.env.docname
    if page.startswith(NOT_LINKED):
        return
    terms = glossary_terms(Path(app.srcdir, "glossary.md").read_text(encoding="utf-8"))
    forms = forms_of(terms)
    plain = {form: term for form, term in forms.items() if term not in AMBIGUOUS}
    plain |= {form: term for form, term in OTHER_FORMS.items() if term in terms}
    never = (nodes.title, nodes.strong, nodes.literal, nodes.literal_block, nodes.reference,
             nodes.raw, nodes.comment, addnodes.pending_xref, addnodes.toctree,
             addnodes.download_reference)  # fmt: skip
    seen: set[str] = set()
    for text in list(doctree.findall(nodes.Text)):
        above, node = [], text.parent
        while node is not None:
            above.append(node)
            node = node.parent
        if any(isinstance(each, never) for each in above):
            continue
        is_term = isinstance(text.parent, nodes.emphasis) and text.astext().lower() in forms
        if isinstance(text.parent, nodes.emphasis) and not is_term:  # the title of a paper
            continue
        uses = first_uses(text.astext(), forms if is_term else plain, seen)
        parts, end = [], 0
        for start, stop, term in uses:
            said = text.astext()[start:stop]
            link = addnodes.pending_xref(
                said, nodes.inline(said, said, classes=["std", "std-term"]), reftype="term",
                refdomain="std", reftarget=term, refexplicit=True, refdoc=page, refwarn=True,
            )  # fmt: skip
            parts += [nodes.Text(text.astext()[end:start]), link]
            end = stop
        if parts:
            parts.append(nodes.Text(text.astext()[end:]))
            text.parent.replace(text, parts)


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("doctree-read", link_terms)
    return {"parallel_read_safe": True}
