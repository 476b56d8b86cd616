"""A process of several is stopped, killed or hangs: the others end in time, say who it was and leave nothing
half-written, and the run goes on from there to the bytes of an undisturbed one."""

import random
import signal
import subprocess
import time
import unittest

from program import PROGRAM, environment, main
from ranks import COLLECTIVE_TIMEOUT, FOUR, PATIENCE, PREEMPTED, RanksCase, torchrun

STEPS = 12
MIXED = {"train__caption_dropout": 0.3, "train__ema__decay": 0.9, "run__steps": STEPS}
KILLED = -signal.SIGKILL


class Faults(RanksCase):
    def reference(self):
        self.train_ranks(self.folder / "reference", 2, **MIXED)
        return self.result(self.folder / "reference", STEPS)

    def test_a_signal_to_one_rank_stops_both(self):
        expected = self.reference()
        run = self.folder / "run"
        for rank, number in ((1, signal.SIGTERM), (0, signal.SIGINT)):
            processes = self.launch(run, 2, **MIXED)
            done = len(self.losses(run)) if run.exists() else 0
            self.wait_for_steps(processes[0], run, done + 2)
            processes[rank].send_signal(number)
            told = self.ends(processes, PREEMPTED)
            self.assertIn(f"stopped by signal {int(number)}, which rank {rank} got first, after step ", told[0])
            self.assertTrue(list(run.glob("ckpt/step-*/MANIFEST.json")))
            self.assert_whole(run)
        self.train_ranks(run, 2, **MIXED)
        self.assertEqual(self.result(run, STEPS), expected)

    def test_a_killed_rank_is_named_and_the_run_goes_on_to_the_same_bytes(self):
        expected = self.reference()
        seed = random.randrange(1 << 30)
        print(f"seed {seed}", end=" ", flush=True)
        chance = random.Random(seed)
        run = self.folder / "run"
        for victim in (1, 0):
            processes = self.launch(run, 2, checkpoint__every=2, **MIXED)
            done = len(self.losses(run)) if run.exists() else 0
            self.wait_for_steps(processes[0], run, min(done + 1, STEPS - 4))
            time.sleep(chance.uniform(0, 0.3))
            processes[victim].kill()
            begin = time.monotonic()
            codes = [COLLECTIVE_TIMEOUT, KILLED] if victim == 1 else [KILLED, COLLECTIVE_TIMEOUT]
            told = self.ends(processes, codes)[1 - victim]
            self.assertLess(time.monotonic() - begin, 30, "not as soon as it was needed")
            self.assertIn(f"error: rank {1 - victim}: rank {victim} (host ", told)
            self.assertIn("is gone", told)
            self.assert_whole(run, killed=victim)
        self.train_ranks(run, 2, checkpoint__every=2, **MIXED)
        self.assert_whole(run)
        self.assertEqual(self.result(run, STEPS), expected)

    def test_a_rank_killed_at_any_moment_of_its_life(self):
        """From the start of its process over meeting, encoding, loading, training and saving to its end."""
        begin = time.monotonic()
        self.train_ranks(self.folder / "reference", 2, cache__folder=self.folder / "cache", checkpoint__every=3, **MIXED)
        life, expected = time.monotonic() - begin, self.result(self.folder / "reference", STEPS)
        seed = random.randrange(1 << 30)
        chance = random.Random(seed)
        for i in range(2):
            victim, moment, run = chance.randrange(2), chance.uniform(0, life), self.folder / f"run-{i}"
            more = {"cache__folder": self.folder / f"cache-{i}", "checkpoint__every": 3, "distributed__timeout": PATIENCE, **MIXED}
            processes = self.launch(run, 2, **more)
            time.sleep(moment)
            processes[victim].kill()
            begin = time.monotonic()
            out, err = processes[1 - victim].communicate(timeout=120)
            what = f"seed {seed}, round {i}: rank {victim} killed after {moment:.2f} of {life:.2f} s\n{err}"
            self.assertLess(time.monotonic() - begin, PATIENCE + 15, what)
            killed = processes[victim].wait() == KILLED
            if killed and processes[1 - victim].returncode != 0:  # else one or both had done their work
                self.assertEqual(processes[1 - victim].returncode, COLLECTIVE_TIMEOUT, what)
                self.assertIn(f"rank {victim} ", err, what)
            self.assert_whole(run, killed=victim)
            self.train_ranks(run, 2, **more)
            self.assertEqual(self.result(run, STEPS), expected, what)

    def test_a_rank_that_hangs_is_named(self):
        for victim in (1, 0):
            run = self.folder / f"run-{victim}"
            processes = self.launch(run, 2, run__steps=1000, distributed__timeout=PATIENCE)
            self.wait_for_steps(processes[0], run, 2)
            processes[victim].send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            out, err = processes[1 - victim].communicate(timeout=3 * PATIENCE)
            waited = time.monotonic() - begin
            processes[victim].kill()
            self.assertEqual(processes[1 - victim].returncode, COLLECTIVE_TIMEOUT, err)
            self.assertIn(f"rank {victim} (host ", err)
            self.assertGreater(waited, PATIENCE - 2)
            self.assertLess(waited, PATIENCE + 15)
            self.assert_whole(run, killed=victim)

    def test_a_rank_that_hangs_or_dies_while_captions_are_encoded_is_named(self):
        """The others have work for a minute, and do not wait for it before they look."""
        folder, (picture, *_) = self.pictures("many", 1)
        for i in range(2000):
            (folder / f"more-{i}.png").symlink_to(folder / picture)
            (folder / f"more-{i}.txt").write_text(f"picture number {i}")
        for victim, kill in ((1, signal.SIGSTOP), (0, signal.SIGSTOP), (1, signal.SIGKILL), (0, signal.SIGKILL)):
            cache = self.folder / f"cache-{victim}-{int(kill)}"
            processes = self.launch(
                self.folder / f"run-{victim}-{int(kill)}",
                2,
                f'data=[{{folder="{folder}", resolution=[64, 64]}}]',
                cache__folder=cache,
                distributed__timeout=PATIENCE,
            )
            while len(list(cache.rglob("*.safetensors"))) < 5:
                self.assertIsNone(processes[victim].poll())
                time.sleep(0.005)
            processes[victim].send_signal(kill)
            begin = time.monotonic()
            out, err = processes[1 - victim].communicate(timeout=120)
            waited = time.monotonic() - begin
            processes[victim].kill()
            self.assertEqual(processes[1 - victim].returncode, COLLECTIVE_TIMEOUT, err)
            self.assertIn(f"rank {victim} (host ", err)
            if victim == 1:  # rank 0 holds the store: without it nobody can say what it did
                self.assertRegex(err, "its last sign was: (reading the data set|encoding captions)")
            if kill == signal.SIGSTOP:  # a death breaks connections: who comes to an exchange knows it at once
                self.assertGreater(waited, PATIENCE - 2)
            self.assertLess(waited, PATIENCE + 15)

    def test_one_that_never_comes_is_named(self):
        process = self.start(
            *self.arguments(self.folder / "run", **FOUR, distributed__timeout=5), env=torchrun(0, 2, 29871)
        )
        (told,) = self.ends([process], COLLECTIVE_TIMEOUT)
        self.assertIn("rank 1 of 2 did not come within the 5 s of distributed.timeout", told)


class TwoMachines(RanksCase):
    """Two network namespaces with a cable between them: no loopback that both see, no way around."""

    ADDRESSES = ("10.83.17.1", "10.83.17.2")

    def shell(self, command, check=True):
        return subprocess.run(command, shell=True, check=check, capture_output=True, text=True)

    def namespaces(self):
        names = [f"trainer-{self.folder.name[-6:]}-{i}".replace("_", "x") for i in range(2)]
        cable = [f"tr{self.folder.name[-6:]}{i}".replace("_", "x") for i in range(2)]
        for name in names:
            made = self.shell(f"ip netns add {name}", check=False)
            if made.returncode != 0:
                self.skipTest(f"network namespaces cannot be made here: {made.stderr.strip() or 'no program ip'}")
            self.addCleanup(self.shell, f"ip netns delete {name}", check=False)
        linked = self.shell(f"ip link add {cable[0]} netns {names[0]} type veth peer name {cable[1]} netns {names[1]}", check=False)
        if linked.returncode != 0:
            self.skipTest(f"namespaces cannot be linked here: {linked.stderr.strip()}")
        for name, device, address in zip(names, cable, self.ADDRESSES):
            self.shell(f"ip -n {name} addr add {address}/24 dev {device} && ip -n {name} link set {device} up")
            self.shell(f"ip -n {name} link set lo up")
        return names, cable

    def start_in(self, name, rank, run, **more):
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, PROGRAM, *map(str, self.arguments(run, **{**FOUR, "distributed__timeout": 60, **more}))],
            env=environment({**torchrun(rank, 2, 29500, self.ADDRESSES[0]), "LOCAL_RANK": "0"}),
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(self.stop, process)
        return process

    def test_two_machines_and_a_cut_cable(self):
        names, cable = self.namespaces()
        self.ends([self.start_in(name, rank, self.folder / "two") for rank, name in enumerate(names)], 0)
        self.train_ranks(self.folder / "one", 2)
        self.assertEqual(self.result(self.folder / "two", 6), self.result(self.folder / "one", 6))

        run = self.folder / "cut"
        processes = [self.start_in(name, rank, run, run__steps=1000, distributed__timeout=PATIENCE) for rank, name in enumerate(names)]
        self.wait_for_steps(processes[0], run, 2)
        self.shell(f"ip -n {names[1]} link set {cable[1]} down")
        begin = time.monotonic()
        told = self.ends(processes, COLLECTIVE_TIMEOUT)
        self.assertLess(time.monotonic() - begin, PATIENCE + 20)
        for rank, err in enumerate(told):
            self.assertIn(f"rank {1 - rank} (host ", err)
        self.assert_whole(run)


if __name__ == "__main__":
    main()
