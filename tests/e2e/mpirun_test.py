"""The quickstart under the real mpirun, where there is one (Debian: openmpi-bin): the losses
of one process."""

import os
import shutil
import subprocess
import unittest

from program import PROGRAM, environment, main
from ranks import FOUR, RanksCase

MPIRUN = os.environ.get("TRAINER_MPIRUN") or shutil.which("mpirun")
# Open MPI refuses root and more processes than cores unless it is told.
ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


class Mpirun(RanksCase):
    @classmethod
    def setUpClass(cls):
        if not MPIRUN:
            raise unittest.SkipTest("no mpirun; install openmpi-bin, or name one in TRAINER_MPIRUN")
        super().setUpClass()

    def under_mpirun(self, run, ranks, **more):
        arguments = map(str, self.arguments(run, **FOUR, **more))
        done = subprocess.run([MPIRUN, "-n", str(ranks), PROGRAM, *arguments], env=environment(ALLOWED), cwd=self.folder,
                              text=True, capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"{ranks} ranks of mpirun", done.stderr)

    def test_losses_of_one_process(self):
        self.train(self.folder / "one", **FOUR)
        for ranks in (2, 4):
            self.under_mpirun(self.folder / str(ranks), ranks)
            worst = self.assert_same_steps(self.folder / str(ranks), self.folder / "one")
            print(f"losses and gradient norms of 1 and {ranks} processes within {worst:.1e}", end=" ", flush=True)


if __name__ == "__main__":
    main()
