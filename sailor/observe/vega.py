"""A Vega-Lite specification as inline SVG: static, without a script, for a page of one file.

vl-convert has Vega in it and asks nobody for anything. What it draws is made fit for a page here:
the label of a mark becomes its title, which is read aloud as well and found by the mouse; what
draws nothing and what no eye can see, hundredths of a pixel, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"

# Colours are CSS variables of the page, so that light, dark and print look right.
_CONFIG: Mapping[str, Any] = {
    "background": None,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)", "titleColor": "var(--soft)", "titleFontWeight": "normal",
        "labelFontSize": 12, "titleFontSize": 12, "gridColor": "var(--grid)",
        "domainColor": "var(--axis)", "tickColor": "var(--axis)",
    },
    "text": {"fontSize": 12},
}  # fmt: skip

_EMPTY = {"background", "foreground"}  # rectangles behind and before a group; ours are clear
_DEFAULTS = {"pointer-events": "none", "opacity": "1", "stroke-miterlimit": "10"}
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def as_svg(spec: Mapping[str, Any], *, width: int, height: int, label: str) -> Markup:
    """The chart as an element of this size; ``label`` is what it shows, in words."""
    import vl_convert  # V8 and all: for those who draw

    text = vl_convert.vegalite_to_svg(
        {"$schema": _SCHEMA, "config": _CONFIG, "width": width, "height": height, "padding": 0,
         "autosize": {"type": "fit", "contains": "padding"}, **spec},
        allowed_base_urls=[],
    )  # fmt: skip
    # Within a page the names of the namespaces are understood.
    root = ElementTree.fromstring(re.sub(r' xmlns(:\w+)?="[^"]*"', "", text))
    for one in root.iter():
        _tidy(one)
    root.attrib.pop("version", None)
    root.attrib |= {
        "role": "graphics-document", "aria-roledescription": "chart", "aria-label": label,
    }  # fmt: skip
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _tidy(one: ElementTree.Element) -> None:
    for child in list(one):
        if child.get("class") in _EMPTY:
            one.remove(child)
    for name, value in _DEFAULTS.items():
        if one.get(name) == value:
            del one.attrib[name]
    for name in ("d", "transform"):
        if text := one.get(name):
            one.set(name, _NUMBER.sub(lambda found: f"{float(found[0]):.1f}", text))
    kind = one.attrib.pop("aria-roledescription", "")
    label = one.attrib.pop("aria-label", "")
    if kind == "axis":  # "X-axis titled 'time' for a time scale": its ticks are read as they are
        del one.attrib["role"]
    elif label:
        title = ElementTree.Element("title")
        title.text = label
        one.insert(0, title)
