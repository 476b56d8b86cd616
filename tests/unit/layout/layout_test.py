#!/usr/bin/env python3
"""Every rule of layout.py finds a planted violation and is silent about a clean tree."""
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import layout  # noqa: E402  (the path above comes first)

PIN = "--hash=sha256:" + "0" * 64
CLEAN = {
    "meson.build": "subdir('framework/sdk')\nsubdir('framework/base')\nsubdir('framework/data')\n",
    "tests/unit/layout/modules.txt": "# comment\nsdk torch\nbase plain\ndata torch\n",
    "framework/sdk/include/trainer/sdk/abi.h": '/* The handshake. */\n#define TRAINER_SDK_VERSION "0.1.0"\n',
    "framework/base/a.hpp": "/// @file A.\n#pragma once\n\n#include <trainer/sdk/abi.h>\n",
    "framework/data/b.cpp": "#include <base/a.hpp>\n#include <ATen/core/Tensor.h>\n",
    "plugins/p/p.cpp": "#include <trainer/sdk/abi.h>\n#include \"p.hpp\"\n",
    "plugins/p/p.hpp": "/// @file P.\n#pragma once\n",
    "README.md": "See [the docs](docs/walkthrough.md#top) and [elsewhere](https://example.org).\n",
    "docs/architecture.md": "```mermaid\nflowchart BT\n  base --> sdk\n  data --> base\n```\n",
    "docs/walkthrough.md": "First `data/b.cpp`, then `framework/base/a.hpp`.\n",
    "docs/dependencies.md": "`meson`\n",
    "docs/pytorch-tests.md": "| PyTorch | ours |\n|---|---|\n| a | `A.One`, `A.Two` |\n| b | does not apply: none |\n",
    "docs/file-rules.md": "".join(f"| {n} | a | none | `framework/data/b.cpp` | `A.One` |\n" for n in range(1, 41)),
    "tests/unit/a_test.cpp": "TEST(A, One) {}\nTEST_P(A, Two) {}\n",
    "tests/mutation/mutants.py": 'GROUPS = {\n    "a": Group("x"),\n    "b": Group("y"),\n}\n',
    "tests/mutation/meson.build": "foreach group, programs : {\n  'a': [x], 'b': [x, y]}\n",
    "docs/reliability.md": "| `a` | text | 3 of 3; 1 more |\n| `b` | text | 4 of 4 |\n| `c` | fuzzed | 7 |\n",
    "tools/packages.txt": "# comment | no\nmeson | cmd:meson | need | builds\n",
    "tools/libtorch.txt": f"torch==2.11.0 {PIN}\nnvidia-cuda-runtime==1 {PIN}\n",
    "tools/libtorch-cuda.txt": f"nvidia-nccl-cu13==2.0 {PIN}\nnvidia-cublas==3 {PIN}\n",
    ".deps/torch-2.11.0.dist-info/METADATA":
        'Requires-Dist: cuda-toolkit[cublas,cudart]==13; x\nRequires-Dist: nvidia-nccl-cu13==2.0; platform_system == "Linux"\n',
    ".deps/libtorch/version.py": "",
}


class Layout(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, text in CLEAN.items():
            self.write(name, text)
        lock = layout.abi_lock()
        text = "\n".join([f"version {lock.version(self.root)}"] + [f"{v} {n}" for n, v in lock.hashes(self.root).items()])
        self.write(lock.LOCK, text + "\n")
        self.write(f"{lock.HEADERS}/{lock.OVER_ALL}", lock.over_all(lock.hashes(self.root)))

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def found(self, rule):
        return layout.RULES[rule](self.root)

    def expect(self, rule, *messages):
        """The rule reports exactly these messages (their beginnings)."""
        found = self.found(rule)
        self.assertEqual(len(found), len(messages), found)
        for got, wanted in zip(found, messages):
            self.assertEqual(got[:len(wanted)], wanted)

    def test_clean_tree_passes_every_rule(self):
        for rule in layout.RULES:
            with self.subTest(rule):
                self.assertEqual(self.found(rule), [])

    def test_pytorch_tests(self):
        self.write("docs/pytorch-tests.md", "| PyTorch | ours |\n|---|---|\n| a | `A.One`, `A.Three` |\n| b | - |\n")
        self.expect("pytorch_tests", "docs/pytorch-tests.md:3: there is no test A.Three",
                    "docs/pytorch-tests.md:4: names no test")
        self.write("docs/pytorch-tests.md", "| PyTorch | | ours |\n|---|---|---|\n| test_a_one, _two | P | `A.One` |\n"
                   "| where: test_checkpoint_two, issue 3 | A | `A.One`, `A.Two` |\n| test_three | P | `A.One` |\n"
                   "| test_four | what it is | `A.One` |\n")
        self.expect("pytorch_tests", "docs/pytorch-tests.md:5: no test of ours has the name stem of test_three")

    def test_file_rules(self):
        good = CLEAN["docs/file-rules.md"]
        self.write("docs/file-rules.md", good.replace("| 40 |", "| 41 |"))
        self.expect("file_rules", "docs/file-rules.md:1: rules [40] do not stand")
        row = "| 1 | a | `ST_X` | `framework/data/b.cpp` | `tests/unit/b_test.cpp` |\n"
        self.write("docs/file-rules.md", row + good.split("\n", 1)[1])
        self.write("framework/data/b.cpp", 'fail("ST_X: a");\n')
        self.write("tests/unit/b_test.cpp", 'expect("ST_X");\nexpect("ST_X");\n')
        self.expect("file_rules", "docs/file-rules.md:1: rule 1: ST_X is asserted 2 times, not three")
        self.write("tests/unit/b_test.cpp", 'expect("ST_X");\n' * 3)
        self.expect("file_rules")
        self.write("framework/data/b.cpp", "")
        self.expect("file_rules", "docs/file-rules.md:1: rule 1: ST_X is not in framework/data/b.cpp")
        self.write("docs/file-rules.md", good.replace("`A.One`", "`A.Three`", 1))
        self.expect("file_rules", "docs/file-rules.md:1: rule 1: there is no test A.Three")

    def test_mutant_groups(self):
        self.write("tests/mutation/meson.build", "foreach group, programs : {\n  'a': [x]}\n")
        self.expect("mutant_groups", "tests/mutation/meson.build:1: lacks the group b, which tests/mutation/mutants.py has")
        self.write("tests/mutation/meson.build", CLEAN["tests/mutation/meson.build"])
        self.write("docs/reliability.md", CLEAN["docs/reliability.md"] + "| `d` | text | 1 of 1 |\n")
        self.expect("mutant_groups", "docs/reliability.md:1: names the group d, which tests/mutation/mutants.py lacks")

    def test_json_depth(self):
        parse = "const Json json = nlohmann::ordered_json::parse(text);\n"
        self.write("framework/data/c.cpp", "\n" + parse)
        self.write("framework/data/d.cpp", "require_shallow(text, name);\n" + parse)
        self.write("framework/data/metadata.cpp", parse)
        self.expect("json_depth", "framework/data/c.cpp:2: parses JSON")

    def test_python_compiles(self):
        self.write("tests/bench/worker.py", "import os\n\nprint(os.environ[)\n")
        self.write("tools/a", "#!/usr/bin/env python3\nif True\n")
        self.write("tools/b", "#!/bin/sh\nif true; then :; fi\n")
        self.expect("python_compiles", "tests/bench/worker.py:3: Python does not compile it",
                    "tools/a:2: Python does not compile it")

    def test_module_order(self):
        self.write("framework/base/x.cpp", "#include <data/b.hpp>\n#include \"a.hpp\"\n")
        self.expect("module_order", "framework/base/x.cpp:1: base includes <data/b.hpp>, but data is above base",
                    "framework/base/x.cpp:2: write <base/a.hpp>")

    def test_module_unknown_or_in_another_order(self):
        self.write("framework/new/x.cpp", "")
        self.write("meson.build", "subdir('framework/base')\nsubdir('framework/sdk')\nsubdir('framework/data')\n")
        self.expect("module_order", "framework/new/x.cpp:1: module new is not in",
                    "meson.build:1: lists the modules as base sdk data")

    def test_module_picture(self):
        self.write("framework/data/b.cpp", "#include <trainer/sdk/abi.h>\n")
        self.expect("module_picture", "docs/architecture.md:1: the picture lacks the arrow: data --> sdk",
                    "docs/architecture.md:1: no include stands for the arrow: data --> base")

    def test_private_sources_of_the_sdk(self):
        self.write("framework/data/c.cpp", "#include <sdk/src/dry.hpp>\n")
        self.write("framework/sdk/src/dry.cpp", "#include \"dry.hpp\"\n#include <sdk/src/dry.hpp>\n")
        self.expect("module_order", "framework/data/c.cpp:1: <sdk/src/dry.hpp> is a private source of the SDK")

    def test_plugin_includes(self):
        self.write("plugins/p/x.cpp", "#include <base/a.hpp>\n#include \"../q/q.hpp\"\n#include <plugins/q/q.hpp>\n")
        self.write("strategies/memory/s/x.cpp", "#include \"../t/t.hpp\"\n")
        # Another plugin's private headers, reached by an include folder; what a macro hides; an SDK source.
        self.write("strategies/memory/w/x.cpp", "#include <s/codec.hpp>\n#include PRIVATE\n#include <sdk/src/dry.hpp>\n"
                   "#include <cmath>\n#include <ATen/ops/mm.h>\n#include <trainer/sdk/abi.h>\n#include \"own.hpp\"\n"
                   "#include <nlohmann/json.hpp>\n#include <toml++/toml.h>\n")
        self.expect("plugin_includes", "plugins/p/x.cpp:1: includes <base/a.hpp>; a plugin includes <trainer/sdk/...>",
                    "plugins/p/x.cpp:2: includes \"../q/q.hpp\" outside plugins/p", "plugins/p/x.cpp:3: includes <plugins/q/q.hpp>",
                    "strategies/memory/s/x.cpp:1: includes \"../t/t.hpp\" outside strategies/memory/s",
                    "strategies/memory/w/x.cpp:1: includes <s/codec.hpp>; a plugin includes",
                    "strategies/memory/w/x.cpp:2: #include PRIVATE: write #include",
                    "strategies/memory/w/x.cpp:3: includes <sdk/src/dry.hpp>; a plugin includes",
                    "strategies/memory/w/x.cpp:9: includes <toml++/toml.h>; a plugin includes")

    def test_library_includes(self):
        self.write("framework/data/x.cpp", "#include <toml++/toml.h>\n#include <spdlog/spdlog.h>\n#include <boost/dll.hpp>\n")
        self.expect("library_includes", *(f"framework/data/x.cpp:{n}: <" for n in (1, 2, 3)))

    def test_torch_includes(self):
        self.write("framework/data/x.cpp", "#include <torch/torch.h>\n#include <ATen/ATen.h>\n#include <ATen/ops/mm.h>\n")
        self.write("framework/data/x.hpp", "#include <ATen/core/Tensor.h>\n#include <ATen/ops/mm.h>\n")
        self.write("framework/base/x.cpp", "#include <c10/core/Device.h>\n")
        self.expect("torch_includes", "framework/base/x.cpp:1: <c10/core/Device.h> in base, a module without LibTorch",
                    "framework/data/x.cpp:1: <torch/torch.h> costs", "framework/data/x.cpp:2: <ATen/ATen.h> costs",
                    "framework/data/x.hpp:2: <ATen/ops/mm.h> in a header")

    def test_file_sizes(self):
        self.write("framework/data/x.cpp", "\n" * 501)
        self.write("framework/data/y.cpp", "\n" * 500)
        self.write("framework/data/x.hpp", "\n" * 251)
        self.write("tests/unit/x_test.cpp", "\n" * 401)
        self.write("framework/host/x.cpp", "\n" * 301)
        self.expect("file_sizes", "framework/data/x.cpp:1: 501 lines, the limit is 500",
                    "framework/data/x.hpp:1: 251 lines, the limit is 250", "tests/unit/x_test.cpp:1: 401 lines, the limit is 400",
                    "framework/host:1: 301 lines, the limit is 300")

    def test_header_starts(self):
        self.write("framework/data/x.hpp", "#pragma once\n")
        self.write("framework/data/y.h", "int y;\n")
        self.expect("header_starts", "framework/data/x.hpp:1: start with", "framework/data/x.hpp:1: no #pragma once",
                    "framework/data/y.h:1: start with")

    def test_forbidden_words(self):
        self.write("framework/data/x.cpp", "// TO" "DO later\nTORCH_LIBRARY(own, library) {\nTORCH_LIBRARY_IMPL (a, b, c) {\n")
        self.expect("forbidden_words", "framework/data/x.cpp:1: TO" "DO", "framework/data/x.cpp:2: static", "framework/data/x.cpp:3: static")

    def test_docs_paths(self):
        self.write("docs/walkthrough.md", "`data/gone.cpp`\n")
        self.write("README.md", "[gone](docs/gone.md)\n")
        self.expect("docs_paths", "README.md:1: links to docs/gone.md", "docs/walkthrough.md:1: names data/gone.cpp")

    def test_walkthrough_missing(self):
        (self.root / "docs/walkthrough.md").unlink()
        self.write("README.md", "")
        self.expect("docs_paths", "docs/walkthrough.md:1: is missing")

    def test_sdk_abi(self):
        header = "framework/sdk/include/trainer/sdk/abi.h"
        self.write(header, CLEAN[header] + "// a comment, and \"quotes\"\n\n")
        self.expect("sdk_abi")
        over_all = "framework/sdk/include/trainer/sdk/headers.h"
        text = (self.root / over_all).read_text()
        self.write(over_all, text.replace('HEADERS "', 'HEADERS "0'))
        self.expect("sdk_abi", f"{over_all}:1: is not that of these headers: run tools/abi_lock")
        self.write(over_all, text)
        self.write(header, CLEAN[header] + "int field;\n")
        self.expect("sdk_abi", "SDK headers changed: bump the SDK version and run tools/abi_lock (abi.h)")
        self.write(header, CLEAN[header].replace("0.1.0", "0.2.0"))
        self.expect("sdk_abi", "SDK version is 0.2.0, framework/sdk/sdk.abi says 0.1.0: run tools/abi_lock")

    def test_libtorch_lists(self):
        self.write("tools/libtorch-cuda.txt", f"nvidia-nccl-cu13==2.1 {PIN}\nnvidia-extra==1 {PIN}\n")
        self.assertEqual(sorted(self.found("libtorch_lists")), [
            "tools/libtorch-cuda.txt:1: nvidia-cublas is missing; torch requires it",
            "tools/libtorch-cuda.txt:1: nvidia-extra is not required by torch",
            "tools/libtorch-cuda.txt:1: nvidia-nccl-cu13 is 2.1; torch requires 2.0"])

    def test_dependencies_page(self):
        self.write("docs/dependencies.md", "meson\n")
        self.expect("dependencies_page", "docs/dependencies.md:1: does not name meson of tools/packages.txt")


if __name__ == "__main__":
    unittest.main()
