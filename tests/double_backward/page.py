"""The tables of docs/double-backward.md."""

import os
import pathlib

ROOT = pathlib.Path(os.environ["TRAINER_SOURCE_ROOT"])
PAGE = ROOT / "docs/double-backward.md"


def tables():
    """Rows of each table, without its heading: lists of cells."""
    found, rows = [], None
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            rows = None
        elif line.startswith("|---"):
            rows = []
            found.append(rows)
        elif rows is not None:
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return found
