"""Plugins from outside the tree in recipes: a language model on texts, two experts, LoKr, offload and block swap.

TRAINER_STRANGERS is the folder with the plugins that tests/out_of_tree builds against the installed package.
"""

import json
import os
import random
import re
import struct
import subprocess
import sys
import tomllib
import unittest

from program import (
    ROOT,
    SMALL,
    Case,
    RunCase,
    hash_of,
    log_lines,
    read_header,
    reseal,
    settings,
    write_safetensors,
)

RECIPES = ROOT / "tests" / "out_of_tree"
BAD_RECIPE = 78


class Strangers(Case):
    def program(self, *arguments, env=None, **options):
        return super().program(
            *arguments, env={"TRAINER_PLUGIN_PATH": os.environ["TRAINER_STRANGERS"], **(env or {})}, **options
        )

    def weights(self, name, shapes, seed=1):
        """A safetensors file of random numbers, scaled by the square root of the last side."""
        numbers = random.Random(seed)
        header, data = {}, b""
        for key, shape in shapes.items():
            count = 1
            for side in shape:
                count *= side
            values = [numbers.gauss(0, 1) / shape[-1] ** 0.5 for _ in range(count)]
            raw = struct.pack(f"<{count}f", *values)
            header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        path = self.folder / name
        write_safetensors(path, header, data)
        return path

    def run_recipe(self, recipe, weights, run, *pairs, code=0, texts=(), **more):
        return self.expect(
            code,
            texts,
            "run",
            RECIPES / recipe,
            *settings(*pairs, model__path=weights, run__output=self.folder / run, **more),
        )

    def exported(self, run):
        return next((self.folder / run).glob("*/*.safetensors"))


class NewPlugin(Strangers):
    def test_every_example_starts_a_project_that_loads(self):
        tool, build = ROOT / "tools" / "new_plugin", RECIPES / "build.py"
        listed = subprocess.run([tool, "--list"], text=True, capture_output=True, check=True).stdout
        examples = [line.split() for line in listed.splitlines()]
        self.assertEqual({kind for kind, _ in examples}, {"model", "adapter", "memory"})
        for kind, example in examples:
            project = self.folder / example
            name = f"my_{example}"
            subprocess.run([tool, kind, name, project, "--from", example], check=True, capture_output=True)
            self.assertEqual({path.name for path in project.iterdir()},
                             {"meson.build", f"{name}.cpp", f"{name}.plugin.toml.in"})
            self.assertNotIn(f'"{example}"', (project / f"{name}.cpp").read_text())
            manifest = (project / f"{name}.plugin.toml.in").read_text()
            self.assertIn(f'summary = "What {name} does', manifest)
            self.assertIn('version = "0.1.0"', manifest)
        # One is built; the others differ from what tests/out_of_tree builds in their names alone.
        done = subprocess.run(
            [sys.executable, build, os.environ["TRAINER_MESON"], self.folder / "full_checkpointing", self.folder / "build",
             os.environ["TRAINER_BUILD"], self.folder / "installed", self.folder / "stamp"], text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = json.loads(self.expect(0, [], "--json", "plugins", "list",
                                      env={"TRAINER_PLUGIN_PATH": str(self.folder / "build")}).out)
        self.assertIn(("my_full_checkpointing", "memory"), {(row["name"], row["kind"]) for row in rows})

    def test_mistakes(self):
        tool = ROOT / "tools" / "new_plugin"
        for arguments, text in ((["film", "x", "y"], "kind film"), (["adapter", "X-1", "y"], "a-z"),
                                (["adapter", "x", self.folder.parent], "not empty"),
                                (["adapter", "x", "y", "--from", "toy"], "toy")):
            done = subprocess.run([tool, *arguments], text=True, capture_output=True, cwd=self.folder)
            self.assertEqual(done.returncode, 1)
            self.assertIn(text, done.stderr)


class LanguageModel(Strangers):
    def setUp(self):
        super().setUp()
        shapes = {"embed.weight": [257, 8], "positions.weight": [64, 16], "project.weight": [16, 8]}
        for layer in ("layers.0", "layers.1"):
            shapes[layer + ".norm.weight"] = [16]
            shapes[layer + ".attn.qkv.weight"] = [48, 16]
            shapes[layer + ".attn.out.weight"] = [16, 16]
            shapes[layer + ".mlp.up.weight"] = [32, 16]
            shapes[layer + ".mlp.down.weight"] = [16, 32]
        shapes["head.weight"] = [257, 16]
        self.shapes = shapes
        self.file = self.weights("lm.safetensors", shapes)

    def test_check(self):
        arguments = ["check", RECIPES / "toy_lm.toml", *settings(model__path=self.file)]
        self.expect(0, ["12 texts", "a toy language model of 2 layers", "the bytes of a text", "ready to run"], *arguments)

    def test_memory_is_planned_without_pictures(self):
        recipe = [RECIPES / "toy_lm.toml", *settings(model__path=self.file)]
        self.expect(0, ["block type", "run with"], "check", *recipe)
        self.expect(BAD_RECIPE, ["memory.budget: 10kB is too small"], "check", *recipe, "--budget", "10kB")
        self.expect(0, ["plan for memory.budget"], "check", *recipe, "--budget", "1GB")
        packed = settings('memory.strategies=["fp8_weight_only"]')
        self.expect(BAD_RECIPE, ["without [adapter]"], "check", *recipe, *packed)
        own = self.write("own.toml", f'extends = "{RECIPES / "toy_lm.toml"}"\n[model]\npath = "{self.file}"\n')
        self.expect(0, ["save = [\"attention\"]"], "explain", "memory.selective_checkpointing", own)
        self.expect(0, ["64 text tokens"], "plan", *recipe)
        self.expect(0, ["plan for memory.budget"], "plan", *recipe, "--budget", "1GB")
        self.expect(0, ["PROVEN"], "prove", *recipe, *settings('memory.strategies=["full_checkpointing"]'))

    def test_learns_resumes_and_exports(self):
        whole = self.run_recipe("toy_lm.toml", self.file, "whole", texts=["12 texts", "all 1", "model"])
        losses = [line["loss"] for line in log_lines(self.folder / "whole")]
        self.assertEqual(len(losses), 40)
        self.assertGreater(losses[0], 5)  # about log 257, all bytes alike
        self.assertLess(sum(losses[-5:]) / 5, 3.2)
        self.assertFalse(list((self.folder / "whole").rglob("samples*")), str(whole))
        header, _ = read_header(self.exported("whole"))
        self.assertEqual({name: header[name]["shape"] for name in self.shapes}, self.shapes)

        self.run_recipe("toy_lm.toml", self.file, "parts", run__steps=15)
        self.run_recipe("toy_lm.toml", self.file, "parts", texts=["going on after step 15"])
        files = [self.folder / run / "model/toy_lm-40.safetensors" for run in ("whole", "parts")]
        self.assertEqual(files[0].read_bytes(), files[1].read_bytes())

    def test_a_run_of_the_first_versions_goes_on(self):
        """They recorded the options of every plugin also where they have their default."""

        def encoders(*options):
            table, integer = 6, 2
            values = [field for name, value in options for field in (name, integer, value)]
            return hash_of("bytes", "", "", hash_of(table, len(options), *values), dtype, "", "", "", "", "")

        def record(identity):
            checkpoint = max((self.folder / "run/ckpt").glob("step-*"))
            reseal(checkpoint, "state.json", (checkpoint / "state.json").read_bytes(), encoders=identity)

        self.run_recipe("toy_lm.toml", self.file, "run", run__steps=2)
        dtype = tomllib.loads((self.folder / "run/recipe.toml").read_text())["text_encoder"]["dtype"]
        manifest = (self.folder / "run/ckpt/step-0000000002/MANIFEST.json").read_text()
        self.assertIn(f'"encoders": "{encoders()}"', manifest, "what has its default is left out")
        record(encoders(("length", 64)))
        recipe = [RECIPES / "toy_lm.toml", *settings(model__path=self.file, run__output=self.folder / "run", run__steps=3)]
        self.expect(0, "data, weights and encoders are those", "check", *recipe)
        self.run_recipe("toy_lm.toml", self.file, "run", texts=["going on after step 2"], run__steps=3)
        record(encoders(("length", 65)))
        self.run_recipe("toy_lm.toml", self.file, "run", code=BAD_RECIPE, texts=["text encoder, tokenizer"], run__steps=4)

    def test_lokr_with_every_strategy_is_the_plain_run(self):
        lokr = ["adapter.kind=lokr", "adapter.rank=2", "train.threads=1"]
        self.run_recipe("toy_lm.toml", self.file, "plain", *lokr, texts=["LoKr rank 2"], run__steps=6)
        self.run_recipe(
            "toy_lm.toml",
            self.file,
            "saving",
            *lokr,
            'memory.strategies=["full_checkpointing", "host_offload", "block_swap"]',
            run__steps=4,
        )
        # Strategies are no part of what is trained: the run goes on without them.
        self.run_recipe("toy_lm.toml", self.file, "saving", *lokr, texts=["after step 4"], run__steps=6)
        self.run_recipe("toy_lm.toml", self.file, "swap", *lokr, 'memory.strategies=["block_swap"]', run__steps=6)
        plain = self.folder / "plain/lora/toy_lm-6.safetensors"
        for run in ("saving", "swap"):
            self.assertEqual(plain.read_bytes(), (self.folder / run / "lora/toy_lm-6.safetensors").read_bytes(), run)
        header, _ = read_header(plain)
        names = {name for name in header if name.startswith("layers.0.attn.qkv.")}
        self.assertEqual(names, {f"layers.0.attn.qkv.{part}" for part in ("lokr_w1", "lokr_w2_a", "lokr_w2_b", "alpha")})

    def test_packed_and_swapped(self):
        self.run_recipe(
            "toy_lm.toml",
            self.file,
            "packed",
            "adapter.kind=lokr",
            'memory.strategies=["fp8_weight_only", "block_swap", "full_checkpointing"]',
            run__steps=3,
        )
        self.assertEqual(len(log_lines(self.folder / "packed")), 3)

    def test_what_is_about_pictures_is_refused(self):
        for pair, text in (
            ('autoencoder={kind="flux2_vae"}', 'autoencoder: the objective "next_token" trains on texts'),
            ('sample.prompts=["a fox"]', "there is nothing to draw"),
            ('data=[{folder="' + str(RECIPES / "texts") + '", resolution=64}]', "data.0.resolution"),
            (f"text_encoder.path={self.file}", '"bytes" reads no weights'),
            (f"text_encoder.tokenizer={self.file}", '"bytes" reads no tokenizer'),
        ):
            with self.subTest(pair):
                self.run_recipe("toy_lm.toml", self.file, "run", pair, code=BAD_RECIPE, texts=[text])
        self.expect(
            BAD_RECIPE, "nothing to draw", "sample", RECIPES / "toy_lm.toml", *settings(model__path=self.file),
            "--prompt", "a fox",
        )

    def test_bad_texts(self):
        data = self.folder / "data"
        data.mkdir()
        arguments = ["toy_lm.toml", self.file, "run", f'data=[{{folder="{data}"}}]']
        self.run_recipe(*arguments, code=65, texts=["no text", str(data)])
        (data / "a.txt").write_bytes(b"caf\xe9")
        (data / "b.txt").write_text("\n")
        (data / "c.txt").write_text("good")
        self.run_recipe(*arguments, code=65, texts=["a.txt", "UTF-8", "b.txt", "empty"])

    def test_texts_longer_than_the_model(self):
        self.run_recipe(
            "toy_lm.toml", self.file, "run", "text_encoder.length=90", code=BAD_RECIPE, texts=["89", "64", "lower"]
        )


class Experts(Strangers):
    def file(self, name="experts.safetensors", seeds=(1, 2)):
        """Both experts; each with weights of its own seed."""
        width, channels, parts = 16, 48, {}
        for expert in ("high", "low"):
            shapes = {"embed": [width, channels], "time_embed": [width, width], "modulation": [2 * width, width]}
            for block in range(2):
                shapes |= {f"blocks.{block}.up": [2 * width, width], f"blocks.{block}.down": [width, 2 * width]}
            shapes["out"] = [channels, width]
            parts[expert] = {f"{expert}.{key}.weight": shape for key, shape in shapes.items()}
        files = [self.weights(f"{expert}-{seed}", shapes, seed) for (expert, shapes), seed in zip(parts.items(), seeds)]
        (high, first), (low, second) = map(read_header, files)
        for entry in low.values():
            entry["data_offsets"] = [offset + len(first) for offset in entry["data_offsets"]]
        write_safetensors(self.folder / name, high | low, first + second)
        return self.folder / name

    def test_one_is_trained(self):
        for expert in ("high", "low"):
            self.run_recipe("experts.toml", self.file(), expert, f"model.train={expert}", run__steps=3, texts=[expert])
            header, _ = read_header(self.exported(expert))
            names = [name for name in header if name != "__metadata__"]
            self.assertEqual(len(names), 8)
            self.assertTrue(all(name.startswith(f"{expert}.blocks.") for name in names), names)

    def test_samples_go_through_both(self):
        pictures = {}
        for seeds in ((1, 2), (1, 3), (4, 2)):
            output = self.folder / f"{seeds}.png"
            self.expect(
                0,
                str(output),
                "sample",
                RECIPES / "experts.toml",
                *settings(model__path=self.file(seeds=seeds), sample__size="[64, 64]", sample__steps=4),
                *settings(cache__folder=self.folder / "cache"),
                "--prompt",
                "a fox",
                "--output",
                output,
            )
            pictures[seeds] = output.read_bytes()
        self.assertEqual(len(set(pictures.values())), 3, "each expert has a part in the picture")


class AdapterFiles(RunCase, Strangers):
    """A third party's adapter on FLUX.2: what it writes, the program reads again everywhere."""

    def recipe(self, name, *keys):
        """small.toml with [adapter] of these lines alone."""
        quickstart = ROOT / "recipes" / "quickstart.toml"
        text = quickstart.read_text().replace('"quickstart/', f'"{quickstart.parent}/quickstart/')
        self.write("quickstart.toml", re.sub(r"\[adapter\]\n([^\[].*\n|\n)*", "", text))
        small = SMALL.read_text().replace("../../recipes/quickstart.toml", "quickstart.toml")
        return self.write(name, small.replace("rank = 4\nalpha = 4\n", "\n".join(keys) + "\n"))

    def test_round_trip(self):
        recipe = self.recipe("lokr.toml", 'kind = "lokr"', "rank = 2", "factor = 4")
        self.train(self.folder / "first", recipe=recipe, run__steps=3)
        file = self.folder / "first/lora/small-3.safetensors"
        header, _ = read_header(file)
        self.assertEqual(header["__metadata__"]["trainer.adapter"], "lokr")
        self.assertEqual(header["__metadata__"]["lokr.factor"], "4")
        report = json.loads(self.expect(0, [], "--json", "inspect", file).out)
        self.assertEqual(report["what"], 'adapter "lokr" for FLUX.2 (model plugin "flux2")')
        self.assertEqual((report["format"], report["step"]), ("diffusers", 3))
        self.assertIn("lokr_w1", report["trains"][0])
        # Under another program's names and back: the same file.
        kohya = self.folder / "kohya.safetensors"
        self.expect(65, ["joins or reorders the layer"], "export", file, "--format", "kohya", "--output", kohya)
        same = self.folder / "same.safetensors"
        self.expect(0, [], "export", file, "--format", "diffusers", "--output", same)
        self.assertEqual(same.read_bytes(), file.read_bytes())
        # Samples with the file are those of the run; without it they are others.
        pictures = {}
        for name, more in (("with", ["--lora", file]), ("again", ["--lora", same]), ("without", [])):
            output = self.folder / f"{name}.png"
            self.expect(0, [], "sample", recipe, *settings(sample__steps=2, cache__folder=self.cache), "--prompt", "a fox",
                        "--output", output, *more)
            pictures[name] = output.read_bytes()
        self.assertEqual(pictures["with"], pictures["again"])
        self.assertNotEqual(pictures["with"], pictures["without"])
        # Training goes on from its values: no step, the same file but for the step in its metadata.
        started = self.recipe("started.toml", 'kind = "lokr"')
        self.train(self.folder / "second", f'adapter.path="{file}"', recipe=started, run__steps=1, optimizer__lr=1e-30,
                   texts=["LoKr from a file"])
        first, again = read_header(file), read_header(self.folder / "second/lora/small-1.safetensors")
        self.assertEqual(again[0].pop("__metadata__")["lokr.factor"], first[0].pop("__metadata__")["lokr.factor"])
        self.assertEqual(again, first)
        self.train(self.folder / "third", f'adapter.path="{file}"', "adapter.rank=3", recipe=started, code=BAD_RECIPE,
                   texts=["adapter.rank: the file has another rank"])
        self.train(self.folder / "third", f'adapter.path="{file}"', 'adapter.init="file"', code=BAD_RECIPE,
                   texts=['is a file of the adapter "lokr"', 'adapter.kind = "lokr"'])
        # Without the plugin it is refused by name.
        self.expect(65, ['made by the adapter "lokr"', "TRAINER_PLUGIN_PATH"], "export", file, "--format", "diffusers",
                    "--output", self.folder / "no.safetensors", env={"TRAINER_PLUGIN_PATH": ""})

    def test_plugins_check_reads_what_it_exports(self):
        manifest = os.path.join(os.environ["TRAINER_STRANGERS"], "lokr.plugin.toml")
        self.expect(0, ["PROVEN", "starts from what it exports"], "plugins", "check", manifest)


class Memory(Strangers):
    def test_what_stores_and_residencies_hold_is_planned(self):
        for strategy in ("host_offload", "block_swap"):
            recipe = [SMALL, *settings(f'memory.strategies=["full_checkpointing", "{strategy}"]', run__steps=2,
                                       run__output=self.folder / strategy)]
            planned = json.loads(self.expect(0, [], "plan", *recipe, "--json").out)["devices"][0]["total"]
            self.expect(0, [], "run", *recipe)
            used = log_lines(self.folder / strategy)[-1]["bytes"]["cpu"]
            self.assertLessEqual(used["first_step"], planned, strategy)
            self.assertGreater(used["first_step"], 0.85 * planned, strategy)


if __name__ == "__main__":
    unittest.main(verbosity=2)
