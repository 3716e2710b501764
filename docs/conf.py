"""Sphinx configuration."""

import logging
import os
import sys
import warnings
from pathlib import Path

project = "Fredholm"
author = "The Fredholm developers"

# Examples start programs of their own, which find the package as this process does.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
# No intersphinx: it fetches other projects' inventories at every build, which is to work offline.

html_theme = "furo"
html_title = "Fredholm"
html_static_path = ["_static"]
html_css_files = ["fredholm.css"]
exclude_patterns = ["_build", "**/sg_execution_times.rst", "sg_execution_times.rst"]
# Classes of conf.py cannot be pickled; the build is not cached between runs anyway.
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Deprecations inside other packages are not the reader's.
warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=UserWarning)

for name in ("onnxscript", "onnx_ir"):
    logging.getLogger(name).setLevel(logging.WARNING)

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "backreferences_dir": "gallery/backreferences",
    "within_subsection_order": "gallery_order.ExampleOrder",
    "minigallery_sort_order": "gallery_order.place",
    "ignore_pattern": "worker",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "min_reported_time": 1000,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib", "gallery_order.reset"),
    "show_signature": False,
}
