# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of Sphinx for the documentation site: see tests/gates/docs, which lays out the sources and builds it."""

import posixpath
from pathlib import Path, PurePosixPath

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

project = "gpufleet.checkpoint"
copyright = "2026, gpufleet contributors"
html_title = project
html_theme = "furo"
html_theme_options = {"source_repository": "https://github.com/gpufleet/checkpoint/", "top_of_page_buttons": []}
html_show_sphinx = False
html_copy_source = False
html_use_index = False
# A font or a script from elsewhere would make the site useless behind a firewall.
html_css_files = ["site.css"]
html_static_path = ["static"]

extensions = ["sphinx_antsibull_ext", "myst_parser"]
pygments_style = "ansible"
pygments_dark_style = "monokai"
highlight_language = "yaml+jinja"
default_role = "any"
nitpicky = True
exclude_patterns = ["static"]

# As on the hub: every heading has an anchor. Those of table rows are HTML, which the check of the finished pages sees.
myst_heading_anchors = 4
suppress_warnings = ["myst.xref_missing"]

# The guides are also built where the pages beside them are not, so they name those by their place on the hub.
HUB = "https://github.com/gpufleet/checkpoint/blob/main/"

# What antsibull-docs takes for granted on a site with the documentation of Ansible itself.
ANSIBLE = "https://docs.ansible.com/ansible/latest/"
PLACES = {
    "action_plugins": "plugins/action.html",
    "ansible_configuration_settings": "reference_appendices/config.html",
    "callback_plugins": "plugins/callback.html",
    "common_return_values": "reference_appendices/common_return_values.html",
    "inventory_plugins": "plugins/inventory.html",
}


def look_it_up(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.reference | None:
    """A label of Ansible's own documentation."""
    place = PLACES.get(node["reftarget"])
    return nodes.reference("", "", text, refuri=ANSIBLE + place, internal=False) if place else None


def name_the_others(app: Sphinx, docname: str, content: list[str]) -> None:
    """A page that the index does not name stands behind those that it does."""
    if docname == "index":
        pages = [page for page in app.env.found_docs if page.startswith(("docs/", "roles/"))]
        others = sorted(page for page in pages if page not in content[0].split())
        content[0] = content[0].replace("OTHERS", "\n   ".join(others))


def drop_contents(app: Sphinx, doctree: nodes.document) -> None:
    """The theme has them beside the page, and shows an error where antsibull-docs puts them into it as well."""
    for topic in list(doctree.findall(nodes.topic)):
        if "contents" in topic["classes"]:
            topic.parent.remove(topic)
    for title in doctree.findall(nodes.title):
        title.attributes.pop("refid", None)  # its entry there


def shorten_titles(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """In the list beside the page: the name by which a module or role is known."""
    for page, contents in env.tocs.items():
        link = next(contents.findall(nodes.reference))
        name, _dash, _what = link.astext().partition(" \N{EN DASH} ")
        if page.startswith("reference/") and name.endswith((" module", " role")):
            link.children = [nodes.Text(name.removeprefix(f"{project}."))]
    return []


def lead_to_the_hub(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Relative links to files that are no pages, which are left as anchors, lead to the hub."""
    sources = Path(app.srcdir).parent / "collections/ansible_collections/gpufleet/checkpoint"
    for node in doctree.findall(nodes.reference):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(docname), node.get("refid", "")))
        if node.get("refid", "").startswith("../") and (sources / path).exists():
            del node["refid"]
            node["refuri"] = HUB + path
            node["internal"] = False


def stay_on_the_site(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Links to pages on the hub that this site has as well lead to the site's."""
    for node in doctree.findall(nodes.reference):
        path, hash_, anchor = node.get("refuri", "").removeprefix(HUB).partition("#")
        page = str(PurePosixPath(path).with_suffix("")) if path.endswith(".md") else ""
        if node.get("refuri", "").startswith(HUB) and page in app.env.found_docs:
            node["refuri"] = app.builder.get_relative_uri(docname, page) + hash_ + anchor
            node["internal"] = True


def setup(app: Sphinx) -> None:
    app.connect("source-read", name_the_others)
    app.connect("doctree-read", drop_contents)
    app.connect("env-updated", shorten_titles)
    app.connect("missing-reference", look_it_up)
    app.connect("doctree-resolved", lead_to_the_hub)
    app.connect("doctree-resolved", stay_on_the_site)
