"""A dry run of the GPU suite on the CPU: packed, called in pieces from another folder, with a part that is broken; and
what it makes of items that fail, hang or stop, and of numbers.

TRAINER_BUILD is the build folder, TRAINER_SOURCE_ROOT the source tree, TRAINER_TEST_LIBTORCH LibTorch's root.
"""
import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT, BUILD = pathlib.Path(os.environ["TRAINER_SOURCE_ROOT"]), pathlib.Path(os.environ["TRAINER_BUILD"])


class GpuCheck(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.pack, self.report = self.folder / "carried", self.folder / "report"

    def call(self, tool, *arguments, **more):
        env = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}  # Meson's
        return subprocess.run([sys.executable, str(tool), *map(str, arguments)], cwd=self.folder, env={**env, **more},
                              capture_output=True, text=True)

    def check(self, *arguments):
        """Without a git or any other program, as it may be there."""
        return self.call(self.pack / "tools/gpu_check", "--device", "cpu", "--quick", "--report", self.report, "--torch",
                         os.environ["TRAINER_TEST_LIBTORCH"], *arguments, PATH="/nowhere")

    def items(self):
        return json.loads((self.report / "report.json").read_text())["items"]

    KERNELS = "framework/kernels/libtrainer_cuda_kernels.so"

    def test_a_build_without_kernels_is_not_carried(self):
        build = self.folder / "build"
        build.mkdir()
        packed = self.call(ROOT / "tools/gpu_check", "--pack", self.pack, "--build", build)
        self.assertEqual(packed.returncode, 1)
        self.assertIn("libtrainer_cuda_kernels.so is missing", packed.stderr)
        self.assertIn("tools/setup --nvcc", packed.stderr)

    def test_runs_in_pieces(self):
        whole = [] if (BUILD / self.KERNELS).exists() else ["--without-kernels"]
        packed = self.call(ROOT / "tools/gpu_check", "--pack", self.pack, "--build", BUILD, *whole)
        # Too large at worst where nothing was optimised.
        allowed = (0,) if os.environ["TRAINER_TEST_BUILDTYPE"] == "release" else (0, 1)
        self.assertIn(packed.returncode, allowed, packed.stdout + packed.stderr)
        self.assertRegex(packed.stdout, r": \d+\.\d MiB")
        carried = [path.name for path in self.pack.rglob("*")]
        heavy = ("libtorch_", "libc10", "libvips", "libtrainer_images")
        self.assertFalse([name for name in carried if name.startswith(heavy)])

        one = self.check("--budget", 1)
        self.assertEqual(one.returncode, 75, one.stdout + one.stderr)
        self.assertEqual(len(self.items()), 1)

        program = self.pack / "build/release/tests/gpu/gpu_test"
        program.rename(program.with_name("whole"))
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
        broken = self.check("--part", "kernels")
        self.assertEqual(broken.returncode, 1, broken.stdout + broken.stderr)
        self.assertIn("left no results", (self.report / "report.md").read_text())

        program.with_name("whole").replace(program)
        rest = self.check()
        self.assertEqual(rest.returncode, 0, rest.stdout + rest.stderr)
        self.assertNotIn(next(iter(self.items())), rest.stdout, "what has passed is not run again")
        items = self.items()
        self.assertEqual({item["part"] for item in items.values()}, {"loading", "kernels", "memory", "matrix", "bench"})
        self.assertEqual({item["status"] for item in items.values()}, {"passed"})
        text = (self.report / "report.md").read_text()
        for family in ("modulated_norm", "norm_rope", "swiglu", "gated_residual", "low_rank", "eight_bits"):
            self.assertIn(f"| {family} | the CPU's |", text)
        for sums in ("exact fp32", "fast fp32", "exact bf16", "fast bf16"):
            self.assertRegex(text, rf"\| {sums} \| \d\.\d\de-0\d \|")
        for operation in ("modulated norm", "norm rope", "swiglu", "gated residual", "low rank qkv mlp", "low rank out"):
            self.assertRegex(text, rf"\| {operation} 6 \| \d\.\de-\d\d( \| \d+\.\d+){{4}} \|")
        for kernel in ("expand codes", "quantize rows"):
            self.assertRegex(text, rf"\| {kernel} 6 \| equal( \| \d+\.\d+){{2}} \| - \| - \|")
        for phase in ("load", "captions", "sample", "save"):
            self.assertRegex(text, rf"\| {phase} \| \d+\.\d+ \|")
        for item in items:
            self.assertIn(item, text)

        other = self.report / "report.json"
        other.write_text(other.read_text().replace("cpu (dry run)", "another GPU"))
        mixed = self.check()
        self.assertNotEqual(mixed.returncode, 0)
        self.assertIn("name another --report", mixed.stderr)


def gpu_check():
    """tools/gpu_check as a module, with those beside it."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "tools/gpu_check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


# A Python with the libraries of the bench's other side, which does what the files beside it say.
STAND_IN = """#!{python}
import os, pathlib, sys
here, words = pathlib.Path(__file__).parent, sys.argv[1:]
if words[0] == "-c" and "diffusers" in words[1]:
    if (here / "lacks").exists():
        sys.exit("ModuleNotFoundError: No module named 'transformers'")
    print("2.11.0 1.0 1.0" if (here / "lacks_for_the_bench").exists() else "2.11.0 1.0 1.0 1.0")
elif words[0].endswith("python_worker.py"):
    (here / "path").write_text(os.environ.get("LD_LIBRARY_PATH", "none"))
    if (here / "fails").exists():
        sys.exit("InductorError: no C compiler")
    print("ready 1", flush=True)
    for line in sys.stdin:
        print({{"bytes": "9 5", "ops": "1 1 -1 -1"}}.get(line.strip(), "1000000 1000000 0.5 1000"), flush=True)
else:
    os.execv(sys.executable, [sys.executable, *words])
"""


class Runner(unittest.TestCase):
    def setUp(self):
        self.suite = gpu_check()
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.options = argparse.Namespace(
            build=BUILD, device="cpu", quick=True, python=sys.executable, budget=60, part=self.suite.checks.PARTS,
            torch=pathlib.Path(os.environ["TRAINER_TEST_LIBTORCH"]), report=pathlib.Path(scratch.name) / "report")
        self.ran = []

    def item(self, name, result, seconds=1.0):
        def run(machine, timeout):
            self.ran.append(name)
            if isinstance(result, BaseException):
                raise result
            return result(machine, timeout) if callable(result) else result

        return self.suite.checks.Item(name, "kernels", seconds, run)

    def run_items(self, *items):
        """Exit code and statuses."""
        self.ran.clear()
        with mock.patch.object(self.suite.checks, "items", lambda machine, parts: list(items)), \
                contextlib.redirect_stdout(io.StringIO()):
            code = self.suite.run(self.options)
        found = json.loads((self.options.report / "report.json").read_text())["items"]
        return code, {name: result["status"] for name, result in found.items()}

    def test_what_was_never_run_comes_before_what_failed(self):
        bad, good = self.item("bad", KeyError("oops")), self.item("good", {"cases": 1})
        skipped = self.item("other", self.suite.checks.Skipped("too old"))
        self.assertEqual(self.run_items(bad), (1, {"bad": "failed"}))
        self.assertEqual(self.run_items(bad, good, skipped), (1, {"bad": "failed", "good": "passed", "other": "skipped"}))
        self.assertEqual(self.ran, ["good", "other", "bad"])
        self.assertIn("KeyError: 'oops'", (self.options.report / "report.md").read_text())
        self.assertEqual(self.run_items(self.item("bad", {}), good, skipped)[0], 0)
        self.assertEqual(self.ran, ["bad"])

    def test_what_does_not_fit_into_a_call_is_left_for_the_next(self):
        long, short = self.item("long", {}, seconds=100), self.item("short", {})
        self.assertEqual(self.run_items(short, long, self.item("last", {})), (75, {"short": "passed", "last": "passed"}))
        self.assertEqual(self.run_items(short, long), (0, {"short": "passed", "long": "passed", "last": "passed"}))
        cut = self.item("cut", subprocess.TimeoutExpired("it", 50), seconds=55)
        self.assertEqual(self.run_items(self.item("new", {}), cut)[0], 75)
        self.assertEqual(self.run_items(cut)[0], 1, "alone it had all the time that there is")

    def test_an_item_that_hangs_leaves_time_for_the_others(self):
        self.options.budget, limits = 540, {}

        def hang(name, seconds):
            def run(machine, timeout):
                limits[name] = round(timeout, -1)
                raise subprocess.TimeoutExpired(name, timeout)
            return self.suite.checks.Item(name, "kernels", seconds, run)

        self.assertEqual(self.run_items(hang("short", 5), hang("long", 120), self.item("after", {})),
                         (1, {"short": "failed", "long": "failed", "after": "passed"}))
        self.assertEqual(limits, {"short": 90, "long": 360})

    def test_python_is_asked_only_for_what_compares(self):
        machine = self.stand_in()
        with mock.patch.object(self.suite.Machine, "ask_python", side_effect=AssertionError("Python was asked")):
            self.assertEqual(self.run_items(self.item("ours", {"cases": 1}))[1], {"ours": "passed"})
        self.assertTrue(machine.compares)

    def test_killed_it_goes_on(self):
        first, slow = self.item("first", {"cases": 1}), self.item("second", lambda machine, timeout: time.sleep(60))
        child = os.fork()
        if child == 0:
            self.run_items(first, slow)
            os._exit(0)
        report = self.options.report / "report.json"
        for _ in range(600):
            if report.exists():
                break
            time.sleep(0.1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.assertEqual(self.run_items(first, self.item("second", {})), (0, {"first": "passed", "second": "passed"}))
        self.assertEqual(self.ran, ["second"])

    def test_losses_that_are_not_the_cpus(self):
        machine, checks = self.suite.Machine(self.options), self.suite.checks

        def judge(*sides):
            sides = list(sides)

            def run(machine, folder, *overrides, **more):
                log = pathlib.Path(folder) / "run/log.jsonl"
                log.parent.mkdir()
                log.write_text("".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(sides.pop(0))))
                return subprocess.CompletedProcess([], 0, "", "")

            with mock.patch.object(checks, "small_run", run):
                return checks.trains_as_the_cpu(machine, 9)

        self.assertLess(judge([1.0, 0.5], [1.0, 0.5003])["apart"], 1e-3)
        for other in ([1.0, 0.502], [1.0], [1.0, float("nan")]):
            with self.subTest(other), self.assertRaises(checks.Failed):
                judge([1.0, 0.5], other)

    def test_what_an_item_started_ends_with_it(self):
        def hang(machine, timeout):
            machine.call(["sh", "-c", f"sleep 300 & echo $! > {self.options.report}/child; wait"], timeout=1)

        self.options.report.mkdir()
        self.assertEqual(self.run_items(self.item("hangs", hang))[1], {"hangs": "failed"})
        child = int((self.options.report / "child").read_text())
        for _ in range(100):
            status = pathlib.Path(f"/proc/{child}/stat")
            if not status.exists() or status.read_text().split(")")[-1].split()[0] == "Z":
                return
            time.sleep(0.05)
        self.fail("the child of a program that was stopped runs on")

    def test_a_machine_without_nvidia_smi_or_torch(self):
        with mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
            self.options.device, self.options.python = "cuda:0", "/bin/false"
            machine = self.suite.Machine(self.options)
            self.assertEqual(machine.card, ("unknown", 0, 0.0, ""))
            self.assertNotIn(self.suite.VERSIONS, machine.facts())
            self.assertFalse(machine.compares)
            self.assertIn("ours alone", machine.versions()[self.suite.VERSIONS])

    def stand_in(self, *says):
        """A machine whose Python is STAND_IN."""
        folder = self.options.report.parent / "python"
        folder.mkdir(exist_ok=True)
        for file in folder.iterdir():
            file.unlink()
        for name in says:
            (folder / name).touch()
        python = folder / "python3"
        python.write_text(STAND_IN.format(python=sys.executable))
        python.chmod(0o755)
        self.options.python = str(python)
        return self.suite.Machine(self.options)

    def test_the_libraries_that_were_carried_are_for_ours_alone(self):
        show = ["-c", "import os; print(os.environ.get('LD_LIBRARY_PATH'))"]
        for inherited in ("/driver/lib64", None):
            with mock.patch.dict(os.environ):
                os.environ.pop("LD_LIBRARY_PATH", None)
                if inherited:
                    os.environ["LD_LIBRARY_PATH"] = inherited
                machine = self.suite.Machine(self.options)
                ours = machine.call([sys.executable, *show], timeout=60).stdout.strip().split(":")
                self.assertIn(str(self.options.torch / "lib"), ours)
                self.assertEqual(ours[-1] == inherited, bool(inherited), "the driver may be found nowhere else")
                self.assertNotIn("", ours, "that would be the working folder")
                self.assertEqual(machine.call_python(show, timeout=60).stdout.strip(), str(inherited))

    CUT = ["--size", "klein4b", "--blocks", "1", "--heads", "1", "--height", "4", "--width", "4", "--tokens", "8",
           "--pairs", "2", "--warmup", "0", "--rows", "full+elision+fp8w8a8fast"]

    def test_the_bench_where_python_runs_fails_or_is_incomplete(self):
        with mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": "/driver/lib64"}):
            machine = self.stand_in()
            result = self.suite.checks.bench(machine, self.CUT, 120)
            self.assertLess(result["ratio"]["median"], 1)
            self.assertEqual((pathlib.Path(machine.python).parent / "path").read_text(), "/driver/lib64")
            for says, told in (("fails", "no C compiler"), ("lacks_for_the_bench", "lacks what the bench needs")):
                with self.subTest(says):
                    result = self.suite.checks.bench(self.stand_in(says), self.CUT, 120)
                    self.assertGreater(result["ours"]["seconds"], 0)
                    self.assertIn(told, result["python_error"])
                    items = {"bench x": {"part": "bench", "status": "passed", "seconds": 1.0, "results": result}}
                    self.assertIn(told, self.suite.reports.markdown({"facts": {}, "items": items}, 0))

    def test_a_python_that_does_not_answer_is_asked_again(self):
        machine = self.suite.Machine(self.options)
        with mock.patch.object(self.suite, "IMPORT_SECONDS", 0.2):
            said, problem = machine.ask_python("import time; time.sleep(60)")
        self.assertEqual((said, "did not answer" in problem), ("", True))

    def test_what_ran_alone_is_run_again_once_python_is_there(self):
        ran = []

        def item(name, results, compares=True):
            def run(machine, timeout):
                ran.append(name)
                found = results[machine.compares]
                if isinstance(found, Exception):
                    raise found
                return found
            return self.suite.checks.Item(name, "bench", 1.0, run, compares)

        alone, ratio = {"ours": {"seconds": 1.0}}, {"ratio": {"median": 0.5, "quartiles": [0.4, 0.6]}}
        both = {**alone, "python": {"seconds": 2.0}, **ratio}
        items = [item("row", {False: alone, True: both}), item("ours", {False: alone, True: alone}, compares=False),
                 item("phases", {False: {"phases": [{"phase": "load", "count": 1, **alone}]},
                                 True: {"phases": [{"phase": "load", "count": 1, **both}]}}),
                 item("failing", {False: alone, True: {**alone, "python_error": "no C compiler"}}),
                 item("too much", {False: {"fits": False}, True: {"fits": False}}),
                 item("compiled", {False: self.suite.checks.Skipped("not possible: no transformers"), True: both})]

        def facts():
            return json.loads((self.options.report / "report.json").read_text())["facts"][self.suite.VERSIONS]

        self.stand_in("lacks")
        self.assertEqual(self.run_items(*items)[0], 0)
        self.assertIn("ours alone: ModuleNotFoundError", facts())
        self.assertEqual(len(ran), 6)
        ran.clear()
        self.assertEqual(self.run_items(*items)[0], 0)
        self.assertEqual(ran, [], "nothing has changed")
        self.stand_in()
        self.assertEqual(self.run_items(*items)[0], 0)
        self.assertEqual(ran, ["row", "phases", "failing", "compiled"])
        self.assertEqual(facts(), "2.11.0 1.0 1.0 1.0")
        ran.clear()
        self.stand_in("lacks")
        self.assertEqual(self.run_items(*items)[0], 0)
        self.assertEqual((ran, facts()), ([], "2.11.0 1.0 1.0 1.0"), "rows have been compared with these")

    def test_rows_of_python_alone_are_named_where_it_is_missing(self):
        self.options.quick = False
        machine, checks = self.stand_in("lacks"), self.suite.checks
        rows = {item.name: item for item in checks.dev_items(machine)}
        for row in checks.OF_PYTHON:
            with self.assertRaisesRegex(checks.Skipped, "not possible: ModuleNotFoundError"):
                rows["bench " + checks.DEV + row].run(machine, 1)

    def test_room_for_the_archive(self):
        with tempfile.TemporaryDirectory() as text:
            folder = pathlib.Path(text)
            subprocess.run(["git", "init", "-q", text], check=True)
            (folder / ".gitignore").write_text("built\n")
            for name, size in (("tracked", 1000), ("new", 200), ("built", 30)):
                (folder / name).write_bytes(bytes(size))
            subprocess.run(["git", "-C", text, "add", "tracked"], check=True)
            self.assertEqual(self.suite.pack.room(folder), (64 << 20) - 1200 - len("built\n"))

    def test_kernels_that_did_not_run_fail_the_suite(self):
        machine = self.suite.Machine(self.options)
        machine.cuda = True
        checks = self.suite.checks
        for said, wrong in (({"swiglu": "used"}, False), ({"swiglu": "used", "low_rank": "distrusted"}, True),
                            ({"swiglu": "missing"}, True), ({}, True)):
            with mock.patch.object(checks, "gtest", lambda *_, said=said: {"cases": 2, "kernels": said}):
                if wrong:
                    self.assertRaises(checks.Failed, checks.kernels_of_ours, machine, 1)
                else:
                    self.assertEqual(checks.kernels_of_ours(machine, 1), {"kernels": said})

    PARTS = {"weights": 64e9, "adapter": 0.5e9, "optimizer": 1e9, "data": 0.5e9, "gradients": 0.5e9,
             "kept_activations": 1.1e9, "transient": 0.3e9}

    def test_targets(self):
        reports, checks = self.suite.reports, self.suite.checks
        self.assertEqual(reports.target_lines({}), [])

        def row(seconds, **more):
            return {"part": "bench", "status": "passed", "seconds": 9.0, "results": {
                "ours": {"seconds": seconds, "peak_bytes": 68e9}, **more}}

        name = "bench " + checks.DEV + checks.WHOLE
        quartiles = {"median": 0.75, "quartiles": [0.74, 0.76]}
        items = {name: row(0.6, ratio=quartiles, utilisation=0.5, profile="mostly copies"),
                 name + "+fp8": row(0.7), name + "+fp8w8a8": row(0.3),
                 "bench " + checks.DEV + "plan": {"part": "bench", "status": "passed", "seconds": 2.0,
                                                  "results": {"planned": 67.9e9, "parts": self.PARTS}}}
        met = [found for *_, found, _ in reports.targets(items)]
        self.assertEqual(met, [True, None, True, False, True])
        text = reports.markdown({"facts": {}, "items": items}, 0)
        self.assertIn("| bf16 against diffusers + peft | at least 1.25 x | 1.33 x | met |", text)
        self.assertIn("at least 60.0% | 50.0% | **missed** |", text)
        self.assertIn("mostly copies", text)
        self.assertIn("| peak memory against the plan | within 3 % | +0.15% | met |", text)
        self.assertNotIn("Where the memory", text)
        items[name]["results"]["ours"].update(peak_bytes=75e9, live_bytes=66e9)
        text = reports.markdown({"facts": {}, "items": items}, 0)
        self.assertIn("| peak memory against the plan | within 3 % | +10.46% | **missed** |", text)
        self.assertIn("| stays: weights, adapter, optimizer, data | 66,000.0 | 66,000.0 |", text)
        self.assertIn("| - kept activations | 1,100.0 |  |", text)
        self.assertIn("| above it in a step | 1,900.0 | 9,000.0 |", text)
        self.assertIn("| peak | 67,900.0 | 75,000.0 |", text)
        items[name + "+fp8w8a8"] = {"part": "bench", "status": "skipped", "seconds": 0, "detail": "too old"}
        self.assertEqual([found for *_, found, _ in reports.targets(items)], [True, None, None, False, False])


if __name__ == "__main__":
    unittest.main(verbosity=2)
