"""The sentences of a page."""

from __future__ import annotations

import re


def sentences_of(text: str, *, as_written: bool = False) -> list[str]:
    """Return the sentences of a page's prose.

    Args:
        text: The page, in Markdown.
        as_written: Whether code and links stay as they are, and are not single words.
    """
    text = re.sub(r"^```.*?^```", "\n", text, flags=re.DOTALL | re.MULTILINE)
    if not as_written:
        text = re.sub(r"`[^`]*`", "Code", text)
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"<\1>", text)
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            blocks.append([])
        elif line.startswith("|"):
            blocks += [[cell.strip()] for cell in line.strip("|").split(" | ")]
            blocks.append([])
        elif re.match(r"\s*([*-]|\d+\.) ", line):
            blocks.append([line.strip().lstrip("*- ")])
        else:
            blocks[-1].append(line.strip())
    found: list[str] = []
    for block in blocks:
        found += re.split(r"(?<=[.!?])\s+(?=[A-Z<*(`\[])", " ".join(block))
    return [sentence for sentence in found if sentence]
