"""tools/bench with both sides, as short as it goes: the miniature, two pairs, a row for each thing that Python's side does;
one text encoder and the autoencoder, held to another level.

TRAINER_BUILD is the build folder, TRAINER_SOURCE_ROOT the source tree.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from environment import interop_python

ROOT = pathlib.Path(os.environ["TRAINER_SOURCE_ROOT"])
ROWS = ["none", "full+elision", "matmul", "full+fp8+lorabf16"]


class Bench(unittest.TestCase):
    def test_rows_compare(self):
        with tempfile.TemporaryDirectory(prefix="trainer-bench-") as folder:
            out = pathlib.Path(folder) / "bench.json"
            words = ["--build", os.environ["TRAINER_BUILD"], "--python", interop_python(), "--dtype", "bf16",
                     "--rows", ",".join(ROWS), "--pairs", "2", "--warmup", "1", "--json", out]
            subprocess.run([sys.executable, ROOT / "tools/bench", *words], check=True)
            rows = json.loads(out.read_text())["results"]
        self.assertEqual([row["row"] for row in rows], ROWS)
        for row in rows:
            with self.subTest(row["row"]):
                self.assertGreater(row["ratio"]["median"], 0)
                for side in (row["ours"], row["python"]):
                    self.assertGreater(side["seconds"], 0)
                    self.assertGreater(side["peak_bytes"], side["live_bytes"])
                    self.assertTrue(all(0 < loss < 100 for loss in side["losses"]), side["losses"])
        full, matmul = rows[1]["python"]["recomputed_flops"], rows[2]["python"]["recomputed_flops"]
        self.assertGreater(full, 10 * matmul, "attention alone is recomputed where products are kept")

    def test_encoders_at_a_level(self):
        with tempfile.TemporaryDirectory(prefix="trainer-bench-") as folder:
            out = pathlib.Path(folder) / "bench.json"
            words = ["--build", os.environ["TRAINER_BUILD"], "--python", interop_python(), "--level", "x86-64-v3", "--pairs", "2",
                     "--encoders", "qwen3,encode", "--tokens", "8", "--resolution", "32", "--dtype", "fp32", "--json", out]
            done = subprocess.run([sys.executable, ROOT / "tools/bench", *words], check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(out.read_text())
        self.assertIn("instructions of x86-64-v3", done.stdout)
        self.assertEqual(found["machine"]["level"], "x86-64-v3")
        captions, picture = found["results"]
        self.assertAlmostEqual(captions["ours"]["in_a_minute"], 60 / captions["ours"]["seconds"] / 18)
        self.assertIn("(scaled to 36 layers)", done.stdout)
        for row, sides in ((captions, ("ours", "python")), (picture, ("bf16", "fp32"))):
            self.assertGreater(row["ratio"]["median"], 0)
            self.assertGreater(min(row[side]["seconds"] for side in sides), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
