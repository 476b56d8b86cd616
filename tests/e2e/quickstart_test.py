"""The quickstart's first losses: another processor, or another level of its instructions, changes their last digits only."""

import unittest

from program import QUICKSTART, RunCase, log_lines

LOSSES = [3.067581, 2.895158, 2.841723, 2.170999, 1.442018, 1.425412]  # of an Intel Xeon with AVX-512


class Quickstart(RunCase):
    def test_first_losses(self):
        run = self.folder / "run"
        more = {"recipe": QUICKSTART, "cache__folder": self.folder / "cache", "run__steps": len(LOSSES)}
        self.train(run, "sample.prompts=[]", **more)
        losses = [line["loss"] for line in log_lines(run)]
        self.assertEqual(len(losses), len(LOSSES))
        worst = max(abs(loss - known) / known for loss, known in zip(losses, LOSSES))
        print(f"within {worst:.1e}", end=" ", flush=True)
        self.assertLess(worst, 1e-5, losses)


if __name__ == "__main__":
    unittest.main(verbosity=2)
