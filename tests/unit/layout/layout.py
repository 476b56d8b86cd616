#!/usr/bin/env python3
"""The rules of the source tree as tests: `layout.py RULE [ROOT]` prints every violation and exits with 1 if there is one.

Each rule is a function of the tree's root that returns messages "file:line: what is wrong and what to do".
layout_test.py shows for every rule that it can fail.
"""
import ast
import importlib.machinery
import importlib.util
import pathlib
import re
import sys

CODE = (".cpp", ".hpp", ".h", ".cu", ".cuh")
HEADERS = (".hpp", ".h", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PRODUCT = ("framework", "plugins", "strategies")
RULES = {}


def rule(function):
    RULES[function.__name__] = function
    return function


def sources(root, folders, suffixes=CODE):
    """Source files below the folders of `root`, as paths relative to it, in order."""
    return [path.relative_to(root) for folder in folders for path in sorted((root / folder).rglob("*"))
            if path.suffix in suffixes and path.is_file()]


def lines(root, path):
    return (root / path).read_text().splitlines()


def includes(root, path):
    """(line number, quote or <, name) of each include of a file."""
    for number, line in enumerate(lines(root, path), 1):
        if match := INCLUDE.match(line):
            yield number, match[1], match[2]


def modules(root):
    """[(module, may use LibTorch)] lowest first."""
    rows = [line.split() for line in lines(root, "tests/unit/layout/modules.txt") if line and not line.startswith("#")]
    return [(name, kind == "torch") for name, kind in rows]


def module_included(name, known):
    """The module of ours an include names, or None."""
    if name.startswith("trainer/"):
        return "sdk"
    first = name.split("/")[0]
    return first if "/" in name and first in known else None


@rule
def module_order(root):
    """A module includes only modules above it; the root meson.build keeps the same order."""
    order = [name for name, _ in modules(root)]
    problems = []
    for path in sources(root, ["framework"]):
        own = path.parts[1]
        if own not in order:
            problems.append(f"{path}:1: module {own} is not in tests/unit/layout/modules.txt")
            continue
        for number, quote, name in includes(root, path):
            other = module_included(name, order)
            if own != "sdk" and name.startswith("sdk/"):
                problems.append(f"{path}:{number}: <{name}> is a private source of the SDK; include <trainer/sdk/...>")
            elif quote == '"':
                if path.parts[:3] == ("framework", "sdk", "src"):  # private headers of the SDK, outside its include folder
                    continue
                problems.append(f'{path}:{number}: write <{own}/{name}>: includes start at framework/')
            elif other and order.index(other) > order.index(own):
                problems.append(f"{path}:{number}: {own} includes <{name}>, but {other} is above {own}")
            elif other and own == "kernels" and other not in ("kernels", "sdk"):
                problems.append(f"{path}:{number}: kernels includes <{name}>; it knows nothing of ours but the SDK")
    built = re.findall(r"^subdir\('framework/(\w+)'\)", (root / "meson.build").read_text(), re.MULTILINE)
    if built != order:
        problems.append(f"meson.build:1: lists the modules as {' '.join(built)}; modules.txt as {' '.join(order)}")
    return problems


def module_uses(root):
    """{module: modules it includes}, without those that it reaches through another one it includes."""
    order = [name for name, _ in modules(root)]
    uses = {name: set() for name in order}
    for path in sources(root, ["framework"]):
        for _, _, name in includes(root, path):
            other = module_included(name, order)
            if path.parts[1] in uses and other and other != path.parts[1]:
                uses[path.parts[1]].add(other)
    reach = {}
    for name in order:  # lowest first
        reach[name] = uses[name].union(*(reach.get(other, set()) for other in uses[name]))
    return {name: {one for one in uses[name] if not any(one in reach.get(other, ()) for other in uses[name])}
            for name in order}


@rule
def module_picture(root):
    """The picture of the modules in docs/architecture.md has the arrows of the includes."""
    page = "docs/architecture.md"
    text = (root / page).read_text() if (root / page).is_file() else ""
    drawn = set(re.findall(r"^ *(\w+) --> (\w+)$", text, re.MULTILINE))
    real = {(name, other) for name, others in module_uses(root).items() for other in others}
    return ([f"{page}:1: the picture lacks the arrow: {a} --> {b}" for a, b in sorted(real - drawn)] +
            [f"{page}:1: no include stands for the arrow: {a} --> {b}" for a, b in sorted(drawn - real)])


ANY_INCLUDE = re.compile(r"^\s*#\s*(include|include_next|import)\b")
# What a plugin includes by <...>: the SDK, LibTorch, the standard library, and the JSON library, for config.json.
FOR_PLUGINS = re.compile(r"trainer/sdk/|(ATen|c10|torch)/|[a-z_]+$|nlohmann/json\.hpp$")


@rule
def plugin_includes(root):
    """A plugin or strategy has no door that a third party lacks: it includes the SDK, LibTorch, the standard library and
    headers in its own folder, nothing else of ours."""
    problems = []
    for path in sources(root, ["plugins", "strategies"]):
        own = pathlib.Path(*path.parts[:2 if path.parts[0] == "plugins" else 3])
        for number, line in enumerate(lines(root, path), 1):
            if not ANY_INCLUDE.match(line):
                continue
            match = INCLUDE.match(line)
            if match is None:
                problems.append(f"{path}:{number}: {line.strip()}: write #include <...> or #include \"...\"")
            elif match[1] == '"':
                if not (root / path.parent / match[2]).resolve().is_relative_to((root / own).resolve()):
                    problems.append(f'{path}:{number}: includes "{match[2]}" outside {own}; plugins share only the SDK')
            elif not FOR_PLUGINS.match(match[2]):
                problems.append(f"{path}:{number}: includes <{match[2]}>; a plugin includes <trainer/sdk/...>, LibTorch, the "
                                "standard library and its own folder's headers")
    return problems


# Third-party header -> the only files that may include it (a pattern), and why.
LIBRARIES = {
    r"toml\+\+/": (r"framework/(recipe|plugin|cli)/\w+\.cpp", "recipes and manifests are parsed there"),
    r"spdlog/": (r"framework/base/log\.cpp", "LibTorch's headers shadow spdlog's fmt; call <base/log.hpp>"),
    r"boost/dll": (r"framework/plugin/library\.cpp", "libraries are opened there"),
    r"boost/(?!dll)": (r"^$", "no other part of Boost is used"),
    r"CLI/": (r"framework/cli/\w+\.(cpp|hpp)", "the command line is parsed there"),
    r"vips/": (r"framework/data/\w+\.cpp", "images are decoded there"),
    r"pcre2": (r"framework/text/\w+\.cpp", "the tokenizer's regular expressions are there"),
    r"utf8proc": (r"framework/text/\w+\.cpp", "Unicode normalisation is there"),
    r"openssl/|xxh": (r"framework/(base|weights)/\w*hash\.cpp", "call <base/hash.hpp>"),
    r"torch/csrc/distributed|gloo/": (r"framework/distributed/(meeting|exchange|nccl_lane)\.cpp", "call <distributed/group.hpp>"),
    r"dlfcn\.h": (r"framework/(plugin/library|sdk/src/fused/cuda)\.cpp", "libraries are opened there"),
}


@rule
def library_includes(root):
    """Each third-party library is included in one place."""
    problems = []
    for path in sources(root, PRODUCT):
        for number, _, name in includes(root, path):
            for header, (allowed, why) in LIBRARIES.items():
                if re.match(header, name) and not re.fullmatch(allowed, str(path)):
                    problems.append(f"{path}:{number}: <{name}> does not belong here: {why}")
    return problems


HEAVY = re.compile(r"torch/(torch|all|nn)\.h$|torch/nn/|ATen/ATen\.h$|ATen/Functions\.h$|torch/extension\.h$")
LIGHT_IN_HEADERS = re.compile(r"ATen/core/(Tensor|ivalue)\.h$|torch/version\.h$|c10/core/\w+\.h$")
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")


@rule
def torch_includes(root):
    """LibTorch headers that cost seconds are not included anywhere, others only in sources, none in LibTorch-free modules."""
    plain = {name for name, torch in modules(root) if not torch}
    problems = []
    for path in sources(root, [*PRODUCT, "tests"]):
        for number, _, name in includes(root, path):
            if not TORCH.match(name):
                continue
            module = path.parts[1] if path.parts[0] == "framework" else None
            if HEAVY.match(name):
                problems.append(f"{path}:{number}: <{name}> costs 3 to 12 s in each file; include <ATen/ops/NAME.h>")
            elif module in plain:
                problems.append(f"{path}:{number}: <{name}> in {module}, a module without LibTorch (modules.txt)")
            elif path.suffix == ".cu":
                problems.append(f"{path}:{number}: <{name}> in a kernel; pass pointers, bindings.cpp joins them to tensors")
            elif path.suffix in HEADERS and path.parts[0] != "tests" and not LIGHT_IN_HEADERS.match(name):
                problems.append(f"{path}:{number}: <{name}> in a header; headers include at most <ATen/core/Tensor.h>")
    return problems


@rule
def file_sizes(root):
    """One idea a file."""
    problems = []
    for path in sources(root, [*PRODUCT, "tests"]):
        limit = 400 if path.parts[0] == "tests" else 250 if path.suffix in HEADERS else 300 if path.suffix == ".cu" else 500
        count = len(lines(root, path))
        if count > limit:
            problems.append(f"{path}:1: {count} lines, the limit is {limit}; split it")
    host = sum(len(lines(root, path)) for path in sources(root, ["framework/host"]))
    if host > 300:
        problems.append(f"framework/host:1: {host} lines, the limit is 300: the host loop is read in five minutes")
    return problems


@rule
def header_starts(root):
    """Every header begins by saying what it defines and where it is used."""
    problems = []
    for path in sources(root, [*PRODUCT, "tests"], HEADERS):
        text = (root / path).read_text()
        if path.suffix == ".hpp" and not text.startswith("/// @file "):
            problems.append(f"{path}:1: start with \"/// @file \" and what it defines, where it is used")
        elif not text.startswith("/"):
            problems.append(f"{path}:1: start with a comment that says what it defines")
        if path.suffix == ".hpp" and "\n#pragma once\n" not in text:
            problems.append(f"{path}:1: no #pragma once")
    return problems


# Split strings, so that this file does not contain the words itself.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
STATIC_REGISTRATION = re.compile(r"\bTORCH_LIBRARY(_IMPL|_FRAGMENT)?\s*\(")


@rule
def forbidden_words(root):
    """Nothing unfinished; no operators registered while a library is loaded (it can end the program inside dlopen)."""
    problems = []
    for path in sources(root, [*PRODUCT, "tests", "tools"], (*CODE, ".py", ".build", ".in", ".sh")):
        for number, line in enumerate(lines(root, path), 1):
            if match := UNFINISHED.search(line):
                problems.append(f"{path}:{number}: {match[0]}: finish it or open an issue")
            if path.suffix in CODE and STATIC_REGISTRATION.search(line.split("//")[0]):
                problems.append(f"{path}:{number}: static operator registration; use a torch::Library object made in init()")
    return problems


PATH_IN_DOCS = re.compile(r"`([\w.-]+(?:/[\w.-]+)+\.(?:cpp|hpp|h|cu|toml|py|md|txt|build))(?::\d+)?`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@rule
def docs_paths(root):
    """docs/walkthrough.md and the README name files and pages that exist."""
    problems = []
    if not (root / "docs/walkthrough.md").exists():
        problems.append("docs/walkthrough.md:1: is missing")
    pages = [path for path in [pathlib.Path("README.md"), *(p.relative_to(root) for p in sorted((root / "docs").glob("*.md")))]
             if (root / path).exists()]
    for page in pages:
        for number, line in enumerate(lines(root, page), 1):
            if page.name == "walkthrough.md":
                for name in PATH_IN_DOCS.findall(line):
                    if not any((root / base / name).exists() for base in ("", "framework")):
                        problems.append(f"{page}:{number}: names {name}, which does not exist")
            for target in LINK.findall(line):
                if "://" not in target and not (root / page.parent / target).exists():
                    problems.append(f"{page}:{number}: links to {target}, which does not exist")
    return problems


def abi_lock():
    """The module tools/abi_lock, a script without .py."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader("abi_lock", str(pathlib.Path(__file__).resolve().parents[3] / "tools/abi_lock"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("abi_lock", loader))
    loader.exec_module(module)
    return module


@rule
def sdk_abi(root):
    """The SDK's headers are those whose hashes were recorded with its version."""
    lock = abi_lock()
    version, recorded = lock.read(root)
    now = lock.hashes(root)
    if version is None:
        return [f"{lock.LOCK}:1: is missing: run tools/abi_lock"]
    changed = sorted(name for name in recorded.keys() | now.keys() if recorded.get(name) != now.get(name))
    if changed:
        return [f"SDK headers changed: bump the SDK version and run tools/abi_lock ({', '.join(changed)})"]
    header = root / lock.HEADERS / lock.OVER_ALL
    if not header.exists() or header.read_text() != lock.over_all(now):
        return [f"{lock.HEADERS}/{lock.OVER_ALL}:1: is not that of these headers: run tools/abi_lock"]
    if version != lock.version(root):
        return [f"SDK version is {lock.version(root)}, {lock.LOCK} says {version}: run tools/abi_lock"]
    return []


def requirements(root, name):
    """Package -> version of a hash-pinned list of wheels."""
    found = {}
    for line in lines(root, name):
        if match := re.fullmatch(r"([\w-]+)==([\w.]+) --hash=sha256:[0-9a-f]{64}", line):
            found[match[1]] = match[2]
        elif line and not line.startswith("#"):
            raise SystemExit(f"{name}: not NAME==VERSION --hash=sha256:...: {line}")
    return found


# What an extra of cuda-toolkit stands for, where the package is not called nvidia-EXTRA.
TOOLKIT = {"cudart": "nvidia-cuda-runtime", "cupti": "nvidia-cuda-cupti", "nvrtc": "nvidia-cuda-nvrtc"}


@rule
def libtorch_lists(root):
    """tools/libtorch*.txt hold what the installed torch wheel says that it requires on Linux (Python's packages aside)."""
    cpu, cuda = requirements(root, "tools/libtorch.txt"), requirements(root, "tools/libtorch-cuda.txt")
    pinned = cpu | cuda
    problems = [f"tools/libtorch-cuda.txt:1: {name} is in tools/libtorch.txt too" for name in cpu.keys() & cuda.keys()]
    metadata = (root / ".deps/libtorch").resolve().parent / f"torch-{pinned['torch']}.dist-info/METADATA"
    if not metadata.exists():  # a LibTorch archive carries none
        return problems
    text = metadata.read_text()
    wanted = dict(re.findall(r"^Requires-Dist: (nvidia-[\w-]+)==([\w.]+); platform_system == \"Linux\"", text, re.MULTILINE))
    extras = re.search(r"^Requires-Dist: cuda-toolkit\[([\w,]+)\]", text, re.MULTILINE)[1].split(",")
    wanted |= {TOOLKIT.get(extra, f"nvidia-{extra}"): None for extra in extras}
    for name, version in wanted.items():
        if name not in pinned:
            problems.append(f"tools/libtorch-cuda.txt:1: {name} is missing; torch requires it")
        elif version and pinned[name] != version:
            problems.append(f"tools/libtorch-cuda.txt:1: {name} is {pinned[name]}; torch requires {version}")
    problems += [f"tools/libtorch-cuda.txt:1: {name} is not required by torch" for name in pinned.keys() - wanted.keys() - {"torch"}]
    return problems


@rule
def dependencies_page(root):
    """docs/dependencies.md speaks of every package that tools/setup installs."""
    file = root / "docs/dependencies.md"
    page = file.read_text() if file.exists() else ""
    names = [line.split("|")[0].strip() for line in lines(root, "tools/packages.txt") if "|" in line and not line.startswith("#")]
    return [f"docs/dependencies.md:1: does not name {name} of tools/packages.txt" for name in names if f"`{name}`" not in page]


GTEST = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)


# What names of PyTorch's tests begin with where the file or the class says it already.
BOILERPLATE = re.compile(r"(test_)?(checkpointing_without_reentrant_|checkpointing_non_reentrant_|nested_checkpoint_|"
                         r"compile_selective_checkpoint_|checkpointing_|checkpoint_|tags_)?")


def stem(name):
    """The part of a PyTorch test's name that one of ours has to share, without case and underscores."""
    name = name.removesuffix(".py")
    rest = name[BOILERPLATE.match(name).end():] or name.removeprefix("test_")
    return rest.replace("_", "").lower()


def missing_stems(row, named):
    """Names of a row's first cell ("where: name, name, _suffix") whose stem none of our tests shares."""
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    if len(cells) < 3 or cells[1] not in ("P", "A") or not named:
        return []
    names = [name.strip() for name in cells[0].split(": ")[-1].split(",")]
    ours = [name.replace(".", "").replace("_", "").lower() for name in named]
    return [name for name in names if re.fullmatch(r"\w[\w.]*", name) and not name.startswith("_")
            and not any(stem(name) in one for one in ours)]


@rule
def pytorch_tests(root):
    """docs/pytorch-tests.md names tests that exist, and at least one for each row that does not say why there is none;
    one of a row's tests has the stem of the PyTorch test's name."""
    page = "docs/pytorch-tests.md"
    if not (root / page).exists():
        return [f"{page}:1: is missing"]
    known = {".".join(match) for path in sources(root, ["tests"], (".cpp",)) for match in GTEST.findall((root / path).read_text())}
    problems = []
    for number, line in enumerate(lines(root, page), 1):
        if not line.startswith("|") or line.startswith("|---"):
            continue
        named = re.findall(r"`(\w+\.\w+)`", line)
        problems += [f"{page}:{number}: there is no test {name}" for name in named if name not in known]
        problems += [f"{page}:{number}: no test of ours has the name stem of {name}" for name in missing_stems(line, named)]
        heading = number < len(lines(root, page)) and lines(root, page)[number].startswith("|---")
        if not named and not heading and "does not apply: " not in line:
            problems.append(f"{page}:{number}: names no test; add one, or \"does not apply: \" and why")
    return problems


FILE_RULES = 40


def file_rule(root, row, known):
    """What is wrong with one row of docs/file-rules.md."""
    codes = re.findall(r"`([A-Z]+_[A-Z_0-9]+)`", row[2])
    checked, named = re.findall(r"`([^`]+)`", row[3]), re.findall(r"`([^`]+)`", row[4])
    problems = [f"there is no file {path}" for path in checked if not (root / path).is_file()]
    text = {path: (root / path).read_text() for path in checked + named if (root / path).is_file()}
    problems += [f"there is no test {name}" for name in named if name not in text and name not in known]
    tests = [text[path] for path in named if path in text]
    for code in codes:
        if not any(f'"{code}' in text.get(path, "") for path in checked):
            problems.append(f"{code} is not in {', '.join(checked)}")
        asserted = sum(f'"{code}"' in line for one in tests for line in one.splitlines())
        if tests and asserted < 3:
            problems.append(f"{code} is asserted {asserted} times, not three")
    return problems if named and checked else problems + ["names no source or no test"]


@rule
def file_rules(root):
    """docs/file-rules.md has all rules, each with its code in the source and three assertions of it, or with tests."""
    page = "docs/file-rules.md"
    if not (root / page).exists():
        return [f"{page}:1: is missing"]
    known = {".".join(match) for path in sources(root, ["tests"], (".cpp",)) for match in GTEST.findall((root / path).read_text())}
    problems, good = [], set()
    for number, line in enumerate(lines(root, page), 1):
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if len(row) != 5 or not row[0].isdigit():
            continue
        found = file_rule(root, row, known)
        problems += [f"{page}:{number}: rule {row[0]}: {problem}" for problem in found]
        if not found:
            good.add(int(row[0]))
    print(f"{len(good)} of {FILE_RULES} rules of files with their codes and tests")
    missing = [n for n in range(1, FILE_RULES + 1) if n not in good]
    return problems + ([f"{page}:1: rules {missing} do not stand"] if missing and not problems else [])


# What another source has checked, or is our own program's, or counts for itself.
SHALLOW = {"engine/inspect_component.cpp": "weights/model_files.cpp", "engine/engine.cpp": "the front",
           "data/metadata.cpp": "itself", "sdk/src/eight_bits/stored.cpp": "itself, by a limit of 4096 bytes", "metrics/log_file.cpp": "the tree is neither copied nor written"}


@rule
def json_depth(root):
    """A tree of JSON is copied and written by recursion: no text from a file is parsed before its depth is known."""
    problems = []
    for path in sources(root, ["framework"], (".cpp", ".hpp")):
        text = (root / path).read_text()
        if "nests_deeply(" in text or "require_shallow(" in text or str(path.relative_to("framework")) in SHALLOW:
            continue
        problems += [f"{path}:{number}: parses JSON; ask nests_deeply or require_shallow (base/json_depth.hpp) before"
                     for number, line in enumerate(text.splitlines(), 1) if re.search(r"[Jj]son::parse\(", line)]
    return problems


@rule
def mutant_groups(root):
    """Each group of mutants is a test of the suite mutation and has its figures in the docs."""
    script, suite, page = "tests/mutation/mutants.py", "tests/mutation/meson.build", "docs/reliability.md"
    table = next(node.value for node in ast.parse((root / script).read_text()).body
                 if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GROUPS")
    groups = {key.value for key in table.keys}
    listed = {suite: set(re.findall(r"'(\w+)': \[", (root / suite).read_text())),
              page: set(re.findall(r"^\| `(\w+)` \|[^|]*\| \d+ of \d+", (root / page).read_text(), re.MULTILINE))}
    return [f"{path}:1: {'lacks' if group in groups else 'names'} the group {group}, which {script} "
            f"{'has' if group in groups else 'lacks'}" for path, names in listed.items() for group in sorted(groups ^ names)]


def is_python(file):
    if file.suffix == ".py":
        return True
    with open(file, "rb") as stream:
        first = stream.readline(80)
    return first.startswith(b"#!") and b"python" in first


@rule
def python_compiles(root):
    """Every Python file compiles, also those that only a bench or an opt-in suite starts, in a Python of its own."""
    problems = []
    for path in sorted(file for folder in (*PRODUCT, "tests", "tools", "docs") for file in (root / folder).rglob("*")):
        if not path.is_file() or path.is_relative_to(root / "tests/data") or not is_python(path):
            continue
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except SyntaxError as problem:
            problems.append(f"{path.relative_to(root)}:{problem.lineno}: Python does not compile it: {problem.msg}")
    return problems


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in RULES:
        print(f"usage: layout.py {'|'.join(RULES)} [ROOT]", file=sys.stderr)
        return 2
    root = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else pathlib.Path(__file__).resolve().parents[3])
    problems = RULES[sys.argv[1]](root)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
