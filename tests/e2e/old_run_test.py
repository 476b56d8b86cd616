"""A run that an early version left behind (tests/data/old_run): what users have, every later version takes up."""

import json
import math
import pathlib
import re
import shutil
import struct
import tomllib
import unittest
import zlib

from program import PROGRAM, ROOT, Case, log_lines, main, read_header, reseal, settings

OLD = ROOT / "tests/data/old_run"
RECIPE = OLD / "recipe.toml"
# As that version itself went on, steps 5 to 8 and the validation after them. Other processors round otherwise.
LOSSES = [0.8394525051116943, 0.7809251546859741, 1.1981722116470337, 1.0585085153579712]
VALIDATION = 1.1004680395126343
NEAR = 2e-3
# One option more for each plugin, at its default: a version of tomorrow.
LATER = '\n[[option]]\nkey = "of_tomorrow"\ntype = "integer"\ndefault = 3\nhelp = "None."\n'


def tensors(file):
    """Shape and bytes of every tensor by name."""
    header, data = read_header(file)
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def pixels(file):
    """The bytes of an RGB picture of samples, without the line that names its columns."""
    data, at, packed = file.read_bytes(), 8, b""
    (width,) = struct.unpack_from(">I", data, 16)
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        packed += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    raw, stride, rows = zlib.decompress(packed), 1 + 3 * width, [bytes(3 * width)]
    for start in range(0, len(raw), stride):
        filter, row, above = raw[start], bytearray(raw[start + 1 : start + stride]), rows[-1]
        for i in range(len(row)):
            a, b, c = (row[i - 3], above[i], above[i - 3]) if i >= 3 else (0, above[i], 0)
            nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            row[i] = (row[i] + (0, a, b, (a + b) // 2, nearest)[filter]) % 256
        rows.append(bytes(row))
    return b"".join(rows[1 + 20 :])


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

    def test_an_option_of_the_recipe_that_came_later_refuses_nothing(self):
        checkpoint = self.run_folder / "ckpt/step-0000000004"
        state = json.loads((checkpoint / "state.json").read_text())
        option = "caption_dropout = 0.0\n"
        self.assertIn(option, state["recipe"])
        state["recipe"] = state["recipe"].replace(option, "")
        reseal(checkpoint, "state.json", json.dumps(state).encode())
        stored = self.run_folder / "recipe.toml"
        stored.write_text(stored.read_text().replace(option, ""))
        self.assert_goes_on()

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
        expected = pixels(OLD / "run/samples/old-4.png")
        apart = [abs(a - b) for a, b in zip(pixels(picture), expected, strict=True)]
        self.assertLess(sum(apart) / len(apart), 0.4, "of 255; two fifths of it are the picture")
        self.call("prove", texts="PROVEN")
        self.expect(0, "", "inspect", lora)
        for form in ("comfyui", "diffusers", "kohya"):
            file, back = self.folder / f"{form}.safetensors", self.folder / f"{form}-back.safetensors"
            self.expect(0, str(file), "export", lora, "--format", form, "--output", file)
            self.expect(0, str(back), "export", file, "--format", "diffusers", "--output", back)
            self.assertEqual(tensors(back), tensors(lora), form)


if __name__ == "__main__":
    main()
