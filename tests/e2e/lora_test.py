"""LoRA files from outside: export and back, inspect, samples with them, training that starts from one, files that are
something else."""

import array
import json
import unittest

from program import MODEL, PICTURES, QUICKSTART, SMALL, RunCase, log_lines, read_header, settings, write_safetensors

BAD_INPUT, USAGE, BAD_RECIPE = 65, 2, 78


class LoraCase(RunCase):
    def trained(self, steps=3, **more):
        run = self.folder / "first"
        self.train(run, run__steps=steps, **more)
        return run / f"lora/small-{steps}.safetensors"

    def export(self, lora, kind, name, *options):
        output = self.folder / f"{name}.safetensors"
        self.expect(0, [], "export", lora, "--format", kind, "--output", output, *options)
        return output

    def inspect(self, path):
        self.expect(0, [], "inspect", path)
        return json.loads(self.expect(0, [], "--json", "inspect", path).out)

    def refused(self, lora, *texts, code=BAD_INPUT):
        for arguments in (
            ["export", lora, "--format", "kohya", "--output", self.folder / "no.safetensors"],
            ["sample", QUICKSTART, "--lora", lora, "--prompt", "a fox", *settings(sample__steps=1)],
            self.arguments(self.folder / "no", f'adapter.path="{lora}"', 'adapter.init="file"'),
        ):
            self.expect(code, texts, *arguments)
        self.assertFalse((self.folder / "no.safetensors").exists())


class Export(LoraCase):
    def test_there_and_back_is_the_same_file(self):
        lora = self.trained()
        for kind in ("comfyui", "kohya", "diffusers"):
            other = self.export(lora, kind, kind)
            self.assertEqual(self.inspect(other)["format"], kind)
            self.assertEqual(self.export(other, "diffusers", f"from-{kind}").read_bytes(), lora.read_bytes(), kind)
        header, _ = read_header(self.folder / "kohya.safetensors")
        self.assertIn("lora_unet_double_blocks_0_img_attn_qkv.alpha", header)

    def test_says_what_it_did_and_replaces_nothing_unasked(self):
        lora = self.trained()
        result = self.expect(0, ["musubi-tuner"], "export", lora, "--format", "kohya")
        beside = lora.with_name("small-3-kohya.safetensors")
        self.assertEqual(result.out.strip(), str(beside))
        self.expect(USAGE, ["exists", "--force"], "export", lora, "--format", "kohya")
        self.expect(0, [], "export", lora, "--format", "kohya", "--force")
        self.expect(USAGE, ['no format "koya"', 'did you mean "kohya"', "diffusers, comfyui, kohya"], "export", lora,
                    "--format", "koya")  # fmt: skip
        self.expect(USAGE, ["--format"], "export", lora)

    def test_values_that_are_not_finite_go_nowhere(self):
        lora = self.trained()
        header, data = read_header(lora)
        name = next(name for name in header if name.endswith("lora_B.weight"))
        begin = header[name]["data_offsets"][0]
        bad = self.folder / "bad.safetensors"
        write_safetensors(bad, header, data[:begin] + array.array("f", [float("nan")]).tobytes() + data[begin + 4 :])
        self.refused(bad, name, "NaN")
        report = self.inspect(bad)
        self.assertEqual((report["what"], report["finite"], report["not_finite"]), ("damaged or unsupported LoRA for FLUX.2", False, [name]))

    def test_unmatched_keys_are_named(self):
        lora = self.trained()
        header, data = read_header(lora)
        odd = {name.replace("attn.to_q.", "attn.to_qq."): entry for name, entry in header.items()}
        write_safetensors(self.folder / "odd.safetensors", odd, data)
        self.refused(self.folder / "odd.safetensors", "attn.to_qq.lora_A.weight", 'did you mean "')
        more = {name.replace("blocks.1.", "blocks.7."): entry for name, entry in header.items()}
        write_safetensors(self.folder / "more.safetensors", more, data)
        self.expect(BAD_INPUT, ['no layer "transformer_blocks.7.'], "sample", QUICKSTART, "--prompt", "a fox", "--lora",
                    self.folder / "more.safetensors")  # fmt: skip


    def test_other_adapters_are_refused_before_anything_is_encoded(self):
        shapes = {"transformer.transformer_blocks.0.attn.to_q.lokr_w1": [4], "transformer.x_embedder.lokr_w2": [4]}
        header, data = {}, b""
        for name, shape in shapes.items():
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 16]}
            data += bytes(16)
        other = self.folder / "lokr.safetensors"
        write_safetensors(other, header, data)
        arguments = ["sample", QUICKSTART, "--prompt", "a fox", "--lora", other]
        result = self.expect(BAD_INPUT, ["LoKr", "only LoRA is read", "sample.prompts"], *arguments,
                             *settings(cache__folder=self.folder / "cache"))  # fmt: skip
        self.assertNotIn("captions", result.err)
        self.assertFalse((self.folder / "cache").exists())


class StartFrom(LoraCase):
    def test_a_file_that_does_not_fit_is_told_before_anything_is_encoded(self):
        lora = self.trained()
        header, data = read_header(lora)
        odd = {name.replace("attn.to_q.", "attn.to_qq."): entry for name, entry in header.items()}
        write_safetensors(self.folder / "odd.safetensors", odd, data)
        result = self.start_from(self.folder / "odd.safetensors", self.folder / "run", code=BAD_INPUT,
                                 texts="attn.to_qq", cache__folder=self.folder / "cache")  # fmt: skip
        self.assertNotIn("captions", result.err)

    def recipe(self):
        """small.toml without rank and alpha, so that the file's are taken."""
        base, recipe = self.folder / "base.toml", self.folder / "small.toml"
        text = "".join(
            line for line in QUICKSTART.read_text().splitlines(True) if not line.startswith(("rank", "init"))
        )
        base.write_text(text.replace('"quickstart/', f'"{QUICKSTART.parent}/quickstart/'))
        text = SMALL.read_text().replace("rank = 4\nalpha = 4\n", "")
        recipe.write_text(text.replace("../../recipes/quickstart.toml", str(base)))
        return recipe

    def start_from(self, lora, run, *pairs, **more):
        return self.train(
            run, f'adapter.path="{lora}"', 'adapter.init="file"', *pairs, recipe=self.recipe(), **more
        )

    def test_every_format_goes_on_where_the_file_stands(self):
        lora = self.trained(steps=6, optimizer__lr=0.01)
        runs = {}
        for kind in ("diffusers", "comfyui", "kohya"):
            run = self.folder / kind
            result = self.start_from(self.export(lora, kind, f"{kind}-file"), run, run__steps=2)
            self.assertIn("LoRA from a file, rank 4", result.err)
            runs[kind] = [line["loss"] for line in log_lines(run)]
        self.assertEqual(runs["diffusers"], runs["comfyui"])
        self.assertEqual(runs["diffusers"], runs["kohya"])
        fresh = self.folder / "fresh"
        self.train(fresh, run__steps=2)
        self.assertNotEqual(log_lines(fresh)[0]["loss"], runs["diffusers"][0])

    def test_without_training_it_is_the_file(self):
        lora = self.trained()
        run = self.folder / "still"
        self.start_from(lora, run, run__steps=1, optimizer__lr=1e-30)
        self.assertEqual(read_header(run / "lora/small-1.safetensors")[1], read_header(lora)[1])

    def test_resume_equals_one_run(self):
        lora = self.trained()
        whole, halves = self.folder / "whole", self.folder / "halves"
        self.start_from(lora, whole, run__steps=4)
        self.start_from(lora, halves, run__steps=2)
        self.start_from(lora, halves, run__steps=4)
        last = "lora/small-4.safetensors"
        self.assertEqual((whole / last).read_bytes(), (halves / last).read_bytes())
        other = self.export(lora, "kohya", "other")
        self.start_from(other, halves, run__steps=6, code=BAD_RECIPE, texts=["values of the LoRA", "put them back"])

    def test_the_scale_beside_a_file_of_peft_is_compared_too(self):
        """Its alpha stands in adapter_config.json: another one is another LoRA."""
        header, data = read_header(self.trained())
        del header["__metadata__"]
        lora = self.folder / "peft/adapter_model.safetensors"
        lora.parent.mkdir()
        peft = {name.replace("transformer.", "base_model.model.", 1): entry for name, entry in header.items()}
        write_safetensors(lora, peft, data)
        config = lora.with_name("adapter_config.json")
        config.write_text(json.dumps({"r": 4, "lora_alpha": 4}))
        run = self.folder / "run"
        self.start_from(lora, run, run__steps=2)
        config.write_text(json.dumps({"r": 4, "lora_alpha": 40}))
        self.start_from(lora, run, run__steps=4, code=BAD_RECIPE, texts=[f"beside the LoRA {lora} are not those"])
        config.write_text(json.dumps({"r": 4, "lora_alpha": 4}))
        self.start_from(lora, run, run__steps=4, texts="going on after step 2")

    def test_conflicts_are_told(self):
        lora = self.trained()
        run = self.folder / "conflict"
        self.start_from(lora, run, "adapter.rank=8", code=BAD_RECIPE, texts=["adapter.rank: the recipe says 8", "has 4"])
        self.start_from(lora, run, "adapter.alpha=2", code=BAD_RECIPE, texts=["adapter.alpha: the recipe says 2", "has 4"])
        self.start_from(lora, run, 'adapter.targets="all"', code=BAD_RECIPE, texts=["adapter.targets", "no matrices for"])
        narrower = 'adapter.targets=["attn.to_q"]'
        texts = ["adapter.targets: ", "layers in the file", "are no target", '"single_transformer_blocks.0.attn.to_out", ', " more; leave targets out"]
        self.start_from(lora, run, narrower, code=BAD_RECIPE, texts=texts)
        self.expect(BAD_RECIPE, texts, "check", self.recipe(),
                    *settings(f'adapter.path="{lora}"', 'adapter.init="file"', narrower, cache__folder=self.cache,
                              run__output=run))  # fmt: skip
        self.train(run, 'adapter.init="file"', code=BAD_RECIPE, texts=["needs adapter.path"])
        self.train(run, f'adapter.path="{lora}"', code=BAD_RECIPE, texts=['only used with adapter.init = "file"'])


class OtherFiles(LoraCase):
    def test_what_a_file_is_that_is_no_safetensors(self):
        weights = next((MODEL / "transformer").glob("*.safetensors")).read_bytes()
        for name, content, text in (
            ("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n", "Git LFS pointer"),
            ("html", b"<!DOCTYPE html><html><body>Log in</body></html>", "web page"),
            ("ckpt", b"PK\x03\x04" + bytes(100), "PyTorch checkpoint"),
            ("pickle", b"\x80\x02}q\x00X\x05\x00\x00\x00stateq\x01" + bytes(50), "pickle"),
            ("gguf", b"GGUF\x03\x00\x00\x00" + bytes(100), "GGUF"),
            ("json", b'{"weight_map": {}, "metadata": {}}', "JSON"),
            ("empty", b"", "it has 0 bytes"),
            ("short", weights[: len(weights) // 2], "interrupted download"),
            ("png", (PICTURES / "fox.png").read_bytes(), "not a safetensors file"),
        ):
            with self.subTest(name):
                file = self.folder / f"{name}.safetensors"
                file.write_bytes(content)
                self.expect(BAD_INPUT, [text, str(file)], "inspect", file)
                self.expect(BAD_INPUT, [text, str(file)], "export", file, "--format", "kohya")

    def test_nothing_in_a_file_commands_the_terminal(self):
        evil = "\x1b[2J\x1b]0;title\x07 \u009b31m \u202e\nwhat          a good LoRA"
        file = self.folder / "evil.safetensors"
        names = {f"layer\u009b{number}.weight": {"dtype": "F32", "shape": [1], "data_offsets": [4 * number, 4 * number + 4]}
                 for number in range(6)}  # fmt: skip
        write_safetensors(file, {"__metadata__": {"k" + evil: evil}, **names}, bytes(24))
        for options in ([], ["--json"]):
            text = self.expect(0, "layer", *options, "inspect", file).text
            self.assertEqual([c for c in text if c in "\u009b\u202e\x7f" or (c < " " and c != "\n")], [])
            self.assertEqual([line for line in text.splitlines() if line.startswith("what ")][1:], [])

    def test_cache_entries_and_checkpoints(self):
        self.trained()
        entry = next(self.cache.rglob("latents/*/*.safetensors"))
        self.assertEqual(self.inspect(entry)["what"], "cache entry: latents")
        checkpoint = self.folder / "first/ckpt/step-0000000003"
        self.assertEqual(self.inspect(checkpoint)["what"], "checkpoint")
        self.assertIn("part of a checkpoint", self.inspect(checkpoint / "rank-00000.safetensors")["what"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
