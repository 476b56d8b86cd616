"""PyTorch does with each form what docs/double-backward.md says: the tables are measured again, with the versions that
tests/interop/requirements.txt pins, and compared.
"""

import os
import pathlib
import subprocess
import sys
import unittest

import page

sys.path.insert(0, str(page.ROOT / "tests/interop"))
from environment import interop_python  # noqa: E402  (the path above comes first)


class PyTorch(unittest.TestCase):
    maxDiff = None

    def measure(self, program, *arguments):
        command = [interop_python(), pathlib.Path(__file__).with_name(program), *arguments]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines()]

    def test_each_form(self):
        self.assertEqual(self.measure("pytorch_forms.py"), [row[:-1] for row in page.tables()[0]])

    def test_flux2(self):
        folders = [page.ROOT / "tests/data/parity" / name for name in ("tiny-dev", "tiny-klein")]
        self.assertEqual(self.measure("pytorch_flux2.py", *folders), page.tables()[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
