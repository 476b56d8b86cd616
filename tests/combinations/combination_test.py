"""One recipe of recipes/combinations, trained by the program for a few steps: what it learns is what the plain recipe
learns, with a LoRA on its usual layers and with one on the modulation that all blocks share."""

import json
import os
import pathlib
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "e2e")]

from combinations import PLACEMENTS, RECIPES, Trained, bound, distance, megabytes, numbers_in, packing, readme_rows, table, write_readme
from program import RunCase, log_lines, settings

NAME = os.environ["TRAINER_COMBINATION"]
RESULTS = pathlib.Path(os.environ["TRAINER_COMBINATION_RESULTS"])
ROW, PLACEMENT = NAME.rsplit("-", 1)
STEPS = 6
# The micro-batches of the split, everywhere: sums of gradients round alike.
SETTINGS = {"run__steps": STEPS, "train__micro_batch_size": 2, "train__threads": 1, "train__max_grad_norm": 0,
            "sample__prompts": "[]", "checkpoint__every": 0, "metrics__tensorboard": "false"}
ONE_STEP = "run.steps=1"
MODULATION = 'adapter.targets=["*modulation*"]'
ACCEPT = os.environ.get("TRAINER_TEST_ACCEPT") == "1"  # write the README's table instead of comparing with it
BYTES_APART, DIFFERENCES_APART = 0.1, 0.5  # of the README's, on other processors


class Combination(RunCase):
    def run_of(self, name, *pairs):
        """A run of recipe `name`, once for the same settings."""
        run = self.shared / f"{name} {' '.join(pairs)}".replace("/", "_")
        if not run.exists():
            self.expect(0, [], *self.arguments(run, recipe=RECIPES / f"{name}.toml", **SETTINGS), *settings(*pairs))
        (lora,), (state,) = run.glob("lora/*.safetensors"), run.glob("ckpt/*/rank-00000.safetensors")
        log = log_lines(run)
        return Trained([line["loss"] for line in log], lora.read_bytes(), state.read_bytes(), log)

    def plain(self, *pairs):
        return self.run_of("none-single", *pairs)

    def same(self, *pairs):
        """On one device with the same packed weights alone: what recomputing and splitting may not change by a bit."""
        return self.run_of("none-single", *pairs, f"memory.strategies={json.dumps(packing(ROW))}")

    def assert_equal(self, found, same):
        self.assertEqual(found.losses, same.losses)
        self.assertTrue(found.bits == same.bits, "losses are equal; weights or moments are not")

    def assert_near(self, found):
        """Within the bound that the strategies declare. Returns the largest differences of losses and gradients."""
        loss = max(abs(one - other) / other for one, other in zip(found.losses, self.plain().losses, strict=True))
        gradients = distance(self.run_of(NAME, ONE_STEP).moments, self.plain(ONE_STEP).moments)
        self.assertLess(loss, bound(ROW))
        self.assertLess(gradients, bound(ROW))
        return loss, gradients

    def test_a_lora_on_the_shared_modulation(self):
        found = self.run_of(NAME, MODULATION)
        self.assert_equal(found, self.same(MODULATION))
        moments = found.moments
        self.assertEqual(sum("modulation" in name for name in moments), len(moments))
        self.assertGreaterEqual(len(moments), 6, "A and B of the modulation of pictures, texts and single blocks")
        for name, numbers in moments.items():
            self.assertTrue(any(numbers), f"{name} has no gradient")

    def test_a_lora_on_the_usual_layers(self):
        found = self.run_of(NAME)
        self.assert_equal(found, self.same())
        result = "equal to the bit"
        if packing(ROW):
            loss, gradients = self.assert_near(found)
            self.assertGreater(gradients, 0, "packed weights are others")
            result = f"loss {loss:.2%}, gradients {gradients:.1%} apart (bound {bound(ROW):.0%})"
        cells = self.cells(found)
        self.keep({"cells": cells, "result": result})
        if not ACCEPT:
            self.assert_in_readme(cells, result)

    def cells(self, found):
        if PLACEMENT == "split":
            return [megabytes(found.bytes_of(device)) for device in ("sim:0", "sim:1")]
        plan = self.expect(0, [], "plan", RECIPES / f"{NAME}.toml", *settings(cache__folder=self.cache, **SETTINGS), "--json")
        (device,) = json.loads(plan.out)["devices"]
        return [megabytes(found.bytes_of("cpu")), megabytes(device["total"]), f"{found.seconds / self.plain().seconds:.2f} x"]

    def keep(self, result):
        """For the table, which is written when all combinations have one."""
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{NAME}.json").write_text(json.dumps(result))
        try:
            text = table(RESULTS)
        except FileNotFoundError:
            return
        (RESULTS / "table.md").write_text(text)
        print(f"\n{text}")
        if ACCEPT:
            write_readme(text)

    def assert_in_readme(self, cells, result):
        known = readme_rows()[ROW][1:]  # after the strategies
        first = 0 if PLACEMENT == PLACEMENTS[0] else 3
        for now, then in zip([*cells, result], [*known[first : first + len(cells)], known[-1]], strict=True):
            words, numbers = numbers_in(now)
            words_then, numbers_then = numbers_in(then)
            self.assertEqual(words, words_then, "TRAINER_TEST_ACCEPT=1 tools/test --suite combinations writes the README's table")
            if now.endswith(" x"):  # of a time: others share the processor
                continue
            apart = BYTES_APART if now.endswith("MB") else DIFFERENCES_APART
            for number, before in zip(numbers, numbers_then, strict=True):
                self.assertAlmostEqual(number, before, delta=apart * before, msg=f"{now}, in the README {then}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
