"""`trainer run --profile N`: the table adds up, its parts are those of the recipe, and the trace can be read."""

import json
import re
import unittest

from program import RunCase, log_lines


class Profile(RunCase):
    def profile(self, *pairs, steps=4, count=2, texts=()):
        run = self.folder / f"run-{len(list(self.folder.iterdir()))}"
        self.last = self.train(run, *pairs, options=["--profile", str(count)], texts=texts, run__steps=steps)
        return run

    def table(self, run):
        """(milliseconds of a step, {part: milliseconds}, steps)"""
        text = (run / "profile/table.txt").read_text()
        self.assertIn(text.strip(), self.last.text)
        whole, steps = re.match(r"a step: ([\d.]+) ms, the mean of (\d+)", text).groups()
        parts, operators = text.split("the longest operators")
        self.assertIn("aten::", operators)
        rows = re.findall(r"^  (\S.*?) +([\d.]+) ms +([\d.]+) %$", parts, re.M)
        return float(whole), {name: float(ms) for name, ms, _ in rows}, int(steps)

    def test_parts_add_up_to_the_steps_that_were_profiled(self):
        run = self.profile()
        whole, parts, steps = self.table(run)
        self.assertEqual(steps, 2)
        self.assertLess(abs(sum(parts.values()) - whole), 0.02 * len(parts))
        logged = sum(line["seconds"] for line in log_lines(run)[1:3]) / 2
        self.assertLess(abs(whole * 1e-3 - logged), 0.05 * logged)
        expected = ["data", "forward", "recompute", "backward", "copies and casts", "optimizer", "host"]
        self.assertEqual(list(parts), expected)
        self.assertNotIn("ERROR", self.last.text)
        calls, reads = map(int, re.search(r"^calls of operators: (\d+); numbers read from tensors: (\d+)$",
                                          (run / "profile/table.txt").read_text(), re.M).groups())
        # The host's work grows by nobody's accident: 589 and 42 (on the CPU a fused update reads each counter) when written.
        self.assertLessEqual(calls, 620)
        self.assertLessEqual(reads, 44)

    def test_nothing_is_recomputed_without_checkpointing(self):
        _, parts, _ = self.table(self.profile("memory.strategies=[]"))
        self.assertNotIn("recompute", parts)
        self.assertGreater(parts["backward"], parts["optimizer"])

    def test_trace_holds_host_operators_and_the_parts_of_a_step(self):
        run = self.profile()
        names = [event.get("name") for event in json.loads((run / "profile/trace.json").read_text())["traceEvents"]]
        self.assertEqual(names.count("trainer::step"), 2)
        self.assertIn("trainer::optimizer", names)
        self.assertIn("aten::mm", names)

    def test_profiling_changes_no_loss(self):
        run, plain = self.profile(), self.folder / "plain"
        self.train(plain, run__steps=4)
        self.assertEqual([line["loss"] for line in log_lines(run)], [line["loss"] for line in log_lines(plain)])

    def test_fewer_steps_than_asked_for(self):
        _, _, steps = self.table(self.profile(steps=3, count=10))
        self.assertEqual(steps, 2)
        self.profile(steps=1, texts="nothing was profiled")

    def test_the_number_is_checked(self):
        self.expect(2, "--profile", *self.arguments(self.folder / "run"), "--profile", "0")


if __name__ == "__main__":
    unittest.main()
