"""`trainer plan`: what is foretold against what a run reports, and FLUX.2-dev's shapes without its weights."""

import json
import resource
import struct
import unittest

from program import RunCase, ROOT, SMALL, log_lines, settings

DOUBLE, SINGLE, WIDE, HEAD, TEXT, CHANNELS, TIME = 8, 48, 6144, 128, 15360, 128, 256


def processor_time():
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dev_shapes():
    """The 331 tensors of FLUX.2-dev's transformer."""
    d = WIDE
    shapes = {
        "x_embedder": (d, CHANNELS),
        "context_embedder": (d, TEXT),
        "double_stream_modulation_img.linear": (6 * d, d),
        "double_stream_modulation_txt.linear": (6 * d, d),
        "single_stream_modulation.linear": (3 * d, d),
        "norm_out.linear": (2 * d, d),
        "proj_out": (CHANNELS, d),
    }
    for embedder in ("timestep_embedder", "guidance_embedder"):
        shapes[f"time_guidance_embed.{embedder}.linear_1"] = (d, TIME)
        shapes[f"time_guidance_embed.{embedder}.linear_2"] = (d, d)
    for i in range(DOUBLE):
        block = f"transformer_blocks.{i}."
        for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"):
            shapes[block + "attn." + name] = (d, d)
        for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            shapes[block + "attn." + name] = (HEAD,)
        for mlp in ("ff", "ff_context"):
            shapes[block + mlp + ".linear_in"] = (6 * d, d)
            shapes[block + mlp + ".linear_out"] = (d, 3 * d)
    for i in range(SINGLE):
        block = f"single_transformer_blocks.{i}.attn."
        shapes[block + "to_qkv_mlp_proj"] = (9 * d, d)
        shapes[block + "to_out"] = (d, 4 * d)
        for name in ("norm_q", "norm_k"):
            shapes[block + name] = (HEAD,)
    return {name + ".weight": shape for name, shape in shapes.items()}


def write_sparse(path, shapes):
    """A bf16 safetensors file of full length that takes no room on disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2
        for side in shape:
            size *= side
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


class Plan(RunCase):
    def plan(self, recipe, *pairs):
        result = self.expect(0, [], "plan", recipe, *settings(*pairs), "--json")
        return json.loads(result.out)

    def test_a_run_needs_what_was_foretold(self):
        run = self.folder / "run"
        for strategies in ('[]', '["full_checkpointing"]', '["selective_checkpointing", "fp8_weight_only"]'):
            pairs = (f"memory.strategies={strategies}", "run.steps=3", 'sample.prompts=["a fox"]')
            plan = self.plan(SMALL, *pairs)
            self.train(run / strategies, *pairs)
            logged = log_lines(run / strategies)[-1]
            phases = {phase["name"]: phase["device"] for phase in plan["phases"]}
            self.assertEqual(phases["train"], plan["devices"][0]["total"])
            # The host's counter also holds the cached batches and whatever tables the program makes.
            if "fp8" not in strategies:  # packing works on some rows at a time, 2 MB beside a model of 6
                self.assertAlmostEqual(logged["peak_bytes_load"] / phases["load"], 1, delta=0.1)
            self.assertAlmostEqual(logged["peak_bytes"] / phases["train"], 1, delta=0.1)
            self.assertAlmostEqual(logged["peak_bytes_sample"] / phases["sample"], 1, delta=0.1)

    def test_people_get_a_table(self):
        self.expect(0, ["weights", "kept activations", "transient", "phases, at most", "RAM"], "plan", SMALL)

    def test_without_encoders_it_says_what_it_can(self):
        result = self.expect(
            0,
            ["not known", "kept activations"],
            "plan",
            SMALL,
            *settings("text_encoder.path=/nowhere", "text_encoder.tokenizer=/nowhere", "data.0.folder=/nowhere"),
        )
        self.assertIn("/nowhere", result.out)
        self.expect(66, "/nowhere", "plan", SMALL, *settings("model.path=/nowhere"))


class Dev(RunCase):
    """64 GB of weights that take no room, and no GPU."""

    def test_shapes_of_dev_are_planned_within_a_second(self):
        weights = self.folder / "flux2-dev.safetensors"
        self.assertEqual(write_sparse(weights, dev_shapes()), 2 * 32_223_281_152)
        recipe = self.write("dev.toml", f"""
extends = "{ROOT}/recipes/flux2_dev_one_gpu.toml"
[model]
path = "{weights}"
[text_encoder]
path = "/nowhere"
tokenizer = "/nowhere"
[autoencoder]
path = "/nowhere"
[[data]]
folder = "/nowhere"
resolution = [1024]
""")
        seconds = []  # of processor time: a busy machine is not this program's fault
        for _ in range(3):
            begin = processor_time()
            plan = json.loads(self.expect(0, [], "plan", recipe, "--json").out)
            seconds.append(processor_time() - begin)
        device = plan["devices"][0]
        self.assertIn("FLUX.2 dev", plan["model"])
        self.assertGreater(device["total"], 32e9)
        self.assertLess(device["total"], 140e9)
        self.assertEqual(sum(block["count"] for block in plan["blocks"]), DOUBLE + SINGLE)
        print(f"planned in {min(seconds):.2f} s: {device}")
        self.assertLess(min(seconds), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
