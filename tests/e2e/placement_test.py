"""Splits from outside, on simulated devices: the same bytes as one device, samples, a resume under another placement,
and a limit of memory that one device does not keep and two do."""

import json
import os
import pathlib
import re
import unittest

from program import QUICKSTART, SMALL, RunCase, log_lines, read_header, settings

OUT_OF_MEMORY, BAD_RECIPE, UNAVAILABLE, NON_FINITE = 80, 78, 69, 76
ENCODERS = ('text_encoder.device="cpu"', 'autoencoder.device="cpu"')
ONE = 'placement.devices=["sim:0"]'
TWO = ('placement.kind="split"', 'placement.devices=["sim:0", "sim:1"]')
THREE = ('placement.kind="split"', 'placement.devices=["sim:0", "sim:2", "sim:1"]')
MICRO = {"train__batch_size": 4, "train__micro_batch_size": 1, "train__ema__decay": 0.9, "run__steps": 6}


class Split(RunCase):
    def simulated(self, run, *placement, code=0, texts=(), **more):
        arguments = self.arguments(run, *placement, *ENCODERS, **{**MICRO, **more})
        return self.expect(code, texts, *arguments)

    def result(self, run, step=6):
        lora = next(run.glob(f"lora/*-{step}.safetensors"))
        state = run / f"ckpt/step-{step:010}/rank-00000.safetensors"
        return lora.read_bytes(), state.read_bytes(), [line["loss"] for line in log_lines(run)]

    def test_one_two_and_three_devices_give_the_bytes_of_the_cpu(self):
        self.train(self.folder / "cpu", **MICRO)
        expected = self.result(self.folder / "cpu")
        for name, placement in {"one": [ONE], "two": TWO, "three": THREE}.items():
            for memory in ("[]", '["full_checkpointing"]'):
                run = self.folder / f"{name}-{len(memory)}"
                self.simulated(run, *placement, f"memory.strategies={memory}")
                self.assertEqual(self.result(run), expected, f"{name} {memory}")
        self.assert_bytes_of_each_device()

    def assert_bytes_of_each_device(self):
        """Of the two devices each has its own numbers, and recomputation keeps less on both."""
        plain, recomputed = (log_lines(self.folder / f"two-{length}")[-1]["bytes"] for length in (2, 22))
        self.assertEqual([list(plain), list(recomputed)], [["sim:0", "sim:1"]] * 2)
        for device, use in plain.items():
            self.assertTrue(0 < recomputed[device]["kept"] < use["kept"] < use["step"] <= use["later_steps"], use)
            self.assertGreater(use["load"], 0)
        self.assertNotEqual(plain["sim:0"]["step"], plain["sim:1"]["step"])

    def test_each_device_needs_what_was_foretold_for_it(self):
        for name in ("[]", '["full_checkpointing"]'):
            chosen = (*TWO, *ENCODERS, f"memory.strategies={name}")
            told = self.expect(0, [], "plan", SMALL, *settings(*chosen, **MICRO), "--json")
            run = self.folder / f"run-{len(name)}"
            self.simulated(run, *TWO, f"memory.strategies={name}")
            logged = log_lines(run)[-1]["bytes"]
            for device in json.loads(told.out)["devices"]:
                use = logged[device["device"]]
                print(name, device["device"], use["later_steps"], device["total"])
                self.assertAlmostEqual(use["later_steps"] / device["total"], 1, delta=0.1)

    def test_a_checkpoint_goes_on_under_another_placement(self):
        self.train(self.folder / "cpu", **MICRO)
        run = self.folder / "run"
        self.simulated(run, *TWO, checkpoint__every=2, checkpoint__keep=0)
        later = self.folder / "later"
        for place, step in ((THREE, 2), ([ONE], 4)):
            self.expect(
                0,
                f"going on after step {step}",
                *self.arguments(later, *place, **MICRO),
                "--resume",
                run / f"ckpt/step-{step:010}",
            )
            self.assertEqual(self.result(later)[:2], self.result(self.folder / "cpu")[:2])
            later = self.folder / f"later-{step}"

    def test_the_plugin_is_proven_on_two_devices_and_never_on_one(self):
        manifest = pathlib.Path(os.environ["TRAINER_BUILD"]) / "strategies/placement/split/split.plugin.toml"
        check = ["plugins", "check", manifest]
        self.expect(UNAVAILABLE, "needs two devices to be proven", *check)
        self.expect(UNAVAILABLE, "not two devices of one kind", *check, "--device", "cpu", "--device", "cpu")
        self.expect(0, ["PROVEN", "12 cells: 12 bit-equal"], *check, "--device", "sim:0", "--device", "sim:1")
        single = str(manifest).replace("split", "single")
        self.expect(3, ["NOT PROVEN", "takes one device"], "plugins", "check", single, "--device", "sim:0",
                    "--device", "sim:1")

    def test_samples_of_a_split_model(self):
        pictures = {"sample__prompts": '["a fox"]', "sample__steps": 2, "run__steps": 2}
        self.train(self.folder / "cpu", **{**MICRO, **pictures})
        self.simulated(self.folder / "split", *TWO, **pictures)
        for name in ("small-0.png", "small-2.png"):
            self.assertEqual(
                (self.folder / "split/samples" / name).read_bytes(), (self.folder / "cpu/samples" / name).read_bytes()
            )
        lora = next((self.folder / "split").glob("lora/*-2.safetensors"))
        for name, more in {"a": (), "b": TWO}.items():
            self.expect(
                0,
                f"{name}.png",
                "sample",
                QUICKSTART,
                *settings(*more, cache__folder=self.cache, sample__steps=2),
                "--lora",
                lora,
                "--prompt",
                "a fox",
                "--output",
                self.folder / f"{name}.png",
            )
        self.assertEqual((self.folder / "a.png").read_bytes(), (self.folder / "b.png").read_bytes())

    def test_two_devices_hold_what_one_does_not(self):
        limited = f'placement.simulated=["{LIMIT}", "{LIMIT}"]'
        refused = self.simulated(self.folder / "one", ONE, limited, code=OUT_OF_MEMORY)
        self.assertIn("sim out of memory. Tried to allocate", refused.err)
        self.assertIn("Less memory", refused.err)
        self.simulated(self.folder / "two", *TWO, limited)

    def test_a_budget_is_kept_on_every_device(self):
        """By devices that have not a byte more, and nothing that is learned changes."""
        self.train(self.folder / "cpu", **MICRO)
        for budget in (16, 17):
            run = self.folder / f"run-{budget}"
            limited = f'placement.simulated=["{budget}MB", "{budget}MB"]'
            arguments = self.arguments(run, *TWO, limited, *ENCODERS, **MICRO)
            told = self.expect(0, ["weights as they are"], *arguments, "--budget", f"{budget}MB")
            self.assertRegex(told.err, r"1\.(0[1-9]|1\d) x the time without recomputation")
            self.assertEqual(self.result(run), self.result(self.folder / "cpu"))
        self.expect(BAD_RECIPE, "memory.budget: 2MB is too small", *arguments, "--budget", "2MB")

    def test_a_value_that_is_not_finite_is_found_in_the_same_place(self):
        extreme = {"optimizer__lr": 1000, "adapter__alpha": 1e38, "train__max_grad_norm": 0}
        told = [
            self.train(self.folder / "cpu", code=NON_FINITE, **MICRO, **extreme).err,
            self.simulated(self.folder / "split", *TWO, code=NON_FINITE, **extreme).err,
        ]
        one, two = ([line for line in err.splitlines() if line.startswith("error: ")] for err in told)
        self.assertEqual(len(one), 1)
        self.assertEqual(one, two)

    def test_check_says_what_goes_where(self):
        told = self.expect(0, ["sim:0 prologue", "sim:1", "busy"], "check", QUICKSTART, *settings(*TWO))
        self.assertIn("x as fast as one after the other", told.out)
        bad = ('placement.at=["single.99"]',)
        self.expect(BAD_RECIPE, 'no block "single.99"', "check", QUICKSTART, *settings(*TWO, *bad))
        self.expect(BAD_RECIPE, "budgets", "check", QUICKSTART, *settings(*TWO, 'placement.budgets=["1KB", "1KB"]'))
        weights = 'placement.budgets=["13MB", "13MB"]'  # room for them, and for nothing else
        self.expect(BAD_RECIPE, ["placement.budgets: sim:0 takes", "No cut of the blocks fits"], "check", QUICKSTART,
                    *settings(*TWO, weights))

    def test_a_run_keeps_to_the_budgets_of_its_plan(self):
        """`run` refuses what `check` and `plan` refuse, with their words and before it encodes, and trains what they take."""
        def budgets(first, second):
            return (*TWO, *ENCODERS, f'placement.budgets=["{first}MB", "{second}MB"]')

        run = self.folder / "run"
        plan = json.loads(self.expect(0, [], "plan", SMALL, *settings(*budgets(99, 99), **MICRO), "--json").out)
        totals = [device["total"] for device in plan["devices"]]
        enough = [total // 1_000_000 + 1 for total in totals]
        scarce = budgets(enough[0] - 1, 99)  # the weights fit; another cut gives the second device more
        self.simulated(run, *budgets(13, 13), code=BAD_RECIPE, texts=["No cut of the blocks fits"], cache__folder=self.folder / "new")
        self.assertFalse((self.folder / "new").exists(), "nothing was encoded")
        refused = [self.expect(BAD_RECIPE, "placement.budgets: sim:0 takes", command, SMALL,
                               *settings(*scarce, run__output=run, cache__folder=self.cache, **MICRO)).text
                   for command in ("plan", "run", "check")]
        fits = {re.search(r"with placement.at = (\[.*?\]) everything fits", text).group(1) for text in refused}
        self.assertEqual(len(fits), 1, refused)
        self.simulated(run, *scarce, f"placement.at={fits.pop()}")
        self.train(self.folder / "cpu", **MICRO)
        self.assertEqual(self.result(run), self.result(self.folder / "cpu"))
        self.simulated(self.folder / "enough", *budgets(*enough))

    def test_devices_that_are_not_there(self):
        self.expect(UNAVAILABLE, '"sim:9" does not exist', "check", QUICKSTART, *settings('placement.devices=["sim:9"]'))
        two = ('placement.simulated=["1GB", "1GB"]', 'placement.devices=["sim:2"]')
        self.expect(UNAVAILABLE, '"sim:2" does not exist, there are 2', "check", QUICKSTART, *settings(*two))
        self.expect(BAD_RECIPE, ['"sin:0" is no device (did you mean "sim"?)', '"cpu", "cuda:N", "sim:N"'], "check", QUICKSTART,
                    *settings('placement.devices=["sin:0"]'))
        self.expect(BAD_RECIPE, "no simulated device is used", "check", QUICKSTART, *settings('placement.simulated=["1GB"]'))
        self.expect(BAD_RECIPE, '"1 pound" is no amount of memory', "check", QUICKSTART,
                    *settings(ONE, 'placement.simulated=["1 pound"]'))
        self.expect(0, "devices sim:N (", "doctor")

    def test_devices_of_a_library_of_others(self):
        """Found beside plugins as ours is; one that cannot be opened is named."""
        self.write("npu.device.so", "no library")
        npu = ["check", QUICKSTART, *settings('placement.devices=["npu:0"]')]
        beside = {"TRAINER_PLUGIN_PATH": self.folder}
        self.expect(UNAVAILABLE, "npu.device.so", *npu, env=beside)
        self.expect(0, f"devices npu:N ({self.folder}", "doctor", env=beside)
        self.expect(BAD_RECIPE, '"npu:0" is no device', *npu)


# Between the peaks of one device and of the fuller of two.
LIMIT = "18MB"

if __name__ == "__main__":
    unittest.main(verbosity=2)
