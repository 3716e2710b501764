"""Sphinx configuration."""

project = "Fredholm"
author = "The Fredholm developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
html_theme = "furo"
html_title = "Fredholm"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
exclude_patterns = ["_build"]
suppress_warnings = ["myst.xref_missing"]
