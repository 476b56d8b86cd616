"""What the reference implementation says to every file of the corpus of tests/unit/weights: writes verdicts.txt.

    make_verdicts.py CORPUS_FILES [--check]     the program build/release/tests/unit/weights/corpus_files

Needs the `safetensors` package of PyPI (Rust inside). Run it again when the corpus changes; --check compares instead
(tests/interop does).
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


def without_reasons(text):
    """Which of several faults the reference names depends on the order of its hash table."""
    return [line.split(" | ")[0] for line in text.splitlines()]


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
    text = head + "".join(line + "\n" for line in lines.values())
    if "--check" in sys.argv:
        recorded = (here / "verdicts.txt").read_text()
        assert without_reasons(recorded) == without_reasons(text), "verdicts.txt is not what the reference says"
    else:
        (here / "verdicts.txt").write_text(text)
    accepted = sum(" accepted " in line for line in lines.values())
    print(f"{len(lines)} files: {accepted} accepted, {len(lines) - accepted} refused")


if __name__ == "__main__":
    main()
