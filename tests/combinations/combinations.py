"""The combinations of recipes/combinations, what a run of one leaves, and the table of them in the README."""

import array
import dataclasses
import json
import math
import pathlib
import re
import struct
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes" / "combinations"
PLACEMENTS = ("single", "split")
RECOMPUTING = {"full_checkpointing", "selective_checkpointing"}  # all others pack weights
HEAD = """\
| recipes | strategies | one device: peak | planned | time of a step | two devices: first | second | against the plain run |
|---|---|---|---|---|---|---|---|
"""


def names():
    """All combinations, the row's name first: [("fp8-full", "single"), ...]."""
    return sorted(tuple(path.stem.rsplit("-", 1)) for path in RECIPES.glob("*.toml"))


def rows():
    """The names of the table's rows, fewer strategies first."""
    return sorted({row for row, _ in names()}, key=lambda row: (len(strategies(row)), row))


def strategies(row):
    """The strategies of a row, the same in all its recipes."""
    lists = {tuple(tomllib.loads(path.read_text())["memory"]["strategies"]) for path in
             (RECIPES / f"{name}-{placement}.toml" for name, placement in names() if name == row)}
    (only,) = lists
    return list(only)


def packing(row):
    """Those strategies that pack weights, which changes results within a bound."""
    return [name for name in strategies(row) if name not in RECOMPUTING]


def bound(row):
    """How far from the plain run the manifests of these strategies allow losses and gradients to be, relative; 0: no bit."""
    bounds = [0.0]
    for name in packing(row):
        (manifest,) = (ROOT / "strategies").rglob(f"{name}.plugin.toml.in")
        bounds.append(tomllib.loads(manifest.read_text()).get("tolerance", {}).get("dense", 0.1))  # 0.1 when it says none
    return max(bounds)


def tensors(raw):
    """Name -> fp32 numbers, of the bytes of a safetensors file."""
    length = struct.unpack("<Q", raw[:8])[0]
    found = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if entry.get("dtype") != "F32":
            continue
        begin, end = entry["data_offsets"]
        found[name] = array.array("f", raw[8 + length + begin : 8 + length + end])
    return found


def distance(found, plain):
    """Norm of the difference over the norm, all tensors as one vector."""
    apart = math.fsum((x - y) ** 2 for name in plain for x, y in zip(found[name], plain[name], strict=True))
    return math.sqrt(apart / math.fsum(y * y for numbers in plain.values() for y in numbers))


@dataclasses.dataclass
class Trained:
    """What a run left. Two runs are equal to the bit when `bits` are."""

    losses: list
    lora: bytes
    state: bytes  # weights and moments of the optimizer
    log: list

    @property
    def bits(self):
        return self.losses, self.lora, self.state

    @property
    def moments(self):
        """Adam's first ones: after one step a tenth of the gradients."""
        return {name: numbers for name, numbers in tensors(self.state).items() if name.endswith(".exp_avg")}

    @property
    def seconds(self):
        return min(line["seconds"] for line in self.log[1:])

    def bytes_of(self, device):
        use = self.log[-1]["bytes"][device]
        return max(use["step"], use["later_steps"])


def megabytes(count):
    return f"{count / 1e6:.1f} MB"


def table(folder):
    """The rows as Markdown, of the results in `folder`, one file a combination. Throws FileNotFoundError where one lacks."""
    text = HEAD
    for row in rows():
        single, split = (json.loads((pathlib.Path(folder) / f"{row}-{placement}.json").read_text()) for placement in PLACEMENTS)
        used = ", ".join(f"`{name}`" for name in strategies(row)) or "none"
        cells = [f"`{row}`", used, *single["cells"], *split["cells"], single["result"]]
        text += f"| {' | '.join(cells)} |\n"
    return text


def readme_table():
    """The table in the README."""
    before, after = (ROOT / "README.md").read_text().split(HEAD)
    return HEAD + after[: after.index("\n\n") + 1]


def readme_rows():
    """Row name -> cells after it, of the README's table."""
    found = {}
    for line in readme_table()[len(HEAD) :].splitlines():
        name, *cells = (cell.strip() for cell in line.strip("| ").split("|"))
        found[name.strip("`")] = cells
    return found


def write_readme(text):
    page = ROOT / "README.md"
    page.write_text(page.read_text().replace(readme_table(), text))


def numbers_in(cell):
    """(the words of a cell with # for its numbers, the numbers)."""
    return re.sub(r"\d+(\.\d+)?", "#", cell), [float(number) for number in re.findall(r"\d+(?:\.\d+)?", cell)]

