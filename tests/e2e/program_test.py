"""The program itself: help, what it loads, LibTorch and plugins that are no good, and the commands that only look."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import unittest

from program import (
    MODEL,
    PICTURES,
    PROGRAM,
    ROOT,
    SMALL,
    RunCase,
    environment,
    read_header,
    settings,
    write_safetensors,
)

USAGE, REJECTED, BAD_INPUT, NOT_FOUND, UNAVAILABLE, BAD_RECIPE = 2, 3, 65, 66, 69, 78
COMMANDS = ("run", "check", "plan", "prove", "cache", "sample", "export", "inspect", "plugins", "explain", "doctor")
BFL = ROOT / "tests/data/parity"


class Help(RunCase):
    def test_every_command_has_an_example(self):
        everything = self.expect(0, [*COMMANDS, "Example: trainer run"], "--help").out
        self.assertIn("Usage: trainer", everything)
        for command in COMMANDS:
            self.expect(0, [f"Example: trainer {command}"], command, "--help")
        for command in ("list", "check"):
            self.expect(0, [f"Example: trainer plugins {command}"], "plugins", command, "--help")

    def test_examples_are_accepted(self):
        """The quickstart's examples parse: options and recipe are known (checked without running them)."""
        for command in ("run", "check", "plan", "cache", "sample"):
            example = self.program(command, "--help").out.split("Example: trainer ")[1].split()
            self.assertEqual(example[:2], [command, "recipes/quickstart.toml"])

    def test_version(self):
        self.assertRegex(self.expect(0, [], "--version").out, r"^\d+\.\d+\.\d+\n$")

    def test_fast_and_without_libtorch(self):
        times = []
        for _ in range(7):
            begin = time.perf_counter()
            subprocess.run([PROGRAM, "--help"], check=True, capture_output=True, env=environment())
            times.append(time.perf_counter() - begin)
        self.assertLess(min(times), 0.05)
        for arguments in (["--help"], ["run", "--help"], ["plugins", "list"], ["explain", "optimizer.lr"]):
            self.program(*arguments, env={"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(self.folder / "ld")})
            opened = "".join(path.read_text(errors="replace") for path in self.folder.glob("ld.*"))
            self.assertIn("libc.so", opened)
            self.assertNotIn("libtorch", opened)


class LibTorch(RunCase):
    def test_missing(self):
        for arguments in (["--libtorch", "/nonexistent", "doctor"], ["doctor", "--libtorch", "/nonexistent"]):
            self.expect(UNAVAILABLE, ["/nonexistent (--libtorch or TRAINER_LIBTORCH)", "tools/setup"], *arguments)
        self.expect(UNAVAILABLE, ["/nonexistent"], "check", SMALL, env={"TRAINER_LIBTORCH": "/nonexistent"})

    def test_damaged(self):
        for name in ("libc10.so", "libtorch_cpu.so"):
            self.write(f"torch/lib/{name}", "no library")
        self.expect(UNAVAILABLE, ["cannot be loaded", str(self.folder)], "--libtorch", self.folder / "torch", "doctor")

    def test_half_there(self):
        self.write("torch/lib/libtorch_cpu.so", "no library")
        self.expect(UNAVAILABLE, ["cannot be loaded", "libc10.so"], "--libtorch", self.folder / "torch", "doctor")

    def test_another_version(self):
        self.write("torch/lib/libtorch_cpu.so", "never opened")
        self.write("torch/version.py", "import x\n__version__ = '2.9.1+cpu'\n")
        self.expect(
            UNAVAILABLE, ["LibTorch 2.11.0 is needed", "has 2.9.1"], "--libtorch", self.folder / "torch", "doctor"
        )

    def test_one_copy_of_everything(self):
        report = json.loads(self.expect(0, [], "--json", "doctor").out)
        for name in ("/libtorch_cpu", "/libgomp", "/libc10.", "/libtrainer_sdk", "/libtrainer.so"):
            self.assertEqual(sum(name in path for path in report["mapped"]), 1, f"{name} in {report['mapped']}")
        self.assertFalse([path for path in report["mapped"] if "libtorch_cuda" in path])
        self.assertEqual(report["threads"], 1)
        self.assertEqual(report["devices"][0], "cpu (1 threads)")
        self.assertRegex(report["devices"][1], "^(no cuda: .*|cuda:0 .*)$")
        self.assertIn("torch 2.11.0", self.program("doctor").out)

    def test_levels_and_what_makes_it_slow(self):
        def report(**env):
            free = dict.fromkeys([*held, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_CBWR", "DNNL_MAX_CPU_ISA"])
            return json.loads(self.expect(0, [], "--json", "doctor", env={**free, **env}).out)

        held = {"TRAINER_CPU_LEVEL": "baseline", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "sse41",
                "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
        best = report()
        self.assertEqual([level["of"] for level in best["levels"]], ["kernels", "LibTorch", "oneDNN", "MKL"])
        self.assertEqual([level["used"] for level in best["levels"]], [level["best"] for level in best["levels"]])
        self.assertNotIn("below", " ".join(best["slow_because"]))
        self.assertIn("avx2", best["instructions"].split())
        slow = report(**held)
        self.assertEqual([level["used"] for level in slow["levels"]], ["baseline", "DEFAULT", "SSE41", "SSE4_2"])
        for variable, value in held.items():
            self.assertIn(f": unset {variable}={value}", " ".join(slow["slow_because"]))
        self.assertIn("slow_because kernels use baseline, below", self.expect(0, [], "doctor", env=held).out)
        if os.cpu_count() > 1:
            self.assertRegex(" ".join(best["slow_because"]), r"one thread on a machine with \d+ processors, since ")
        for policy, spins in (("active", True), ("passive", False), (None, False)):
            reasons = " ".join(report(OMP_NUM_THREADS="2", OMP_WAIT_POLICY=policy)["slow_because"])
            self.assertEqual("unset OMP_WAIT_POLICY=active" in reasons, spins, reasons)
        for count, spins in (("30G", True), ("30g", True), ("200 k", True), ("INFINITY", True), ("20K", False), ("9", False)):
            reasons = " ".join(report(OMP_NUM_THREADS="2", GOMP_SPINCOUNT=count)["slow_because"])
            self.assertEqual(f"unset GOMP_SPINCOUNT={count}" in reasons, spins, count)

    def test_spin_count(self):
        self.expect(0, "GOMP_SPINCOUNT 1000", "doctor", env={"GOMP_SPINCOUNT": None, "OMP_WAIT_POLICY": None})
        self.expect(0, "GOMP_SPINCOUNT 77", "doctor", env={"GOMP_SPINCOUNT": "77"})
        self.expect(0, "GOMP_SPINCOUNT (unset)", "doctor", env={"GOMP_SPINCOUNT": None, "OMP_WAIT_POLICY": "active"})


class Plugins(RunCase):
    def good(self):
        """The manifest of the flux2 plugin, as text, and its folder."""
        for row in json.loads(self.program("--json", "plugins", "list").out):
            if row["name"] == "flux2":
                folder = pathlib.Path(row["library"]).parent
                return (folder / "flux2.plugin.toml").read_text(), folder
        self.fail("no flux2")

    def bad(self, name, change):
        """A manifest of another name in a folder for TRAINER_PLUGIN_PATH, changed by `change`."""
        text, folder = self.good()
        text = change(text.replace('name = "flux2"', f'name = "{name}"'))
        self.write(f"plugins/{name}.plugin.toml", text)
        shutil.copy(folder / "flux2.so", self.folder / "plugins")
        return self.write(f"{name}.toml", f'extends = "{SMALL}"\n[model]\nkind = "{name}"\n')

    def refused(self, recipe, texts, code=REJECTED):
        self.expect(
            code,
            texts,
            "run",
            recipe,
            *settings(run__output=self.folder / "run"),
            env={"TRAINER_PLUGIN_PATH": str(self.folder / "plugins")},
        )

    def test_list(self):
        rows = json.loads(self.expect(0, [], "--json", "plugins", "list").out)
        found = {(row["kind"], row["name"]) for row in rows}
        self.assertLessEqual(
            {
                ("model", "flux2"),
                ("text_encoder", "mistral"),
                ("text_encoder", "qwen3"),
                ("autoencoder", "flux2_vae"),
                ("memory", "full_checkpointing"),
                ("placement", "single"),
            },
            found,
        )
        self.expect(0, ["full_checkpointing", "flux2_vae"], "plugins", "list")
        self.assertTrue(all(row["usable"] and row["reason"] == "" for row in rows), rows)

    def test_list_says_what_cannot_be_used(self):
        """Built for another LibTorch; without its library; cut short; with the name of one of the program's own."""
        source = pathlib.Path(os.environ["TRAINER_TEST_TOY_STRATEGIES"])
        manifest = (source / "honest_store.plugin.toml").read_text()
        library = (source / "honest_store.so").read_bytes()
        torch = re.search(r'^torch = "(.*)"', manifest, re.M)[1]
        for name, text, data in (("old", manifest.replace(f'"{torch}"', '"1.0"', 1), library), ("gone", manifest, None),
                                 ("short", manifest, library[:5000]), ("full_checkpointing", manifest, library)):
            self.write(f"plugins/{name}.plugin.toml", text.replace("honest_store", name))
            if data is not None:
                (self.folder / f"plugins/{name}.so").write_bytes(data)
        env = {"TRAINER_PLUGIN_PATH": str(self.folder / "plugins")}
        rows = json.loads(self.expect(REJECTED, [], "--json", "plugins", "list", env=env).out)
        reasons = {row["name"]: row["reason"] for row in rows if not row["usable"]}
        self.assertEqual(set(reasons), {"old", "gone", "short", "full_checkpointing"})
        own = re.escape(str(pathlib.Path(os.environ["TRAINER_BUILD"]) / "strategies/memory/full_checkpointing"))
        for name, text in (("old", r"built for LibTorch 1\.0"), ("gone", "is not there"), ("short", "cut short"),
                           ("full_checkpointing", rf"plugins/full_checkpointing\.plugin\.toml.*{own}/full_checkpointing")):
            self.assertRegex(reasons[name], text)
        self.expect(REJECTED, ["CANNOT BE USED: built for LibTorch 1.0"], "plugins", "list", env=env)
        self.expect(REJECTED, ["has the name of the program's own"], "check", SMALL, env=env)

    def test_check(self):
        _, folder = self.good()
        report = json.loads(self.expect(0, [], "--json", "plugins", "check", folder / "flux2.plugin.toml").out)
        self.assertEqual(report["offers"], ["model flux2"])
        self.expect(0, ["loads, fingerprint matches", "model flux2"], "plugins", "check", "flux2")  # the program's own, by its name
        self.expect(NOT_FOUND, ['no file "flx2"', 'did you mean "flux2"'], "plugins", "check", "flx2")
        result = self.program("plugins", "check", "nowhere.plugin.toml")
        self.assertNotEqual(result.code, 0)
        self.assertIn("nowhere.plugin.toml", result.err)

    def test_other_fingerprint(self):
        recipe = self.bad("odd", lambda text: text.replace("cxx11abi=1", "cxx11abi=0"))
        self.refused(recipe, ['plugin "odd"', "cxx11abi"])

    def test_other_torch(self):
        recipe = self.bad("old", lambda text: text.replace('torch = "2.11.0"', 'torch = "2.10.0"'))
        self.refused(recipe, ['plugin "old"', "2.10.0"])

    def test_library_missing(self):
        recipe = self.bad("gone", lambda text: text.replace("flux2.so", "gone.so"))
        self.refused(recipe, ['plugin "gone"', "gone.so"])

    def test_library_is_no_library(self):
        self.write("plugins/text.so", "text")
        recipe = self.bad("text", lambda text: text.replace("flux2.so", "text.so"))
        self.refused(recipe, ['plugin "text"', "text.so"])

    def test_library_elsewhere(self):
        recipe = self.bad("far", lambda text: text.replace('"flux2.so"', '"../flux2.so"'))
        self.refused(recipe, ["far.plugin.toml", "beside the manifest"], code=BAD_RECIPE)

    def test_library_of_another_plugin(self):
        recipe = self.bad("renamed", lambda text: text)
        self.refused(recipe, ['plugin "renamed"'])

    def test_broken_manifest_does_not_stop_others(self):
        self.write("plugins/broken.plugin.toml", "name = \n")
        env = {"TRAINER_PLUGIN_PATH": str(self.folder / "plugins")}
        self.expect(
            0,
            ["broken.plugin.toml", "ready to run"],
            "check",
            SMALL,
            *settings(run__output=self.folder / "run"),
            env=env,
        )
        self.expect(REJECTED, ["broken.plugin.toml", "flux2_vae"], "plugins", "list", env=env)

    def test_folder_that_is_not_there(self):
        text = "--plugin-dir nowhere: there is no such folder"
        self.expect(NOT_FOUND, [text], "--plugin-dir", "nowhere", "plugins", "list")

    def test_never_from_the_current_folder_or_beside_the_recipe(self):
        recipe = self.bad("near", lambda text: text)
        shutil.copy(self.folder / "plugins/near.plugin.toml", self.folder)
        self.expect(BAD_RECIPE, ["near", "model.kind"], "run", recipe)


class Inspect(RunCase):
    def inspect(self, path):
        self.expect(0, [], "inspect", path)
        return json.loads(self.expect(0, [], "--json", "inspect", path).out)

    def test_run_results(self):
        run = self.folder / "run"
        self.train(run, run__steps=2)
        lora = self.inspect(run / "lora/small-2.safetensors")
        self.assertEqual((lora["layers"], lora["ranks"], lora["alphas"], lora["finite"]), (16, [4], [4.0], True))
        self.assertEqual((lora["what"], lora["format"]), ('LoRA for FLUX.2 (model plugin "flux2")', "diffusers"))
        self.assertIn("ComfyUI", lora["read_by"])
        checkpoint = self.inspect(run / "ckpt/step-0000000002")
        self.assertTrue(checkpoint["finite"])
        self.assertEqual(len(checkpoint["names"]), checkpoint["tensors"])
        self.assertRegex(checkpoint["names"][-1], r"^param\.\S+  F32 192 x 4$")
        self.assertEqual((checkpoint["what"], checkpoint["step"], checkpoint["whole"]), ("checkpoint", 2, True))
        file = run / "ckpt/step-0000000002/state.json"
        file.write_bytes(file.read_bytes()[:-1])
        self.expect(BAD_INPUT, ["state.json"], "inspect", file.parent)

    def test_models(self):
        transformer = self.inspect(MODEL / "transformer")
        self.assertEqual(transformer["what"], 'model for plugin "flux2"')
        self.assertEqual(transformer["parameters"], 4688640)
        self.assertEqual(len(transformer["linear_layers"]), 43)
        self.assertEqual(self.inspect(MODEL / "vae")["what"], "autoencoder (VAE) of AutoencoderKLFlux2")
        encoder = self.inspect(MODEL / "text_encoder")
        self.assertEqual(encoder["what"], "text encoder (language model) of Mistral3ForConditionalGeneration")
        self.assertEqual(encoder["tensors"], len(encoder["names"]))

    def test_single_files_of_the_other_layout(self):
        for variant in ("tiny-dev", "tiny-klein"):
            with self.subTest(variant):
                model = self.inspect(BFL / variant / "model-bfl/flux2.safetensors")
                self.assertEqual(model["what"], 'model for plugin "flux2"')
                self.assertIn("transformer_blocks.0.attn.to_q ", " ".join(model["linear_layers"]))

    def test_what_is_no_model(self):
        self.expect(NOT_FOUND, "/nowhere", "inspect", "/nowhere")
        self.expect(BAD_INPUT, "not a safetensors file", "inspect", PICTURES / "fox.png")
        self.assertIn("text_encoder, transformer, vae", self.program("inspect", MODEL).err)
        self.assertNotEqual(self.program("inspect", PICTURES).code, 0)


class Explain(RunCase):
    def test_key_section_and_plugin(self):
        self.expect(0, ["Learning rate", "1e-4"], "explain", "optimizer.lr")
        self.expect(0, ["lr", "schedule"], "explain", "optimizer")
        self.expect(0, ["rank"], "explain", "lora")
        self.expect(0, ["[optimizer]", "[[data]]", "full_checkpointing", "flow_matching"], "explain")
        self.assertIn("1e-4", json.loads(self.expect(0, [], "--json", "explain", "optimizer.lr").out)["text"])

    def test_unknown(self):
        result = self.program("explain", "optimizer.lrr")
        self.assertNotEqual(result.code, 0)
        self.assertIn("optimizer.lr", result.err)


class Sample(RunCase):
    def test_pictures_with_and_without_lora(self):
        run, base, ours = self.folder / "run", self.folder / "base.png", self.folder / "lora.png"
        self.train(run, run__steps=3)
        few = settings(cache__folder=self.cache, sample__size="[64, 64]", sample__steps=2, sample__seeds="[1]")
        self.expect(0, str(base), "sample", SMALL, "--prompt", "a fox", "--output", base, *few)
        report = json.loads(
            self.expect(
                0,
                [],
                "--json",
                "sample",
                SMALL,
                "--prompt",
                "a fox",
                "--output",
                ours,
                "--lora",
                run / "lora/small-3.safetensors",
                *few,
            ).out
        )
        self.assertEqual(report, {"samples": str(ours)})
        self.assertNotEqual(base.read_bytes(), ours.read_bytes())

    def test_pictures_without_a_name_replace_none(self):
        few = settings(cache__folder=self.cache, sample__size="[64, 64]", sample__steps=1, sample__seeds="[1]")
        for expected in ("samples.png", "samples-2.png", "samples-3.png"):
            told = self.expect(0, [], "sample", SMALL, "--prompt", "a fox", *few)
            self.assertEqual(told.out.strip(), expected)
            self.assertTrue((self.folder / expected).is_file())

    def test_nothing_to_draw(self):
        self.expect(USAGE, ["--prompt", "sample.prompts"], "sample", SMALL)

    def test_no_lora(self):
        few = settings(cache__folder=self.cache, sample__steps=1)
        self.expect(
            NOT_FOUND, "nowhere.safetensors", "sample", SMALL, "--prompt", "a", "--lora", "nowhere.safetensors", *few
        )
        self.expect(
            BAD_INPUT,
            "not a LoRA for",
            "sample",
            SMALL,
            "--prompt",
            "a",
            "--lora",
            next((MODEL / "vae").glob("*.safetensors")),
            *few,
        )

    def test_lora_of_another_model(self):
        run = self.folder / "run"
        self.train(run, run__steps=1)
        header, data = read_header(run / "lora/small-1.safetensors")
        renamed = {
            name.replace("single_transformer_blocks.3", "single_transformer_blocks.4"): entry
            for name, entry in header.items()
        }
        write_safetensors(self.folder / "other.safetensors", renamed, data)
        self.expect(
            BAD_INPUT,
            ['no layer "single_transformer_blocks.4.attn.to_out', "did you mean"],
            "sample",
            SMALL,
            "--prompt",
            "a",
            "--lora",
            self.folder / "other.safetensors",
            *settings(cache__folder=self.cache, sample__steps=1),
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
