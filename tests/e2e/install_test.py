"""The installed program, moved elsewhere: it finds its parts by its own place and needs nothing of the build tree.

TRAINER_BUILD is the build folder.
"""

import json
import os
import pathlib
import shutil
import subprocess
import unittest

from program import QUICKSTART, RunCase, environment, settings

BUILD = os.environ["TRAINER_BUILD"]


class Installed(RunCase):
    def install(self):
        """Installs under DESTDIR, moves the result, and returns the program there."""
        destination = self.folder / "destination"
        done = subprocess.run(
            ["meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", destination],
            text=True,
            capture_output=True,
            env=environment(),
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        program = next(path for path in destination.rglob("bin/trainer"))
        moved = self.folder / "moved"
        shutil.move(program.parent.parent, moved)
        shutil.rmtree(destination)
        return moved / "bin/trainer"

    def libtorch(self):
        report = json.loads(self.program("--json", "doctor").out)
        return pathlib.Path(report["libtorch"])

    def test_nccl_is_there_where_its_headers_are(self):
        """Also when they were fetched after the first configuration, which had none."""
        places = [self.libtorch().parent / "nvidia", pathlib.Path("/usr")]
        have = [any((place / part / "include" / header).exists() for place in places for part in ("nccl", "cu13", "."))
                for header in ("nccl.h", "cuda_runtime_api.h")]
        if all(have):
            self.assertTrue((pathlib.Path(BUILD) / "framework/distributed/libtrainer_nccl.so").exists())

    def test_trains_from_anywhere(self):
        torch = self.libtorch()
        program = str(self.install())
        self.assertFalse((pathlib.Path(program).parent / "trainer.layout.toml").exists())
        env = {"TRAINER_LIBTORCH": str(torch)}
        rows = json.loads(self.expect(0, [], "--json", "plugins", "list", program=program, env=env).out)
        self.assertEqual(
            {row["name"] for row in rows},
            {row["name"] for row in json.loads(self.program("--json", "plugins", "list").out)},
        )
        for row in rows:
            self.assertTrue(row["library"].startswith(str(self.folder)), row)
        run = self.folder / "run"
        self.expect(
            0,
            [str(run / "lora/quickstart-2.safetensors")],
            "run",
            QUICKSTART,
            *settings(run__output=run, run__steps=2, sample__steps=1),
            program=program,
            env=env,
        )
        report = json.loads(self.expect(0, [], "--json", "doctor", program=program, env=env).out)
        ours = [path for path in report["mapped"] if "trainer" in pathlib.Path(path).name]
        self.assertTrue(ours)
        for path in ours:
            self.assertTrue(path.startswith(str(self.folder)), path)
        self.assertIn("sim:N", [device.split()[0] for device in report["devices"]])
        opened = self.opened(program, env)
        self.assertNotIn(f"{BUILD}/", opened)

    def opened(self, program, env):
        """What the dynamic linker opened for `plugins check` of an installed plugin."""
        manifest = next(pathlib.Path(program).parent.parent.rglob("flux2.plugin.toml"))
        self.expect(
            0,
            ["model flux2"],
            "plugins",
            "check",
            manifest,
            program=program,
            env={**env, "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(self.folder / "ld")},
        )
        return "".join(path.read_text(errors="replace") for path in self.folder.glob("ld.*"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
