"""The quickstart under the real torchrun: the losses of one process, a rank killed at a random moment, and a resume that
ends with the bytes of an undisturbed run."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

from program import PROGRAM, QUICKSTART, environment, main, settings
from ranks import RanksCase, free_port

STEPS = 24


def wheel_torchrun():
    """That of the torch wheel that holds LibTorch, where this Python can import it; else why not."""
    site = pathlib.Path(os.environ["TRAINER_TEST_LIBTORCH"]).resolve().parent
    if not (site / "torch/distributed/run.py").exists():
        return None, "LibTorch here is no torch wheel"
    env = {"PYTHONPATH": str(site)}
    tried = subprocess.run(
        [sys.executable, "-c", "import torch.distributed.run"], env=environment(env), capture_output=True, text=True
    )
    if tried.returncode != 0:
        return None, "the torch wheel's cannot run: " + tried.stderr.strip().splitlines()[-1]
    return [sys.executable, "-m", "torch.distributed.run"], env


def interop_torchrun():
    """That of the Python that the suite "interop" makes, torch for the CPU in it (tests/interop/environment.py)."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "trainer"
    made = [folder.parent / "bin/torchrun" for folder in cache.glob("interop-venv-*/complete")]
    return next((str(path) for path in sorted(made) if path.exists()), None)


def find_torchrun():
    """(command, variables), or (None, reason): TRAINER_TORCHRUN, that of PATH, of the interop suite, of the torch wheel."""
    named = os.environ.get("TRAINER_TORCHRUN") or shutil.which("torchrun") or interop_torchrun()
    return ([named], {}) if named else wheel_torchrun()


def children(pid):
    found = []
    for tasks in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in tasks.read_text().split()]
    return found


class Torchrun(RanksCase):
    @classmethod
    def setUpClass(cls):
        cls.torchrun, cls.variables = find_torchrun()
        if cls.torchrun is None:
            raise unittest.SkipTest(f"no torchrun: {cls.variables}; name one in TRAINER_TORCHRUN, or run tools/test --suite interop once")
        super().setUpClass()

    def quickstart(self, run, **more):
        more = {"run__steps": STEPS, "checkpoint__every": 4, "distributed__timeout": 60, **more}
        return ["run", QUICKSTART, *settings("sample.prompts=[]", run__output=run, cache__folder=self.cache, **more)]

    def under_torchrun(self, run, **more):
        process = subprocess.Popen(
            [*self.torchrun, "--no-python", "--nproc-per-node", "2", "--master-port", str(free_port())]
            + [PROGRAM, *map(str, self.quickstart(run, **more))],
            env=environment(self.variables),
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(self.stop, process)
        return process

    def finish(self, process):
        out, err = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 0, out + err)

    def workers(self, launcher):
        """Ranks as their processes say, once all of them train."""
        found = {}
        for pid in children(launcher.pid):
            variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            ranks = [text.partition(b"=")[2] for text in variables if text.startswith(b"RANK=")]
            if ranks:
                found[int(ranks[0])] = pid
        return found

    def test_losses_of_one_process(self):
        self.expect(0, [], *self.quickstart(self.folder / "one"))
        self.finish(self.under_torchrun(self.folder / "two"))
        worst = self.assert_same_steps(self.folder / "two", self.folder / "one")
        print(f"losses and gradient norms of 1 and 2 processes within {worst:.1e}", end=" ", flush=True)

    def test_a_rank_killed_at_a_random_moment(self):
        self.finish(self.under_torchrun(self.folder / "undisturbed"))
        seed = random.randrange(1 << 30)
        print(f"seed {seed}", end=" ", flush=True)
        chance, run = random.Random(seed), self.folder / "run"
        launcher = self.under_torchrun(run)
        self.wait_for_steps(launcher, run, chance.randrange(1, STEPS - 6))
        time.sleep(chance.uniform(0, 0.3))
        workers = self.workers(launcher)
        self.assertEqual(sorted(workers), [0, 1])
        victim = chance.randrange(2)
        os.kill(workers[victim], signal.SIGKILL)
        out, err = launcher.communicate(timeout=90)
        self.assertNotEqual(launcher.returncode, 0)
        # torchrun ends the others when one is gone; the one that was not killed says why it could not go on.
        self.assertIn(f"rank {victim} (host ", err)
        self.assertIn(f"error: rank {1 - victim}: ", err)
        self.assert_whole(run, killed=victim)
        self.finish(self.under_torchrun(run))
        self.assertEqual(self.result(run, STEPS), self.result(self.folder / "undisturbed", STEPS))


if __name__ == "__main__":
    main()
