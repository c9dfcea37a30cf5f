"""How the documentation is built."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
sys.path.insert(0, str(HERE))

project = "aiomailbox"
author = "the aiomailbox authors"
copyright = author
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["aiomailbox.css"]
# A copied example is without its prompts.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "link_names",
    "overloads",
]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

# A page about an example that is not there would include a file that is not there. An
# example is a file or a package.
exclude_patterns = ["_build"] + [
    f"examples/{page.name}"
    for page in sorted((HERE / "examples").glob("*.md"))
    if page.stem != "index"
    and not (EXAMPLES / f"{page.stem}.py").exists()
    and not (EXAMPLES / page.stem / "__main__.py").exists()
]

default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
# Not what whoever makes an object passes in, where users make none.
autodoc_typehints_description_target = "documented_params"
# The reference is built without Spark; where it is installed it is not mocked.
autodoc_mock_imports = [
    name
    for name in ("aiostream", "numpy", "pandas", "py4j", "pyarrow", "pyspark")
    if importlib.util.find_spec(name) is None
]
napoleon_custom_sections = ["Concept", "Cost", "Invariants"]
napoleon_use_ivar = True
