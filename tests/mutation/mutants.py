"""Takes checks of what reads files of others away one by one and sees whether a test notices.

A group of GROUPS is some sources and the tests that are to notice. Each of its mutants (rewrite.py says which there are)
is compiled into one program, or into one library that the program opens, which asks the environment which of them is on.
A mutant with which all tests of its group pass has survived.

TRAINER_BUILD is a build folder with the tests in it, TRAINER_SOURCE_ROOT the source tree. Exits with 1 when one survives.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import rewrite

ROOT = pathlib.Path(os.environ["TRAINER_SOURCE_ROOT"])
BUILD = pathlib.Path(os.environ["TRAINER_BUILD"])
TIMEOUT, SLOW_TIMEOUT = 120, 600


@dataclasses.dataclass
class Group:
    folder: str
    names: tuple  # sources in the folder, without .cpp
    tests: tuple  # programs, each with the tests in it: (path below BUILD, --gtest_filter)
    refusals: str = r"(?<![\w:.])throw Error\s*\("
    decisions: tuple = ()
    excused: dict = dataclasses.field(default_factory=dict)  # mutants that no test can notice, and why
    slow: str = "-"  # tests that are asked when all others are content
    library: str = ""  # the sources are in this library, which the tests open by the name in TRAINER_IMAGE_MODULE
    options: tuple = ()

    def sources(self):
        return [f"{self.folder}/{name}.cpp" for name in self.names]


IMAGES = "framework/data/libtrainer_images.so"
WEIGHTS, SAFETENSORS = "tests/unit/weights/weights_test", "tests/unit/weights/safetensors_test"
SLOW_HEADERS = "Header.RefusesTooMuch:Header.EveryRuleHasThreeExamples:Header.ParsesInFourTimesItsSize:Writer.*"
GROUPS = {
    "reader": Group(
        "framework/weights",
        ("safetensors_header", "header_events", "shard_index", "shard_open", "mapped_file"),
        ((SAFETENSORS, "*"),), options=("-O1",),
        refusals=r"(?<![\w:.])(?:(?:fail|reject|fail_open|strict_only|throw Error)\s*\(|return \{0, \"ST_)",
        decisions=("size.code == nullptr &&", "scalar.kind == JsonScalar::Kind::integer && scalar.integer <="),
        slow=SLOW_HEADERS,
        excused={
            "without: entry.end >= entry.begin": "a span that ends before it begins wraps to over 2^63 bytes, more than any size",
            "never: !real.is_open()": "needs a link put there between two system calls",
        }),
    "utf8": Group("framework/base", ("utf8",), ((SAFETENSORS, "Header.*"),), refusals=r"return (?:at|0);", decisions=("lead ",),
                  options=("-O1",), slow=SLOW_HEADERS),
    "tensors": Group("framework/weights", ("tensor_file", "model_files", "write"), ((WEIGHTS, "*"),),
                     decisions=("values[i] <= 1", "large && aligned", "tensor.type == at::kBool")),
    "writer": Group("framework/weights", ("safetensors_writer",), ((SAFETENSORS, "Writer.*"),)),
    "finite": Group("framework/weights", ("convert",), ((WEIGHTS, "Finite.*:Convert.*"),), refusals=r"return (?:true|false|finite_piece|all_finite)\b",
                    decisions=("file ==", "known ==")),
    "keys": Group("framework/sdk/src", ("key_contract",), ((SAFETENSORS, "KeyContract.*"),),
                  decisions=("!present.contains", "!wanted.contains", "have.shape !=", "!want->dtype.empty()",
                             "problems.empty()")),
    "lora": Group("framework/adapter", ("lora_read", "lora_stated", "lora_keys"), (("tests/unit/adapter/adapter_test", "*"),),
                  refusals=r"(?<![\w:.])(?:return )?(?:(?:problems_?|twice)\.add|throw Error|fail)\s*\("),
    "checkpoint": Group("framework/checkpoint", ("manifest", "recovery", "store"),
                        (("tests/unit/checkpoint/checkpoint_test", "*"),),
                        refusals=r"(?<![\w:.])(?:refuse|throw Error)\s*\(",
                        excused={
                            "never: size_of(temp / record.name) != record.bytes":
                                "needs a (network) file system that shows another size than was written and synced",
                        }),
    "run_folder": Group("framework/checkpoint", ("committed", "attempts", "earlier"),
                        (("tests/unit/run_guard/run_guard_test", "-RunLock*"),
                         ("tests/unit/checkpoint/checkpoint_test", "Attempts*"))),
    "recipe": Group("framework/recipe", ("compose", "document", "load", "rules", "values", "manifest_schema"),
                    (("tests/unit/recipe/recipe_test", "*"),), options=("-O1",),
                    refusals=r"(?<![\w:.])(?:return |throw )?(?:(?:reading_?\.)?problems_?\.add|(?<=throw )Error|fail)\s*\("),
    "captions": Group("framework/data", ("caption", "metadata", "listing", "texts", "image"), (("tests/unit/data/data_test", "*"),),
                      refusals=r"(?<![\w:.])(?:throw (?:Error|refused)\s*\(|row\.problem =|unavailable\s*\()"),
    "images": Group("framework/data", ("images_module",), (("tests/unit/data/data_test", "Image*"),),
                    refusals=r"(?<![\w:.])throw Refused\s*\(", library=IMAGES,
                    excused={
                        "never: !started": "needs a libvips that cannot start",
                        "never: result != 0 && ink": "libvips takes its own profile for one that is damaged",
                        "without: ink": "as above: no conversion by a profile fails",
                        "without: !succeeded": "libvips fails with a reason noted, which is the other part",
                        "without: *vips_error_buffer() != '\\0'": "needs a tile that another thread fails to decode while libvips reports success",
                        "never: result != 0": "libvips converts and turns whatever it has decoded, unless memory runs out",
                        "never: made == nullptr": "sizes are checked before, so memory would have to run out",
                    }),
}


@dataclasses.dataclass
class Unit:
    """What one compiler call makes an object of: a source, or a file of the build that includes some (Meson's unity)."""
    entry: dict   # of compile_commands.json
    sources: set  # of the tree


def units():
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["directory"], entry["file"])
        if "-unity" in file.name:
            included = re.findall(r'#include\s*[<"]([^">]+)[">]', file.read_text())
            yield Unit(entry, {os.path.relpath(os.path.join(file.parent, name), ROOT) for name in included})
        else:
            yield Unit(entry, {os.path.relpath(file, ROOT)})


def command_of(target):
    """What links the target of the build."""
    return shlex.split(subprocess.run(["ninja", "-C", BUILD, "-t", "commands", target], check=True, capture_output=True,
                                      text=True).stdout.splitlines()[-1])


def unit_of(source, known, linked):
    """Several libraries may have the source: the unit of one that is among the words of the command that links."""
    found = [unit for unit in known if source in unit.sources]
    named = [unit for unit in found if unit.entry["output"] in linked or os.path.dirname(unit.entry["output"])[:-len(".p")] in linked]
    return named[0] if named else sys.exit(f"{source} is in nothing that the tests of its group link")


def compile_one(folder, unit, rewritten, options):
    """An object of the unit with the rewritten ones of its sources."""
    copies = {}
    for source in unit.sources:
        copies[source] = ROOT / source
        if source in rewritten:
            copies[source] = folder / pathlib.Path(source).name
            copies[source].write_text(rewritten[source])
    name, entry = min(unit.sources), unit.entry
    copy = folder / f"unit_{pathlib.Path(name).name}"
    copy.write_text("".join(f'#include "{file}"\n' for _, file in sorted(copies.items())))
    words = shlex.split(entry["command"])
    words[words.index("-c") + 1] = str(copy)
    words[words.index("-o") + 1] = str(copy.with_suffix(".o"))
    words = [word for word in words if word not in ("-MD", "-Winvalid-pch") and not word.startswith("-W")]
    for option in ("-MQ", "-MF"):
        if option in words:
            at = words.index(option)
            del words[at:at + 2]
    done = subprocess.run(words + ["-w", "-I", (ROOT / name).parent, *options], cwd=entry["directory"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{name} with its mutants does not compile:\n{done.stderr[-3000:]}")
    return copy.with_suffix(".o")


def link(target, objects, replaced):
    """The target of the build with the rewritten objects in front of the libraries that hold the true ones, beside it."""
    words = [word for word in command_of(target) if not (replaced and word.endswith(tuple(replaced)))]
    path = pathlib.Path(target)
    made = BUILD / path.parent / f".mutated-{os.getpid()}-{path.name}"
    at = words.index("-o")
    subprocess.run(words[:at] + ["-o", made, "-Wl,--allow-multiple-definition", *objects] + words[at + 2:], cwd=BUILD, check=True)
    return made


def outcome(group, programs, library, number):
    """None when the tests pass with this mutant, else how they noticed."""
    environment = {**os.environ, "TRAINER_MUTANT": str(number), "GTEST_BREAK_ON_FAILURE": "1",
                   "TRAINER_IMAGE_MODULE": str(library or BUILD / IMAGES)}
    rounds = [(program, f"{tests}-{group.slow}".removesuffix("--"), TIMEOUT) for program, tests in programs]
    rounds += [(program, group.slow, SLOW_TIMEOUT) for program, _ in programs if group.slow != "-"]
    for program, tests, timeout in rounds:
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            try:
                done = subprocess.run([program, "--gtest_brief=1", f"--gtest_filter={tests}"], capture_output=True,
                                      env={**environment, "TMPDIR": folder}, timeout=timeout, cwd=folder)
            except subprocess.TimeoutExpired:
                return f"no end after {timeout} s"
        if done.returncode != 0:
            return f"exit {done.returncode}"
    return None


def build(group, folder, rewritten, pool):
    """Programs with the mutants in them (and the filters of their tests), and the library, if it is one."""
    known = list(units())
    targets = [group.library] if group.library else [program for program, _ in group.tests]
    linked = {word for target in targets for word in command_of(target)}
    changed = {unit.entry["output"]: unit for unit in (unit_of(source, known, linked) for source in rewritten)}
    objects = list(pool.map(lambda unit: compile_one(folder, unit, rewritten, group.options), changed.values()))
    if group.library:
        library = link(group.library, objects, [pathlib.Path(output).name for output in changed])
        return [(BUILD / program, tests) for program, tests in group.tests], library
    return [(link(program, objects, []), tests) for program, tests in group.tests], None


def run(name, group, arguments):
    """(killed, all, excused) of a group."""
    mutants = rewrite.Mutants(ROOT, re.compile(group.refusals), group.decisions)
    rewritten = {source: mutants.rewrite(source) for source in group.sources()}
    if arguments.list:
        print("\n".join(f"{name} {number:4} {what}" for number, what in mutants.names.items()))
        return 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, \
            concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        programs, library = build(group, pathlib.Path(folder), rewritten, pool)
        try:
            if trouble := outcome(group, programs, library, 0):
                sys.exit(f"{name}: the tests fail without any mutant ({trouble})")
            numbers = [number for number, what in mutants.names.items() if arguments.only in what
                       and not what.endswith(tuple(group.excused) or ("\0",))]
            killed = 0
            for number, how in zip(numbers, pool.map(lambda n: outcome(group, programs, library, n), numbers)):
                killed += how is not None
                if how is None:
                    print(f"survived: {mutants.names[number]}")
        finally:
            for made in [library] if library else [program for program, _ in programs]:
                made.unlink()
    print(f"{name}: {killed} of {len(numbers)} mutants killed; left out because nothing could notice: {len(group.excused)}")
    return killed, len(numbers), len(group.excused)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="of " + ", ".join(GROUPS) + "; all when none is named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants whose line in --list contains TEXT")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    arguments = parser.parse_args()
    totals = [run(name, GROUPS[name], arguments) for name in arguments.groups or GROUPS]
    killed, all_of_them, excused = (sum(column) for column in zip(*totals))
    if len(totals) > 1 and not arguments.list:
        print(f"{killed} of {all_of_them} mutants killed; left out because nothing could notice: {excused}")
    return 0 if killed == all_of_them else 1


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
