"""A run that an early version left behind (tests/data/old_run): what users have, every later version takes up."""

import json
import math
import pathlib
import re
import shutil
import struct
import tomllib
import unittest

from program import PROGRAM, ROOT, Case, log_lines, main, read_header, settings

OLD = ROOT / "tests/data/old_run"
RECIPE = OLD / "recipe.toml"
# As that version itself went on, steps 5 to 8 and the validation after them. Other processors round otherwise.
LOSSES = [0.8394525051116943, 0.7809251546859741, 1.1981722116470337, 1.0585085153579712]
VALIDATION = 1.1004680395126343
NEAR = 2e-3
# One option more for each plugin, at its default: a version of tomorrow.
LATER = '\n[[option]]\nkey = "of_tomorrow"\ntype = "integer"\ndefault = 3\nhelp = "None."\n'


class OldRun(Case):
    def setUp(self):
        super().setUp()
        self.run_folder = self.folder / "run"
        shutil.copytree(OLD / "run", self.run_folder)

    def call(self, command, *arguments, texts=(), program=PROGRAM, env=None, **more):
        pairs = settings(run__output=self.run_folder, **more)
        return self.expect(0, texts, command, RECIPE, *pairs, *arguments, program=program, env=env)

    def assert_near(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            self.assertTrue(math.isclose(one, other, rel_tol=NEAR), f"{found}, then {expected}")

    def assert_goes_on(self, **options):
        before = (self.run_folder / "log.jsonl").read_text()
        self.call("run", texts=["going on after step 4"], run__steps=8, **options)
        self.assertTrue((self.run_folder / "log.jsonl").read_text().startswith(before), "the log is kept")
        rows = [row for row in log_lines(self.run_folder) if row["step"] > 4]
        self.assert_near([row["loss"] for row in rows if "loss" in row], LOSSES)
        self.assert_near([row["validation_loss"] for row in rows if "validation_loss" in row], [VALIDATION])
        for result in ("lora/old-8.safetensors", "samples/old-8.png", "ckpt/step-0000000008/MANIFEST.json"):
            self.assertTrue((self.run_folder / result).exists(), result)

    def test_goes_on(self):
        self.call("check", texts=["goes on after step 4", "data, weights and encoders are those of"], run__steps=8)
        self.assert_goes_on()

    def test_an_option_that_comes_later_refuses_nothing(self):
        self.assert_goes_on(program=self.program_of_tomorrow())

    def program_of_tomorrow(self):
        """A copy of the program whose plugins have one option more."""
        program = self.folder / "bin/trainer"
        program.parent.mkdir()
        shutil.copy(PROGRAM, program)
        layout = tomllib.loads((pathlib.Path(PROGRAM).parent / "trainer.layout.toml").read_text())
        for i, folder in enumerate(map(pathlib.Path, layout["plugins"])):
            copy = self.folder / f"plugins-{i}"
            copy.mkdir()
            layout["plugins"][i] = str(copy)
            for file in [*folder.glob("*.so"), *folder.glob("*.plugin.toml")]:
                shutil.copy(file, copy)
            for manifest in copy.glob("*.plugin.toml"):
                manifest.write_text(re.sub(r"\n(?=\[\[option|\[\[candidate|\[tolerance)|$", LATER + "\n",
                                           manifest.read_text(), count=1))
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in layout.items()]
        (program.parent / "trainer.layout.toml").write_text("".join(lines))
        return program

    def test_the_cache_is_encoded_alike(self):
        """Another build of an encoder encodes anew."""

        def entries(folder):
            found = {}
            for file in folder.rglob("*.safetensors"):
                header, data = read_header(file)
                about = header.pop("__metadata__")["about"]
                found[about] = header, [value for (value,) in struct.iter_unpack("<f", data)]
            return found

        self.call("cache", cache__folder=self.folder / "cache")
        old, new = entries(OLD / "run/cache"), entries(self.folder / "cache")
        self.assertEqual(old.keys(), new.keys())
        for about, (header, values) in old.items():
            self.assertEqual(new[about][0], header, about)
            apart = math.dist(values, new[about][1]) / math.hypot(*values)
            self.assertLess(apart, NEAR, about)

    def test_samples_proves_and_exports(self):
        lora = self.run_folder / "lora/old-4.safetensors"
        picture = self.folder / "fox.png"
        self.call("sample", "--lora", lora, "--prompt", "a cyanotype of a fox", "--output", picture)
        self.assertTrue(picture.exists())
        self.call("prove", texts="PROVEN")
        self.expect(0, "", "inspect", lora)
        for form in ("comfyui", "diffusers", "kohya"):
            file = self.folder / f"{form}.safetensors"
            self.expect(0, str(file), "export", lora, "--format", form, "--output", file)
            self.assertTrue(read_header(file)[0], form)


if __name__ == "__main__":
    main()
