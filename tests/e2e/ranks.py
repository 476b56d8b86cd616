"""Runs of several processes: what torchrun, srun and mpirun do, for tests that need none of them."""

import socket
import time

from program import Result, RunCase, log_lines

COLLECTIVE_TIMEOUT, PREEMPTED = 81, 75
# Two micro-batches, or four: what the ranks share out.
FOUR = {"train__batch_size": 4, "train__micro_batch_size": 1}
PATIENCE = 8  # seconds of distributed.timeout where it is to run out; elsewhere a busy machine must not fail a test


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def torchrun(rank, ranks, port, address="127.0.0.1"):
    """The environment that `torchrun --no-python` gives a process."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


class RanksCase(RunCase):
    def launch(self, run, ranks, *pairs, variables=torchrun, env=None, folders=None, options=(), **more):
        """A process for each rank of one run; `variables` makes its environment, `folders` are where they are started
        (what a rank alone has is reached by /proc/self/cwd)."""
        port = free_port()
        more.setdefault("distributed__timeout", 60)
        arguments = [*self.arguments(run, *pairs, **{**FOUR, **more}), *options]
        return [
            self.start(
                *arguments,
                env={**variables(rank, ranks, port), **(env or {})},
                cwd=folders[rank] if folders else self.folder,
            )
            for rank in range(ranks)
        ]

    def ends(self, processes, code, limit=60):
        """Waits for all; each ends with `code` (or the code at its place in a list). Returns their stderr."""
        codes = code if isinstance(code, list) else [code] * len(processes)
        deadline = time.monotonic() + limit
        results = []
        for rank, process in enumerate(processes):
            out, err = process.communicate(timeout=max(deadline - time.monotonic(), 1))
            results.append(Result([f"(rank {rank})"], process.returncode, out, err))
        for result, expected in zip(results, codes):
            self.assertEqual(result.code, expected, "\n".join(map(str, results)))
            if expected >= 0:
                self.checked(result)
        return [result.err for result in results]

    def train_ranks(self, run, ranks, *pairs, **more):
        return self.ends(self.launch(run, ranks, *pairs, **more), 0)

    def losses(self, run):
        return [line["loss"] for line in log_lines(run)]

    def assert_same_steps(self, run, expected):
        """Losses and gradient norms of two runs. (AdamW and clipping hide from losses how gradients are scaled.)"""
        norms = [[line["grad_norm"] for line in log_lines(one)] for one in (run, expected)]
        return max(self.assert_close(self.losses(run), self.losses(expected)), self.assert_close(*norms))

    def assert_close(self, losses, expected):
        """Within 1e-5 of each other, relative."""
        self.assertEqual(len(losses), len(expected))
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected))
        self.assertLess(worst, 1e-5, f"{losses} {expected}")
        return worst

    def result(self, run, step):
        """Bytes of the export and of the checkpoint of a step, and the losses."""
        export = next(run.glob(f"*/*-{step}.safetensors"))
        state = run / f"ckpt/step-{step:010}/rank-00000.safetensors"
        return export.read_bytes(), state.read_bytes(), self.losses(run)

    def assert_whole(self, run, killed=None):
        """No checkpoint is half-written, and nothing begun is left, unless the writer was killed while it saved: the
        next run clears that away."""
        if killed != 0:
            self.assertFalse([path for path in run.rglob(".t*") if path.name.startswith((".tmp", ".trash"))])
        for checkpoint in run.glob("ckpt/step-*"):
            self.assertTrue((checkpoint / "MANIFEST.json").exists(), checkpoint)
