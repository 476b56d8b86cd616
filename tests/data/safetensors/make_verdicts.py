"""What the reference implementation says to every file of the corpus of tests/unit/weights: writes verdicts.txt.

    make_verdicts.py CORPUS_FILES     the program build/release/tests/unit/weights/corpus_files

Needs the `safetensors` package of PyPI (Rust inside). Run it again when the corpus changes.
"""

import pathlib
import subprocess
import sys
import tempfile

import safetensors


def verdict(file):
    try:
        safetensors.deserialize(file.read_bytes())
    except safetensors.SafetensorError as error:
        return "refused", str(error).splitlines()[0]
    return "accepted", ""


def main():
    here = pathlib.Path(__file__).parent
    lines = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        listing = subprocess.run([sys.argv[1], folder], check=True, capture_output=True, text=True).stdout
        for line in listing.splitlines():
            file, content, label = line.split(" ", 2)
            said, why = verdict(folder / file)
            lines[content] = f"{content} {said} {label}" + (f" | {why[:120]}" if why else "")
    head = f"# safetensors {safetensors.__version__} on the files of tests/unit/weights/corpus_*.cpp; made by make_verdicts.py\n"
    (here / "verdicts.txt").write_text(head + "".join(line + "\n" for line in lines.values()))
    accepted = sum(" accepted " in line for line in lines.values())
    print(f"{len(lines)} files: {accepted} accepted, {len(lines) - accepted} refused")


if __name__ == "__main__":
    main()
