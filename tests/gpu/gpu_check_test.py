"""A dry run of the GPU suite on the CPU: packed, called in pieces from another folder, with a part that is broken.

TRAINER_BUILD is the build folder, TRAINER_SOURCE_ROOT the source tree, TRAINER_TEST_LIBTORCH LibTorch's root.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT, BUILD = pathlib.Path(os.environ["TRAINER_SOURCE_ROOT"]), pathlib.Path(os.environ["TRAINER_BUILD"])


class GpuCheck(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.pack, self.report = self.folder / "carried", self.folder / "report"

    def call(self, tool, *arguments):
        env = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}  # Meson's
        return subprocess.run([sys.executable, str(tool), *map(str, arguments)], cwd=self.folder, env=env,
                              capture_output=True, text=True)

    def check(self, *arguments):
        return self.call(self.pack / "tools/gpu_check", "--device", "cpu", "--quick", "--report", self.report, "--torch",
                         os.environ["TRAINER_TEST_LIBTORCH"], *arguments)

    def items(self):
        return json.loads((self.report / "report.json").read_text())["items"]

    def test_runs_in_pieces(self):
        packed = self.call(ROOT / "tools/gpu_check", "--pack", self.pack, "--build", BUILD)
        # Too large at worst where nothing was optimised.
        allowed = (0,) if os.environ["TRAINER_TEST_BUILDTYPE"] == "release" else (0, 1)
        self.assertIn(packed.returncode, allowed, packed.stdout + packed.stderr)
        self.assertRegex(packed.stdout, r": \d+\.\d MiB")
        carried = [path.name for path in self.pack.rglob("*")]
        self.assertFalse([name for name in carried if name.startswith(("libtorch", "libc10"))])

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
        for item in items:
            self.assertIn(item, text)

        other = self.report / "report.json"
        other.write_text(other.read_text().replace("cpu (dry run)", "another GPU"))
        mixed = self.check()
        self.assertNotEqual(mixed.returncode, 0)
        self.assertIn("name another --report", mixed.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
