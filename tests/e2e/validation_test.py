"""The validation loss of held-out pictures: what it does not depend on, what it leaves as it is, and where it is told."""

import json
import shutil
import signal
import unittest

from program import PICTURES, SMALL, log_lines, settings
from ranks import PREEMPTED, RanksCase

BAD_RECIPE, BAD_INPUT = 78, 65
TWO = ('placement.kind="split"', 'placement.devices=["sim:0", "sim:1"]', 'text_encoder.device="cpu"', 'autoencoder.device="cpu"')
FOUR = {"train__batch_size": 4, "train__micro_batch_size": 1, "train__ema__decay": 0.9}
HELD = {"validation__fraction": 0.2, "validation__every": 2}


def validations(run):
    return [line for line in log_lines(run) if "validation_loss" in line]


def losses(run):
    return [line["loss"] for line in log_lines(run) if "loss" in line]


class Validation(RanksCase):
    def final(self, run, step=6):
        state = run / f"ckpt/step-{step:010}/rank-00000.safetensors"
        return next(run.glob(f"lora/*-{step}.safetensors")).read_bytes(), state.read_bytes(), losses(run)

    def test_a_run_learns_the_same_with_and_without(self):
        """And a held-out folder is encoded into the cache, but not trained on."""
        chosen = sorted(path for path in PICTURES.iterdir() if path.suffix in (".png", ".jpg"))
        for name, files in {"train": chosen[:6], "held": chosen[6:8]}.items():
            (self.folder / name).mkdir()
            for path in files:
                shutil.copy(path, self.folder / name)
                shutil.copy(path.with_suffix(".txt"), self.folder / name)
        source = '[[data]]\nfolder = "{}"\nresolution = {}\n'
        start = f'extends = "{SMALL}"\n' + source.format("train", 64)
        without = self.write("without.toml", start)
        held = self.write("with.toml", start + source.format("held", 96) + "validation = true\n[validation]\nevery = 2\n")
        cache = {"cache__folder": self.folder / "cache", "train__ema__decay": 0.9}
        self.train(self.folder / "a", recipe=without, **cache)
        told = self.train(self.folder / "b", recipe=held, texts="2 more held out for validation", **cache)
        self.assertEqual(self.final(self.folder / "a"), self.final(self.folder / "b"))
        rows = validations(self.folder / "b")
        self.assertEqual([row["step"] for row in rows], [0, 2, 4, 6])
        self.assertEqual([row["step"] for row in log_lines(self.folder / "b")], [0, 1, 2, 2, 3, 4, 4, 5, 6, 6])
        self.assertEqual(len(set(row["validation_loss"] for row in rows)), 4, "the weights change")
        for row in rows:
            self.assertAlmostEqual(sum(row["validation_losses"]) / 4, row["validation_loss"], places=12)
            self.assertEqual(row["validation_times"], sorted(row["validation_times"]))
        first, last = (f"{rows[i]['validation_loss']:.4f}" for i in (0, -1))
        self.assertRegex(told.out, rf"validation  {first} \(step 0\) -> {last} \(step 6\), lowest [\d.]+ at step \d")
        self.assert_nothing_of_it_is_left_when_off(without, cache)

    def assert_nothing_of_it_is_left_when_off(self, recipe, cache):
        told = self.train(self.folder / "c", recipe=recipe, options=["--json"], **cache)
        self.assertNotIn("validation", json.loads(told.out))
        self.assertNotIn("[validation]", (self.folder / "c/recipe.toml").read_text())

    def test_two_devices_give_the_bits_of_one(self):
        self.train(self.folder / "one", **FOUR, **HELD)
        self.expect(0, [], *self.arguments(self.folder / "two", *TWO, **FOUR, **HELD))
        self.assertEqual(validations(self.folder / "one"), validations(self.folder / "two"))
        self.assertEqual(len(validations(self.folder / "two")), 4)

    def test_memory_strategies_change_nothing(self):
        self.train(self.folder / "plain", **FOUR, **HELD)
        for strategies in ('["full_checkpointing"]', '["selective_checkpointing"]'):
            run = self.folder / strategies.strip('[]"')
            self.train(run, f"memory.strategies={strategies}", **FOUR, **HELD)
            self.assertEqual(validations(run), validations(self.folder / "plain"), strategies)

    def test_any_number_of_ranks_gives_one_loss(self):
        """To the bit of the same weights; those of a later step are as close as training leaves them."""
        runs = {}
        for ranks in (1, 2, 4):
            run = self.folder / str(ranks)
            self.train_ranks(run, ranks, **HELD)
            runs[ranks] = [row["validation_loss"] for row in validations(run)]
            self.assertEqual(len(runs[ranks]), 4)
            self.assertEqual(runs[ranks][0], runs[1][0])
            self.assert_close(runs[ranks], runs[1])

    def test_a_resumed_run_has_every_validation_once(self):
        steps = {"run__steps": 30, "checkpoint__every": 4, "validation__fraction": 0.2, "validation__every": 3}
        self.train(self.folder / "whole", **steps)
        run = self.folder / "run"
        for at in (4, 12):
            process = self.start(*self.arguments(run, **steps))
            self.wait_for_steps(process, run, at)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate()
            self.assertEqual(process.returncode, PREEMPTED, err)
        self.train(run, **steps)
        self.assertEqual(validations(run), validations(self.folder / "whole"))
        self.assertEqual(self.final(run, 30), self.final(self.folder / "whole", 30))

    def test_what_is_missing_is_measured_when_the_run_goes_on(self):
        """A run that ended between its last checkpoint and the validation after it."""
        run = self.folder / "run"
        self.train(run, **HELD)
        before = validations(run)
        lines = (run / "log.jsonl").read_text().splitlines(keepends=True)
        self.assertIn("validation_loss", lines[-1])
        (run / "log.jsonl").write_text("".join(lines[:-1]))
        for _ in range(2):
            self.train(run, **HELD)
            self.assertEqual(validations(run), before)

    def test_it_is_told_before_it_runs(self):
        chosen = settings(cache__folder=self.cache, **HELD)
        self.expect(0, ["validation", "4 of 20 pictures held out, 4 timesteps each", "every 2 steps"], "check", SMALL, *chosen)
        told = self.expect(0, [], "plan", SMALL, *chosen, "--json", "--tflops", "1")
        plan = json.loads(told.out)
        self.assertEqual([plan["validation"][key] for key in ("samples", "timesteps", "times")], [4, 4, 4])
        self.assertAlmostEqual(plan["validation"]["seconds"], 16 * plan["validation"]["flops"] / 1e12)
        phases = {phase["name"]: phase["device"] for phase in plan["phases"]}
        self.assertEqual(list(phases), ["cache", "load", "train", "validate", "sample", "save"])
        run = self.folder / "run"
        self.train(run, **HELD)
        used = log_lines(run)[-2]["bytes"]["cpu"]["validate"]
        self.assertTrue(0.9 * phases["validate"] <= used <= phases["validate"], (used, phases))
        self.expect(0, "a validation: 4 samples at 4 timesteps each", "plan", SMALL, *chosen)
        self.expect(0, "Share of the samples", "explain", "validation.fraction")

    def test_mistakes(self):
        self.expect(BAD_RECIPE, ["validation.every", "no samples are held out"], "check", SMALL, *settings(validation__every=5))
        self.expect(BAD_RECIPE, "validation.fraction", "check", SMALL, *settings(validation__fraction=1.5))
        all_held = self.write("all.toml", f'extends = "{SMALL}"\n[[data]]\nfolder = "{PICTURES}"\nvalidation = true\n')
        self.expect(BAD_RECIPE, "every source has validation = true", "check", all_held)

    def test_tensorboard_has_its_curve(self):
        self.train(self.folder / "run", metrics__tensorboard="true", **HELD)
        events = b"".join(path.read_bytes() for path in (self.folder / "run/tb").iterdir())
        for name in (b"loss/train", b"loss/validation", b"validation/timestep 4 of 4"):
            self.assertIn(name, events)


if __name__ == "__main__":
    unittest.main(verbosity=2)
