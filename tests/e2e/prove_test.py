"""`trainer prove`, `trainer plugins check` and what `run` says of plugins that nothing proved."""

import json
import os
import pathlib
import random
import re
import shutil
import struct
import unittest
import unittest.mock

from program import MODEL, SMALL, RunCase, log_lines, read_header, settings, write_safetensors

REJECTED, BAD_INPUT, BAD_RECIPE = 3, 65, 78
STRATEGIES = pathlib.Path(os.environ["TRAINER_TEST_TOY_STRATEGIES"])
# One size of pictures and few tokens, so that a proof takes a second.
QUICK = settings("text_encoder.max_tokens=24", train__batch_size=2, train__micro_batch_size=1)


class ProveCase(RunCase):
    def plugin(self, name):
        """A folder with one toy strategy."""
        folder = self.folder / "plugins"
        folder.mkdir(exist_ok=True)
        for ending in (".so", ".plugin.toml"):
            shutil.copy(STRATEGIES / (name + ending), folder)
        return folder

    @property
    def quick(self):
        return [*QUICK, *settings(run__output=self.folder / "proven")]

    def config(self):
        return {"XDG_CONFIG_HOME": str(self.folder / "config")}


class Prove(ProveCase):
    def test_recipe_is_proven(self):
        out = self.expect(0, ["PROVEN", "bit-equal: 3 losses", "compared with", "the plain run"], "prove", SMALL, *self.quick,
                          *settings('memory.strategies=["full_checkpointing"]')).out
        self.assertIn("recompute of \"double\"", out)

    def test_packing_is_shown_and_the_rest_equals_it(self):
        answer = self.expect(0, [], "--json", "prove", SMALL, *self.quick,
                             *settings('memory.strategies=["fp8_weight_only", "selective_checkpointing"]')).out
        proof = json.loads(answer)
        self.assertTrue(proof["proven"])
        both, claimed, packed = proof["comparisons"]
        self.assertEqual(both["against"], "fp8_weight_only alone")
        self.assertEqual(claimed["against"], "its weights held densely")
        for line in (both, claimed):
            self.assertTrue(line["result"].startswith("bit-equal"), line)
        self.assertIn("dense", packed["result"])
        apart = packed["from_dense_weights"]
        self.assertEqual(apart["tolerance"], 0.1)
        self.assertTrue(0 < apart["loss"] < 0.1 and 0 < apart["gradients"] < 0.1, apart)
        self.assertGreater(both["peak_bytes"], 100_000)
        self.assertRegex(both["heavy_operations"], r"FLOP, \d+ of \d+ run again")

    def test_nothing_is_proven_where_nothing_is_done(self):
        left_out = 'memory.selective_checkpointing.blocks=["single.1"]'
        for texts, pairs in (
            (["nothing to prove", "memory.strategies is empty"], ["memory.strategies=[]"]),
            (["recompute none of the blocks", "single.0, single.3"],
             ['memory.strategies=["selective_checkpointing"]', left_out]),
        ):
            self.expect(BAD_RECIPE, texts, "prove", SMALL, *self.quick, *settings(*pairs))
        self.assertFalse((self.folder / "proven" / "proof.json").exists())

    def test_neither_data_nor_encoders_are_needed(self):
        self.expect(0, "PROVEN", "prove", SMALL, *self.quick, *settings(
            'memory.strategies=["full_checkpointing"]', text_encoder__path=self.folder / "none",
            text_encoder__tokenizer=self.folder / "none", autoencoder__path=self.folder / "none"))

    def test_only_blocks_that_take_part_are_read(self):
        """A file whose other blocks are NaN proves as well; without a single number it does with random ones."""
        source = MODEL / "transformer"
        header, data = read_header(next(source.glob("*.safetensors")))
        folder = self.folder / "transformer"
        shutil.copytree(source, folder)
        file = next(folder.glob("*.safetensors"))
        blocks = sorted({int(name.split(".")[1]) for name in header if name.startswith("single_transformer_blocks.")})
        self.assertGreater(len(blocks), 2)
        damaged = bytearray(data)
        for name, tensor in header.items():
            if name.startswith("single_transformer_blocks.") and int(name.split(".")[1]) not in (blocks[0], blocks[-1]):
                begin, end = tensor["data_offsets"]
                damaged[begin:end] = b"\xff" * (end - begin)
        write_safetensors(file, header, bytes(damaged))
        arguments = ["prove", SMALL, *self.quick, *settings('memory.strategies=["fp8_weight_only"]', model__path=folder)]
        self.expect(0, f"single.{blocks[0]}, single.{blocks[-1]}", *arguments)
        write_safetensors(file, header, bytes(len(data)))
        self.expect(BAD_INPUT, ["every gradient", "--random-weights"], *arguments)
        self.expect(0, ["PROVEN", "random weights"], *arguments, "--random-weights")

    def test_wrong_strategies_are_named(self):
        for name, beside in (("wrong_format", ""), ("rounding_store", '"full_checkpointing", '), ("stale_residency", '"full_checkpointing", '), ("counting_policy", "")):
            with self.subTest(name):
                result = self.expect(
                    REJECTED, ["NOT PROVEN", f'plugin "{name}"'], "--plugin-dir", self.plugin(name), "prove", SMALL,
                    *self.quick, *settings(f'memory.strategies=[{beside}"{name}"]', model__dtype='"fp32"'), env=self.config())
                self.assertFalse((self.folder / "config" / "trainer").exists(), result)


    def test_other_weights_are_too_far(self):
        result = self.expect(REJECTED, ["NOT PROVEN", "MORE THAN the declared 0.1", "bit-equal: 3 losses"], "--plugin-dir",
                             self.plugin("coarse_format"), "prove", SMALL, *self.quick,
                             *settings('memory.strategies=["coarse_format"]'), env=self.config())
        self.assertFalse((self.folder / "config" / "trainer").exists(), result)

    def test_a_file_of_packed_weights_has_nothing_dense(self):
        """The proof does not end with the comparison that cannot be made."""
        source = MODEL / "transformer"
        header, data = read_header(next(source.glob("*.safetensors")))
        folder = self.folder / "transformer"
        shutil.copytree(source, folder)
        entries, packed = {}, bytearray()

        def add(name, dtype, shape, content):
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(packed), len(packed) + len(content)]}
            packed.extend(content)

        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            if name.endswith("attn.to_q.weight"):
                count = tensor["shape"][0] * tensor["shape"][1]
                add(name, "F8_E4M3", tensor["shape"], bytes(random.Random(1).choices(range(0x60), k=count)))
                add(name.removesuffix("weight") + "weight_scale", "F32", [], struct.pack("<f", 0.01))
            else:
                add(name, tensor["dtype"], tensor["shape"], data[begin:end])
        write_safetensors(next(folder.glob("*.safetensors")), entries, bytes(packed))
        self.expect(0, ["PROVEN", "NOT COMPARED: the file holds packed weights", "bit-equal: 3 losses"], "prove", SMALL,
                    *self.quick, *settings('memory.strategies=["fp8_weight_only"]', model__path=folder))

    def test_stored_with_the_run(self):
        output = self.folder / "run"
        chosen = ['memory.strategies=["full_checkpointing"]', "text_encoder.max_tokens=24"]
        sizes = {"train__batch_size": 2, "train__micro_batch_size": 1}
        self.train(output, *chosen, **{**sizes, "run__steps": 1})
        self.assertEqual(json.loads((output / "run.json").read_text())["proof"], {"found": "none"})
        self.expect(0, ["PROVEN", "proof.json"], "prove", SMALL, *settings(*chosen, run__output=output, **sizes))
        proof = json.loads((output / "proof.json").read_text())
        self.assertEqual((proof["proven"], proof["verdict"], proof["subject"]["device"]), (True, "bit-equal", "cpu"))
        self.assertEqual(len(proof["subject"]["recipe"]), 32)

        def found(*pairs, **more):
            self.train(output, *pairs, **{**sizes, **more})
            return json.loads((output / "run.json").read_text())["proof"]

        matching = {"found": "matching", "proven": True, "verdict": "bit-equal"}
        self.assertEqual(found(*chosen, run__steps=2), matching)
        other = found("memory.strategies=[]", "text_encoder.max_tokens=24", run__steps=3)
        self.assertEqual((other["found"], other["differs_in"]), ("other", ["recipe"]))
        (output / "proof.json").write_text("{")
        self.assertEqual(found(*chosen, run__steps=3), {"found": "none"})

    def test_a_budget_is_proven(self):
        result = self.expect(0, ["plan for memory.budget", "PROVEN", "bit-equal: 3 losses"], "prove", SMALL, *self.quick,
                             "--budget", self.smallest())
        self.assertRegex(result.out, r"recompute of|fp8_weight_only")

    def test_the_plan_of_the_recipe_of_now_is_proven(self):
        """A run with the same budget but other sizes has a plan of its own, which says nothing of this recipe."""
        output = self.folder / "run"
        self.train(output, options=["--budget", "40MB"], run__steps=1)
        stored = json.loads((output / "plan.json").read_text())
        self.expect(0, [f"the plan of the run in {output} is proven"], "prove", SMALL,
                    *settings(run__output=output), "--budget", "40MB")
        wide = settings(run__output=output, train__batch_size=8, train__micro_batch_size=8)
        planned = self.expect(0, "plan for memory.budget", "plan", SMALL, *wide, "--budget", "40MB").out
        result = self.expect(0, [f"the run in {output} had another plan"], "prove", SMALL, *wide, "--budget", "40MB")

        def ways(text):
            return re.findall(r"(?m)^  ((?:double|single)\.\d.*?)  +(\S.*?)  +[\d.]+ [kM]?B", text)

        self.assertEqual(ways(result.out), ways(planned), result)
        self.assertTrue(ways(planned), planned)
        self.assertEqual(json.loads((output / "plan.json").read_text()), stored)
        (output / "plan.json").write_text(json.dumps({**stored, "budget": 1e300}))
        texts = [str(output / "plan.json"), "1e+300", "proven is the plan that this recipe gets now", "PROVEN"]
        self.expect(0, texts, "prove", SMALL, *settings(run__output=output), "--budget", "40MB")

    def test_what_packs_the_weights_is_the_checkpoints(self):
        """Whatever plan.json says, or whether it is there: as a run that goes on."""
        output = self.folder / "run"
        refused = self.train(output, code=BAD_RECIPE, options=["--budget", "5MB"], run__steps=1)
        smallest = re.search(r"the smallest budget that works for this recipe is (\d+MB)", refused.err)[1]
        self.train(output, options=["--budget", smallest], run__steps=1)
        file = output / "plan.json"
        stored = json.loads(file.read_text())
        self.assertNotEqual(stored["format"], "none")
        for text in (json.dumps({**stored, "format": "none"}), "{", None):
            with self.subTest(text):
                file.unlink() if text is None else file.write_text(text)
                texts = [f"weights packed by {stored['format']}", "PROVEN"]
                self.expect(0, texts, "prove", SMALL, *settings(run__output=output), "--budget", "2GB")

    def smallest(self):
        result = self.expect(78, "the smallest budget", "prove", SMALL, *self.quick, "--budget", "5MB")
        return re.search(r"the smallest budget that works for this recipe is (\d+MB)", result.err)[1]


class Attestation(ProveCase):
    def test_a_plan_names_its_strangers(self):
        """A stranger's candidate that the planner chose is warned of, recorded and proven as one that a recipe names."""
        patch = unittest.mock.patch.dict(os.environ, self.config())
        patch.start()
        self.addCleanup(patch.stop)
        folder = ["--plugin-dir", self.plugin("honest_policy")]
        output = self.folder / "run"
        self.train(self.folder / "roomy", options=[*folder, "--budget", "2GB"], run__steps=1)
        record = json.loads((self.folder / "roomy" / "run.json").read_text())
        self.assertEqual(record["strangers"], [], "nothing is recomputed")
        options = [*folder, "--budget", self.budget_for("honest_policy", folder)]
        result = self.train(output, options=options, run__steps=2)
        record = json.loads((output / "run.json").read_text())
        self.assertIn("not proven to train what the plain run trains: memory honest_policy", result.err)
        self.assertIn("memory honest_policy 0.1.0", record["strangers"][0])
        self.assertFalse(record["attested"])
        self.expect(0, ["PROVEN", "the plan of the run", "attested in", "honest_policy"], *options[:2], "prove", SMALL,
                    *settings(run__output=output), *options[2:])
        result = self.train(output, options=options, run__steps=3)
        record = json.loads((output / "run.json").read_text())
        self.assertNotIn("not proven", result.err)
        self.assertEqual((record["attested"], record["proof"]["found"]), (True, "matching"))

    def budget_for(self, candidate, options):
        """One at which the planner chooses it."""
        for megabytes in range(22, 40):
            budget = ["--budget", f"{megabytes}MB"]
            plan = self.program("plan", SMALL, *options, *budget, *settings(run__output=self.folder / "run"))
            if candidate in plan.out:
                return budget[1]
        self.fail(f"no budget needs {candidate}")

    def test_run_warns_until_it_is_proven(self):
        folder = self.plugin("honest_store")
        recipe = ['memory.strategies=["full_checkpointing", "honest_store"]']
        options = ["--plugin-dir", folder]

        def run(name):
            output = self.folder / name
            result = self.train(output, *recipe, options=options)
            return result, json.loads((output / "run.json").read_text()), output

        patch = unittest.mock.patch.dict(os.environ, self.config())
        patch.start()
        self.addCleanup(patch.stop)
        result, record, output = run("before")
        self.assertEqual(result.err.count("not proven"), 1, result)
        self.assertIn("trainer plugins check", result.err)
        self.assertFalse(record["attested"])
        self.assertIn("memory honest_store 0.1.0", record["strangers"][0])
        self.assertEqual(len(log_lines(output)), 6)
        check = ["plugins", "check", folder / "honest_store.plugin.toml"]
        out = self.expect(0, ["PROVEN", "differ", "noted in"], *check).out
        cells, refused = (int(re.search(text, out)[1]) for text in (r"(\d+) cells:", r"(\d+) refused by declaration"))
        self.assertRegex(out, r"\n  \d+ refused: memory\.strategies: .* both choose what is recomputed")
        self.assertNotIn("| refused", out)
        full = self.expect(0, [], *check, "--all").out
        self.assertEqual((full.count("| refused"), full.count("\n| conformance")), (refused, cells))
        result, record, _ = run("after")
        self.assertNotIn("not proven", result.err)
        self.assertTrue(record["attested"])

    def test_a_changed_manifest_has_to_be_proven_again(self):
        """Its defaults and tolerances are part of what was proven."""
        folder = self.plugin("honest_store")
        manifest = folder / "honest_store.plugin.toml"
        self.expect(0, ["PROVEN", "noted in"], "plugins", "check", manifest, env=self.config())
        arguments = ["--plugin-dir", folder, *self.arguments(
            self.folder / "run", 'memory.strategies=["full_checkpointing", "honest_store"]', run__steps=1)]
        self.assertNotIn("not proven", self.expect(0, [], *arguments, env=self.config()).err)
        manifest.write_text(manifest.read_text() + "\n[tolerance]\nrounding = 0.01\n")
        self.assertIn("not proven", self.expect(0, [], *arguments, env=self.config()).err)

    def test_several_strangers_are_attested_together(self):
        """Two that were each proven say nothing of both, and both nothing of each."""
        folder = self.plugin("honest_store")
        self.plugin("honest_policy")
        both = 'memory.strategies=["honest_policy", "honest_store"]'

        def warned(strategies):
            result = self.expect(0, [], "--plugin-dir", folder, *self.arguments(
                self.folder / "run", strategies, run__steps=1), env=self.config())
            shutil.rmtree(self.folder / "run")
            return "not proven" in result.err

        for name in ("honest_policy", "honest_store"):
            self.expect(0, ["PROVEN", "noted in"], "plugins", "check", folder / f"{name}.plugin.toml", env=self.config())
        self.assertTrue(warned(both))
        shutil.rmtree(self.folder / "config")
        self.expect(0, ["PROVEN", "attested in"], "--plugin-dir", folder, "prove", SMALL, *self.quick, *settings(both),
                    env=self.config())
        self.assertFalse(warned(both))
        self.assertFalse(warned('memory.strategies=["honest_store", "honest_policy"]'))
        self.assertTrue(warned('memory.strategies=["honest_policy"]'))

    def test_a_proof_of_one_recipe_does_not_overrule_a_failed_check(self):
        """A store that fails in fp32 only is found by the check; the proof of a recipe in bf16 cannot see it."""
        folder = self.plugin("failing_store")
        check = ["plugins", "check", folder / "failing_store.plugin.toml"]
        recipe = settings('memory.strategies=["full_checkpointing", "failing_store"]', model__dtype='"bf16"')
        prove = ["--plugin-dir", folder, "prove", SMALL, *self.quick, *recipe]
        self.expect(0, ["PROVEN", "attested in"], *prove, env=self.config())
        run = ["--plugin-dir", folder, *self.arguments(self.folder / "run", run__steps=1), *recipe]
        self.assertNotIn("found wrong", self.expect(0, [], *run, env=self.config()).err)
        self.expect(REJECTED, "NOT PROVEN", *check, env=self.config())
        out = self.expect(0, ["PROVEN", "not attested: `trainer plugins check` found wrong: memory failing_store"], *prove,
                          env=self.config()).out
        self.assertNotIn("attested in", out)
        self.assertIn("found wrong: memory failing_store", self.expect(0, [], *run, env=self.config()).err)
        self.assertFalse(json.loads((self.folder / "run/run.json").read_text())["attested"])

    def test_a_strategy_that_fails_in_a_step_is_named(self):
        self.expect(REJECTED, 'plugin "failing_store", take: the store is gone', "--plugin-dir", self.plugin("failing_store"),
                    *self.arguments(self.folder / "run", 'memory.strategies=["full_checkpointing", "failing_store"]',
                                    model__dtype='"fp32"'))

    def test_own_plugins_need_no_attestation(self):
        output = self.folder / "run"
        result = self.train(output, 'memory.strategies=["full_checkpointing"]')
        self.assertNotIn("not proven", result.err)
        record = json.loads((output / "run.json").read_text())
        self.assertEqual((record["strangers"], record["attested"]), ([], True))

    def test_a_wrong_plugin_is_refused_an_attestation(self):
        folder = self.plugin("rounding_store")
        result = self.expect(
            REJECTED, ["NOT PROVEN: memory \"rounding_store\"", 'plugin "rounding_store", take'], "plugins", "check",
            folder / "rounding_store.plugin.toml", env=self.config())
        notes = list((self.folder / "config" / "trainer" / "attestations").iterdir())
        self.assertEqual([note.name.endswith(".failed.json") for note in notes], [True], result)


if __name__ == "__main__":
    unittest.main()
