#!/usr/bin/env python3
"""The tools a newcomer types: how tools/test counts, when tools/trainer asks for CUDA, how a broken download goes on."""
import contextlib
import hashlib
import http.server
import importlib.util
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

sys.dont_write_bytecode = True
TOOLS = pathlib.Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS))


def load(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path


class Counting(InFolder):
    """run_tests.count on results made up here."""

    def count(self, programs, tests, results=None, said=None):
        """programs: name -> Meson's result; tests: name -> protocol; results: name -> cases in its XML; said: name ->
        its stdout."""
        self.write("meson-logs/testlog.json", "".join(
            json.dumps({"name": f"trainer:unit / {name}", "result": result, "duration": 1.0, "stdout": (said or {}).get(name)})
            + "\n" for name, result in programs.items()))
        for name, cases in (results or {}).items():
            self.write(f"{name}.xml", f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        counts = load("run_tests").count(
            [{"name": name, "protocol": protocol, "workdir": None} for name, protocol in tests.items()], self.folder)
        self.reasons = counts.reasons
        return counts.passed, counts.failed, counts.skipped

    OK = '<testcase name="a" classname="S" status="run" time="0.1"/>'
    BAD = '<testcase name="b" classname="S" status="run" time="0.1"><failure/></testcase>'
    SKIPPED = '<testcase name="c" classname="S" status="run" result="skipped" time="0"><skipped message="a.cpp:7&#x0A;no GPU"/></testcase>'
    DISABLED = '<testcase name="d" classname="S" status="notrun" result="suppressed" time="0"/>'

    def test_cases_of_a_program(self):
        cases = self.OK + self.OK + self.SKIPPED + self.DISABLED
        self.assertEqual(self.count({"p": "OK"}, {"p": "gtest"}, {"p": cases}), (2, 0, 1))

    def test_failed_case_counts_once(self):
        self.assertEqual(self.count({"p": "FAIL"}, {"p": "gtest"}, {"p": self.OK + self.BAD}), (1, 1, 0))

    def test_dead_program_without_results(self):
        self.assertEqual(self.count({"p": "FAIL"}, {"p": "gtest"}), (0, 1, 0))

    def test_program_that_dies_after_its_cases_passed(self):
        self.assertEqual(self.count({"p": "FAIL"}, {"p": "gtest"}, {"p": self.OK}), (1, 1, 0))

    def test_dead_program_beside_one_with_a_failed_case(self):
        programs, tests = {"p": "FAIL", "q": "TIMEOUT"}, {"p": "gtest", "q": "gtest"}
        self.assertEqual(self.count(programs, tests, {"p": self.BAD}), (0, 2, 0))

    def test_program_without_a_case(self):
        self.assertEqual(self.count({"p": "OK"}, {"p": "gtest"}, {"p": self.DISABLED}), (0, 1, 0))

    def test_scripts(self):
        programs = {"s": "OK", "t": "FAIL", "u": "SKIP", "v": "TIMEOUT"}
        self.assertEqual(self.count(programs, dict.fromkeys(programs, "exitcode")), (1, 2, 1))

    def test_what_was_skipped_is_named_with_its_reason(self):
        self.assertEqual(self.count({"p": "OK"}, {"p": "gtest"}, {"p": self.OK + self.SKIPPED}), (1, 0, 1))
        self.assertEqual(self.reasons, ["p: S.c: no GPU"])
        said = {"s": "SKIPPED __main__.Two.test_a: no root\nlosses within 1e-6\n", "t": "SKIPPED setUpClass (T): no torchrun\n"}
        programs = {"s": "OK", "t": "SKIP", "u": "SKIP"}
        self.assertEqual(self.count(programs, dict.fromkeys(programs, "exitcode"), said=said), (1, 0, 3))
        self.assertEqual(self.reasons, ["s: __main__.Two.test_a: no root", "t: setUpClass (T): no torchrun", "u: no reason given"])

    def test_a_script_that_skips_everything_has_not_passed(self):
        helpers = TOOLS.parent / "tests/e2e"
        for body, code in (("raise unittest.SkipTest('no torchrun')", 77), ("pass", 0), ("assert False", 1)):
            script = self.write("case.py", f"""
import sys, unittest
sys.path.insert(0, {str(helpers)!r})
from program import main
class T(unittest.TestCase):
    def test_a(self):
        {body}
if __name__ == "__main__":
    main()
""")
            env = {**os.environ, "TRAINER_PROGRAM": "none", "TRAINER_SOURCE_ROOT": str(TOOLS.parent), "PYTHONDONTWRITEBYTECODE": "1"}
            ended = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
            self.assertEqual(ended.returncode, code, ended.stderr)
            self.assertEqual("SKIPPED __main__.T.test_a: no torchrun" in ended.stdout, code == 77)

    def test_nothing_ran(self):
        self.assertEqual(self.count({}, {"p": "gtest", "s": "exitcode"}), (0, 2, 0))

    def test_old_results_are_removed(self):
        self.write("p.xml", "old")
        self.write("meson-logs/testlog.json", "old")
        load("run_tests").remove_old_results([{"name": "p", "protocol": "gtest", "workdir": None}], self.folder)
        self.assertEqual([path for path in self.folder.rglob("*") if path.is_file()], [])


class Choosing(unittest.TestCase):
    """run_tests.choose_suites: the suite "whole" runs when it is asked for."""

    TESTS = {"quick": ["unit"], "long": ["unit", "whole"], "mutants": ["mutation", "whole"]}

    def chosen(self, *arguments):
        run_tests = load("run_tests")
        with unittest.mock.patch.object(sys, "argv", ["tools/test", *arguments]):
            options = run_tests.parse_arguments()
        tests = [{"name": name, "suite": [f"trainer:{suite}" for suite in suites]} for name, suites in self.TESTS.items()]
        return [test["name"] for test in run_tests.choose_suites(tests, options)]

    def test_suites(self):
        for arguments, expected in {
            (): ["quick"],
            ("--whole",): ["quick", "long", "mutants"],
            ("--suite", "unit"): ["quick"],
            ("--suite", "unit", "--whole"): ["quick", "long"],
            ("--suite", "whole"): ["long", "mutants"],
            ("--suite", "mutation"): ["mutants"],
            ("--suite", "mutation", "--suite", "unit"): ["quick", "mutants"],
        }.items():
            self.assertEqual(self.chosen(*arguments), expected, arguments)

    def test_a_level_and_a_share_are_set_for_the_tests(self):
        asked = {}
        run_tests = load("run_tests")
        with unittest.mock.patch.object(run_tests.subprocess, "run", lambda *_, env, **__: asked.update(env) or unittest.mock.Mock()):
            with unittest.mock.patch.object(sys, "argv", ["test", "--level", "x86-64-v3", "--share", "3/16"]):
                run_tests.run([], pathlib.Path("none"), None, run_tests.parse_arguments())
        self.assertEqual((asked["TRAINER_CPU_LEVEL"], asked["ATEN_CPU_CAPABILITY"]), ("x86-64-v3", "avx2"))
        self.assertEqual(asked["TRAINER_TEST_SHARE"], "3/16")

    def test_a_share_is_one_of_some(self):
        run_tests = load("run_tests")
        for text in ("0/4", "5/4", "1", "a/b"):
            with unittest.mock.patch.object(sys, "argv", ["test", "--share", text]), self.assertRaises(SystemExit):
                with contextlib.redirect_stderr(io.StringIO()) as said:
                    run_tests.parse_arguments()
            self.assertIn("is no share", said.getvalue())


class CudaDetection(InFolder):
    """tools/trainer with a set-up, a build and a program that only say what they were given."""

    def setUp(self):
        super().setUp()
        (self.folder / "tools").mkdir()
        shutil.copy(TOOLS / "trainer", self.folder / "tools/trainer")
        for name in ("tools/setup", "tools/build", "build/release/framework/cli/trainer"):
            self.write(name, f'#!/bin/sh\necho "{name.split("/")[-1]}" "$@"\n', 0o755)

    def said(self, *arguments):
        return subprocess.run([self.folder / "tools/trainer", *arguments], cwd=self.folder, capture_output=True, text=True,
                              check=True, env={**os.environ, "TRAINER_FETCH_CUDA": "1"}).stdout.splitlines()

    def test_calls_setup_build_and_the_program(self):
        self.assertEqual(self.said("run", "a b.toml", "--set", "x=1"),
                         ["setup --quiet", "build release product", "trainer run a b.toml --set x=1"])

    def test_asks_for_cuda(self):
        self.write("cuda.toml", '[placement]\ndevices = ["cpu", "cuda:0"]  # two\n')
        self.write("sub/child.toml", 'extends = ["../plain.toml", "../cuda.toml"]\n')
        self.write("plain.toml", '# devices = ["cuda:0"]\ndevices = ["cpu"]\n')
        for arguments in (["run", "cuda.toml"], ["sample", "sub/child.toml"], ["cache", "plain.toml", "--set", "placement.devices=[\"cuda:1\"]"]):
            self.assertEqual(self.said(*arguments)[0], "setup --quiet --cuda", arguments)

    def test_does_not_ask_for_cuda(self):
        self.write("cuda.toml", 'devices = ["cuda:0"]\n')
        self.write("plain.toml", '# devices = ["cuda:0"]\nname = "barracuda"\nextends = "plain.toml"\n')
        for arguments in (["run", "plain.toml"], ["check", "cuda.toml"], ["run", "missing.toml"], []):
            self.assertEqual(self.said(*arguments)[0], "setup --quiet", arguments)


class Building(InFolder):
    """tools/build with a Meson and a ninja that only note what they were asked."""

    def setUp(self):
        super().setUp()
        (self.folder / "tools").mkdir()
        shutil.copy(TOOLS / "build", self.folder / "tools/build")
        self.write("bin/meson", '#!/bin/sh\necho "$@" >>"$NOTED"\n[ "$2" = --reconfigure ] || touch "$2/build.ninja"\n', 0o755)
        self.write("bin/ninja", "#!/bin/sh\n", 0o755)
        self.write(".deps/store/torch/version", "")
        (self.folder / ".deps/libtorch").symlink_to("store/torch")

    def asked(self):
        noted = self.write("noted", "")
        env = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "NOTED": str(noted)}
        subprocess.run([self.folder / "tools/build", "release"], check=True, capture_output=True, env=env)
        return [line.split()[:2] for line in noted.read_text().splitlines()]

    def test_headers_that_are_fetched_after_a_build_are_seen(self):
        self.assertEqual(self.asked(), [["setup", str(self.folder / "build/release")]])
        self.write("build/release/built", "")
        self.assertEqual(self.asked(), [])
        self.write(".deps/store/nvidia/nccl/include/nccl.h", "")
        self.write(".deps/store/nvidia/cu13/include/cuda_runtime_api.h", "")
        self.assertEqual(self.asked(), [["setup", "--reconfigure"]])
        self.assertEqual(self.asked(), [])
        self.assertTrue((self.folder / "build/release/built").exists(), "a header is no reason to build all anew")


class Fuzzing(InFolder):
    """tools/fuzz over targets that are scripts."""

    FINE = """#!/bin/sh\necho "#9 DONE cov: 12 ft: 3"\necho "stat::number_of_executed_units: 34" """
    BROKEN = """#!/bin/sh\necho "broken promise: x"\necho "Test unit written to found/x"\nexit 77"""

    def fuzz(self, targets, *arguments):
        (self.folder / "tools").mkdir()
        shutil.copy(TOOLS / "fuzz", self.folder / "tools/fuzz")
        for name in ("tools/setup", "tools/build"):
            self.write(name, "#!/bin/sh\n", 0o755)
        for name, script in targets.items():
            self.write(f"tests/fuzz/corpus/{name}/seed", "")
            self.write(f"build/fuzz/tests/fuzz/fuzz_{name}", script, 0o755)
        done = subprocess.run([self.folder / "tools/fuzz", *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines(), done.stderr

    def test_every_target_is_run_and_counted(self):
        code, lines, _ = self.fuzz({"a": self.FINE, "b": self.FINE}, "--seconds", "1")
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed"))
        self.assertRegex(lines[0], r"^a +34 inputs in +\d+ s +12 branches$")

    def test_a_finding_is_a_failure(self):
        code, lines, _ = self.fuzz({"a": self.BROKEN, "b": self.FINE}, "--jobs", "1")
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed"))
        self.assertIn("FAILED (exit 77): found/x", lines[0])
        self.assertEqual(lines[1], "broken promise: x")

    def test_chosen_targets_only(self):
        self.assertEqual(self.fuzz({"a": self.BROKEN, "b": self.FINE}, "b")[1][-1], "1 passed, 0 failed")

    def test_wrong_arguments(self):
        for arguments, text in ((["c"], 'no target "c"'), (["--seconds", "x"], "--seconds needs a number"), (["--x"], "unknown")):
            shutil.rmtree(self.folder / "tools", ignore_errors=True)
            code, _, errors = self.fuzz({"a": self.FINE}, *arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn(text, errors)


class Setup(InFolder):
    def run_setup(self, *arguments, **environment):
        shutil.copytree(TOOLS, self.folder / "tools", dirs_exist_ok=True)
        return subprocess.run([self.folder / "tools/setup", *arguments], capture_output=True, text=True,
                              env={**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), **environment})

    def test_unknown_option(self):
        result = self.run_setup("--cdua")
        self.assertEqual((result.returncode, result.stderr),
                         (2, 'tools/setup: unknown option "--cdua"; see tools/setup --help\n'))

    def test_named_libtorch_is_linked_or_refused(self):
        named = self.folder / "venv/lib/python3.11/site-packages/torch"
        for file in ("lib/libtorch_cpu.so", "include/ATen/core/Tensor.h"):
            self.write(named.relative_to(self.folder) / file, "")
        version = self.write(named.relative_to(self.folder) / "version.py", "__version__ = '2.10.0+cpu'\n")
        result = self.run_setup(TRAINER_LIBTORCH=str(self.folder / "venv"))
        self.assertEqual(result.returncode, 69)
        self.assertIn(f"LibTorch 2.11.0 is needed, TRAINER_LIBTORCH={self.folder}/venv is 2.10.0", result.stderr)
        version.write_text("__version__ = '2.11.0+cpu'\n")
        self.assertEqual(self.run_setup(TRAINER_LIBTORCH=str(self.folder / "venv")).returncode, 0)
        self.assertEqual((self.folder / ".deps/libtorch").readlink(), named)
        result = self.run_setup(TRAINER_LIBTORCH=str(self.folder / "gone"))
        self.assertEqual(result.returncode, 69)
        self.assertIn("holds no LibTorch", result.stderr)

    def test_dry_run_names_every_wheel_and_changes_nothing(self):
        result = self.run_setup("--dry-run", "--cuda")
        self.assertEqual(result.returncode, 0)
        pins = [line.split()[0] for name in ("libtorch.txt", "libtorch-cuda.txt")
                for line in (TOOLS / name).read_text().splitlines() if not line.startswith("#")]
        self.assertEqual([line.strip() for line in result.stderr.splitlines() if "==" in line], pins)
        self.assertFalse((self.folder / "cache").exists() or (self.folder / ".deps").exists())


class Server(http.server.BaseHTTPRequestHandler):
    """An index with one wheel. Breaks off in the middle of the first answer; keeps the ranges it was asked for."""
    wheel, ranges, digest = bytes(range(256)) * 8192, [], ""

    def do_GET(self):
        if self.path == "/simple/some-lib/":
            body, status = f'<a href="/files/some_lib-1-any.whl#sha256={self.digest}">x</a>'.encode(), 200
        else:
            asked = self.headers.get("Range")
            self.ranges.append(asked)
            first = int(asked[6:-1]) if asked else 0
            body, status = self.wheel[first:], 206 if asked else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:len(body) // 2] if len(self.ranges) == 1 else body)

    def log_message(self, *_):
        pass


class Fetching(InFolder):
    def fetch(self, digest):
        """Runs the script's main on a list of one wheel served here; returns its status and what it said."""
        Server.ranges, Server.digest = [], hashlib.sha256(Server.wheel).hexdigest()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        wheels = self.write("list.txt", f"# one\nsome-lib==1 --hash=sha256:{digest or Server.digest}\n")
        environment = {"PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}/simple", "no_proxy": "127.0.0.1"}
        with unittest.mock.patch.dict(os.environ, environment), contextlib.redirect_stderr(io.StringIO()) as said, \
                unittest.mock.patch.object(sys, "argv", ["fetch", str(wheels), str(self.folder)]):
            return load("fetch_wheels").main(), said.getvalue()

    def test_goes_on_after_a_broken_connection(self):
        status, _ = self.fetch(None)
        self.assertEqual(status, 0)
        self.assertEqual((self.folder / "some_lib-1-any.whl").read_bytes(), Server.wheel)
        self.assertEqual(Server.ranges, [None, f"bytes={len(Server.wheel) // 2}-"])

    def test_goes_on_after_an_interrupted_run(self):
        (self.folder / "some_lib-1-any.whl.part").write_bytes(Server.wheel[:1000])
        status, _ = self.fetch(None)
        self.assertEqual(status, 0)
        self.assertEqual(Server.ranges[0], "bytes=1000-")
        self.assertEqual((self.folder / "some_lib-1-any.whl").read_bytes(), Server.wheel)

    def test_damaged_part_is_removed(self):
        (self.folder / "some_lib-1-any.whl.part").write_bytes(b"x" * 1000)
        status, said = self.fetch(None)
        self.assertEqual(status, 1)
        self.assertIn("does not have the pinned hash; it was removed", said)
        self.assertEqual(list(self.folder.glob("*.whl*")), [])

    def test_unknown_hash(self):
        status, said = self.fetch("0" * 64)
        self.assertEqual(status, 1)
        self.assertIn("lists no some-lib with the pinned hash", said)


if __name__ == "__main__":
    unittest.main()
