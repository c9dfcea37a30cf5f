"""How the documentation is built."""

from __future__ import annotations

project = "aiomailbox"
author = "the aiomailbox authors"
copyright = author
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
