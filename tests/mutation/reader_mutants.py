"""Takes the checks of the safetensors reader away one by one and sees whether a test notices.

Every place in SOURCES that refuses a file becomes several mutants: its condition always false, its condition turned
round, and each part of a condition of several parts left out. All are compiled into one program, which asks the
environment which of them is on; the program is the unit test `safetensors`. A mutant that passes it has survived.

TRAINER_BUILD is a build folder with the test in it, TRAINER_SOURCE_ROOT the source tree. Exits with 1 when one survives.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(os.environ["TRAINER_SOURCE_ROOT"])
BUILD = pathlib.Path(os.environ["TRAINER_BUILD"])
SOURCES = [f"framework/weights/{name}.cpp" for name in
           ("safetensors_header", "header_events", "header_text", "shard_index", "shard_open", "mapped_file")]
REFUSALS = re.compile(r"(?<![\w:.])(?:(?:fail|reject|fail_open|strict_only|throw Error)\s*\(|return \{0, \"ST_)")
# Conditions that decide what is refused though the refusal does not stand right behind them.
DECISIONS = ("size.code == nullptr &&", "scalar.kind == JsonScalar::Kind::integer && scalar.integer <=", "lead ")
# Mutants that no test can notice, and why.
EXCUSED = {
    "without: entry.end >= entry.begin": "a span that ends before it begins wraps to over 2^63 bytes, more than any size",
    "never: !real.is_open()": "needs a link put there between two system calls",
}
TIMEOUT, SLOW_TIMEOUT = 60, 600
SLOW = "Header.RefusesTooMuch:Header.EveryRuleHasThreeExamples:Writer.*"  # asked when all others are content
SWITCH = """#include <cstdlib>
namespace { [[maybe_unused]] bool mutant(int number) {
  static const char* chosen = std::getenv("TRAINER_MUTANT");
  return chosen != nullptr && std::atoi(chosen) == number;
} }
"""


def closing(text, at):
    """Index of the bracket that closes the one at `at`; strings and characters are skipped."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    depth, i = [], at
    while i < len(text):
        c = text[i]
        if c in "\"'" and not (c == "'" and text[i - 1].isdigit()):  # not a digit separator
            i += 1
            while text[i] != c:
                i += 2 if text[i] == "\\" else 1
        elif c in pairs:
            depth.append(pairs[c])
        elif depth and c == depth[-1]:
            depth.pop()
            if not depth:
                return i
        i += 1
    raise ValueError(f"no end of the bracket at {at}")


def conditions(text):
    """(begin, end) of the inside of every `if (...)`, and where what it guards begins."""
    for match in re.finditer(r"\bif (?:constexpr )?\(", text):
        begin = match.end()
        end = closing(text, begin - 1)
        body = end + 1
        while text[body] in " \n{":
            body += 1
        yield begin, end, body


def parts(text, begin, end):
    """The operands of a condition joined by || or && at its top, with the operator; none for a single one."""
    pieces, operators, start, i = [], set(), begin, begin
    while i < end:
        if text[i] in "([{":
            i = closing(text, i)
        elif text[i] in "\"'":
            quote, i = text[i], i + 1
            while text[i] != quote:
                i += 2 if text[i] == "\\" else 1
        elif text[i:i + 2] in ("||", "&&"):
            pieces.append((start, i))
            operators.add(text[i:i + 2])
            start, i = i + 2, i + 1
        i += 1
    pieces.append((start, end))
    return (pieces, operators.pop()) if len(operators) == 1 else ([], "")


class Mutants:
    """Rewrites the sources; `names[number]` says what mutant `number` is."""

    def __init__(self):
        self.names = {}

    def new(self, source, text, at, what):
        number = len(self.names) + 1
        self.names[number] = f"{source}:{text.count(chr(10), 0, at) + 1}: {what}"
        return f"mutant({number})"

    def rewrite(self, source):
        text = (ROOT / source).read_text()
        guarded, changes = {}, {}  # what a condition guards -> the condition; (begin, end) -> new text
        for begin, end, body in conditions(text):
            guarded[body] = (begin, end)
            if text.startswith(DECISIONS, begin):
                changes[begin, end] = self.condition(source, text, begin, end)
        for match in REFUSALS.finditer(text):
            line = text[text.rfind("\n", 0, match.start()) + 1:match.start()]
            before = text[:match.start()].rstrip()
            opener = before[before.rfind("\n") + 1:]
            if re.search(r"\b(void|auto) $|//", line) or re.search(r"\b(fail|reject)\b.*\{$", opener):
                continue  # a function that refuses, not a use of it
            never_returns = text.rfind("[[noreturn]]", 0, match.start())
            inside = text[never_returns:match.start()] if never_returns >= 0 else ""
            if inside.count("{") > inside.count("}") and match.start() not in guarded:
                continue  # its last statement: without it the compiler may do anything
            if match.start() in guarded:
                begin, end = guarded[match.start()]
                changes[begin, end] = self.condition(source, text, begin, end)
            else:
                off = self.new(source, text, match.start(), f"left out: {shown(text[match.start():match.start() + 70])}")
                changes[match.start(), match.start()] = f"if (!{off}) "
        for (begin, end), new in sorted(changes.items(), reverse=True):
            text = text[:begin] + new + text[end:]
        return SWITCH + f'#line 1 "{source}"\n' + text

    def condition(self, source, text, begin, end):
        """The condition with its mutants in it, each off unless chosen."""
        declared = ""  # if (declaration; condition)
        if ";" in text[begin:end] and not text[begin:end].startswith("!"):
            semicolon = text.index(";", begin)
            declared, begin = text[begin:semicolon + 1] + " ", semicolon + 1
        never = self.new(source, text, begin, f"never: {shown(text[begin:end])}")
        turned = self.new(source, text, begin, f"turned round: {shown(text[begin:end])}")
        pieces, operator = parts(text, begin, end)
        whole = text[begin:end]
        if pieces:
            switched = []
            for first, last in pieces:
                without = self.new(source, text, first, f"without: {shown(text[first:last])}")
                neutral = f"!{without} &&" if operator == "||" else f"{without} ||"
                switched.append(f"({neutral} ({text[first:last]}))")
            whole = f" {operator} ".join(switched)
        return f"{declared}!{never} && {turned} != static_cast<bool>({whole})"


def shown(text):
    return re.sub(r"\s+", " ", text).strip()[:100]


def commands():
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    return {os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT): entry for entry in entries
            if "libsafetensors.a.p" in entry["output"]}


def compile_one(folder, source, text, entry):
    copy = folder / pathlib.Path(source).name
    copy.write_text(text)
    words = shlex.split(entry["command"])
    words[words.index("-c") + 1] = str(copy)
    words[words.index("-o") + 1] = str(copy.with_suffix(".o"))
    words = [word for word in words if word not in ("-MD", "-Winvalid-pch") and not word.startswith("-W")]
    for option in ("-MQ", "-MF"):
        if option in words:
            at = words.index(option)
            del words[at:at + 2]
    subprocess.run(words + ["-w", "-O1"], cwd=entry["directory"], check=True)
    return copy.with_suffix(".o")


def link(folder, objects):
    """The unit test with the rewritten objects in front of the library that holds the true ones."""
    tests = sorted((BUILD / "tests/unit/weights/safetensors_test.p").glob("*.o"))
    libraries = [BUILD / "framework/weights/libsafetensors.a", BUILD / "framework/base/libbase.a"]
    found = subprocess.run(["pkg-config", "--libs", "gtest_main", "libxxhash", "libcrypto", "spdlog"], check=True,
                           capture_output=True, text=True).stdout.split()
    program = folder / "mutated_test"
    subprocess.run(["c++", "-o", program, *tests, *objects, *libraries, *found, "-pthread"], check=True)
    return program


def outcome(program, number):
    """None when the tests pass with this mutant, else how they noticed."""
    environment = {**os.environ, "TRAINER_MUTANT": str(number), "GTEST_BREAK_ON_FAILURE": "1"}
    for tests, timeout in ((f"-{SLOW}", TIMEOUT), (SLOW, SLOW_TIMEOUT)):
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            try:
                done = subprocess.run([program, "--gtest_brief=1", f"--gtest_filter={tests}"], capture_output=True,
                                      env={**environment, "TMPDIR": folder}, timeout=timeout, cwd=folder)
            except subprocess.TimeoutExpired:
                return f"no end after {timeout} s"
        if done.returncode != 0:
            return f"exit {done.returncode}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants whose line in --list contains TEXT")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    arguments = parser.parse_args()
    mutants = Mutants()
    rewritten = {source: mutants.rewrite(source) for source in SOURCES}
    if arguments.list:
        print("\n".join(f"{number:4} {name}" for number, name in mutants.names.items()))
        return 0
    with tempfile.TemporaryDirectory(prefix="reader-mutants-") as name, \
            concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        folder, entries = pathlib.Path(name), commands()
        objects = list(pool.map(lambda pair: compile_one(folder, *pair, entries[pair[0]]), rewritten.items()))
        program = link(folder, objects)
        if trouble := outcome(program, 0):
            print(f"the tests fail without any mutant ({trouble})")
            return 1
        numbers = [number for number, what in mutants.names.items() if arguments.only in what
                   and not what.endswith(tuple(EXCUSED))]
        killed = 0
        for number, how in zip(numbers, pool.map(lambda number: outcome(program, number), numbers)):
            killed += how is not None
            if how is None:
                print(f"survived: {mutants.names[number]}")
    print(f"{killed} of {len(numbers)} mutants killed; left out because nothing could notice: {len(EXCUSED)}")
    return 0 if killed == len(numbers) else 1


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
