"""The documentation site: `make docs` builds it into build/docs/html, without a network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ondes

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from first_sounds import write_first_sounds  # noqa: E402
from pages import write_commands, write_guides, write_reference  # noqa: E402

project = "ondes"
author = "the ondes developers"
project_copyright = "the ondes developers, BSD 3-Clause"
version = release = ondes.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_click",
    "sphinx_gallery.gen_gallery",
    "terms",
]
exclude_patterns = ["gallery", "figures", "templates", "**/GALLERY_HEADER.rst"]
templates_path = ["templates"]
default_role = "literal"  # `name` in a docstring
language = "en"
smartquotes_action = "qe"  # quotes and ellipses: dashes would spoil the names of options

# Examples on real recordings, left out where there are none.
RECORDINGS = Path(os.environ.get("ONDES_RECORDINGS", "build/recordings"))
ON_RECORDINGS = {
    "plot_17_a_real_song": "music/wesnoth/transience.ogg",
    "plot_18_birds_by_the_sea": "noise/wesnoth/ship.ogg",
}
left_out = [name for name, path in ON_RECORDINGS.items() if not (RECORDINGS / path).is_file()]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings have them, with shapes
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "filename_pattern": r"plot_",
    "ignore_pattern": "|".join([r"__init__\.py", *left_out]),
    "image_scrapers": ("matplotlib", "players"),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,  # its page loads scripts from the network
    "show_signature": False,
    "remove_config_comments": True,
    "within_subsection_order": "FileNameSortKey",
    "plot_gallery": "True",
}

html_theme = "pydata_sphinx_theme"
html_title = f"ondes {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": True,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "logo": {"text": "ondes"},
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
# No empty sidebar on pages that have no pages below them.
html_sidebars = {page: [] for page in ("start", "algorithm", "results")}
suppress_warnings = ["config.cache"]

write_reference(HERE / "reference")
write_commands(HERE / "commands")
write_guides(HERE)
write_first_sounds(HERE)


def examples_as_code(app, ctx, lines):
    """Examples in the help of a command, which are lines that begin with a bar, become code."""
    del app, ctx
    text, in_code = [], False
    for line in lines:
        is_code = line.startswith("| ")
        if is_code and not in_code:
            text += [".. code-block:: sh", ""]
        if in_code and not is_code:
            text.append("")
        text.append(f"   {line[2:]}" if is_code else line)
        in_code = is_code
    lines[:] = [*text, ""]


def skip_requests(app, what, name, obj, skip, options):
    """Leave out `set_fit_request` and its like: scikit-learn writes them, with links of its own."""
    del app, what, obj, options
    return True if name.startswith("set_") and name.endswith("_request") else skip


def setup(app):
    """Connect what is above."""
    app.connect("autodoc-skip-member", skip_requests)
    app.connect("sphinx-click-process-description", examples_as_code)
