"""Several processes train one model: the same losses whatever their number, one writer, shared encoding, resumes with
other numbers of ranks, and the environments of the launchers."""

import json
import re
import unittest

from program import PROGRAM, SMALL, environment, log_lines, settings
from ranks import FOUR, RanksCase, free_port, torchrun

BAD_RECIPE, USAGE, UNAVAILABLE, NON_FINITE = 78, 2, 69, 76
ENCODERS = ('text_encoder.device="cpu"', 'autoencoder.device="cpu"')


def srun(rank, ranks, port):
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(ranks),
        "SLURM_LOCALID": str(rank),
        "SLURM_JOB_ID": str(port),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": "1",
    }


def mpirun(rank, ranks, port):
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(ranks),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks),
        "MASTER_PORT": str(port),
    }


class Distributed(RanksCase):
    def test_losses_do_not_depend_on_the_number_of_ranks(self):
        self.train(self.folder / "one", **FOUR)
        worst = 0
        for ranks in (2, 4):
            self.train_ranks(self.folder / f"of-{ranks}", ranks)
            worst = max(worst, self.assert_same_steps(self.folder / f"of-{ranks}", self.folder / "one"))
        print(f"losses and gradient norms of 1, 2 and 4 ranks within {worst:.1e}", end=" ", flush=True)

    def test_samples_are_shared_out_where_micro_batches_are_too_few(self):
        self.train(self.folder / "one", **{**FOUR, "train__micro_batch_size": 4})
        told = self.train_ranks(self.folder / "two", 2, train__micro_batch_size=4)
        self.assertIn("2 ranks of torchrun with 1 x 2 samples of a step", told[0])
        self.assert_same_steps(self.folder / "two", self.folder / "one")

    def test_memory_strategies_change_nothing(self):
        self.train_ranks(self.folder / "plain", 2, "memory.strategies=[]")
        for chosen in ('"full_checkpointing"', '"selective_checkpointing"'):
            run = self.folder / chosen.strip('"')
            self.train_ranks(run, 2, f"memory.strategies=[{chosen}]")
            self.assertEqual(self.result(run, 6), self.result(self.folder / "plain", 6))

    def test_a_budget_is_planned_for_the_share_of_a_rank(self):
        run, more = self.folder / "run", {"train__micro_batch_size": 4, "run__steps": 2}
        budget = ("memory.strategies=[]", "memory.budget=13MB")
        self.train_ranks(run, 4, *budget, **more)
        alone = {**FOUR, **more, "run__steps": 4}
        self.train(run, *budget, code=BAD_RECIPE, texts=["memory.budget: 13MB is too small"], **alone)

    def test_a_rank_needs_what_the_plan_says(self):
        more = {"run__steps": 3, "train__micro_batch_size": 1, **FOUR}
        plan = json.loads(self.expect(0, [], "plan", SMALL, *settings(**more), "--ranks", 2, "--json").out)
        alone = json.loads(self.expect(0, [], "plan", SMALL, *settings(**more), "--json").out)
        self.assertGreater(plan["devices"][0]["exchange"], 0)
        self.train_ranks(self.folder / "run", 2, **more)
        peak = log_lines(self.folder / "run")[-1]["bytes"]["cpu"]["step"]
        print(f"peak {peak}, planned {plan['devices'][0]['total']}, alone {alone['devices'][0]['total']}", end=" ")
        self.assertAlmostEqual(peak / plan["devices"][0]["total"], 1, delta=0.1)

    def test_on_devices_gradients_go_while_the_backward_runs(self):
        run = self.folder / "run"
        two = ('placement.devices=["sim:0"]', 'placement.simulated=["1TB", "1TB"]')
        processes = self.launch(run, 2, *two, *ENCODERS, options=["--profile", "2"])
        told = self.ends(processes, 0)[0]
        pieces = re.search(r"gradients go to the other ranks in (\d+) piece\(s\), (\d+) of them complete before", told)
        self.assertIsNotNone(pieces, told)
        self.assertEqual(*pieces.groups())
        self.assertGreater(int(pieces[1]), 0)
        self.assertRegex((run / "profile/table.txt").read_text(), r"other ranks +[\d.]+ ms")

    def test_only_rank_0_speaks_and_two_runs_are_equal(self):
        everything = {"train__ema__decay": 0.9, "train__caption_dropout": 0.3, "checkpoint__every": 3}
        told = self.train_ranks(self.folder / "a", 2, **everything)
        self.assertIn("step 6/6", told[0])
        self.assertEqual(told[1], "")
        self.train_ranks(self.folder / "b", 2, **everything)
        self.assertEqual(self.result(self.folder / "a", 6), self.result(self.folder / "b", 6))

    def test_encoding_is_shared(self):
        alone = {"text_encoder__micro_batch": 1}  # on some processors a caption's last digits depend on its company
        self.expect(0, [], "cache", SMALL, *settings(cache__folder=self.folder / "expected", **alone))
        processes = self.launch(self.folder / "run", 2, cache__folder=self.folder / "cache", run__steps=1, **alone)
        self.ends(processes, 0)
        entries = {path.relative_to(self.folder / "cache"): path for path in (self.folder / "cache").rglob("*.safetensors")}
        made = self.folder / "expected"
        expected = {path.relative_to(made): path for path in made.rglob("*.safetensors")}
        self.assertEqual(set(entries), set(expected))
        for name, path in entries.items():
            self.assertEqual(path.read_bytes(), expected[name].read_bytes(), name)

    def test_nothing_is_encoded_twice(self):
        port, arguments = free_port(), ["cache", SMALL, *settings(cache__folder=self.folder / "cache"), "--json"]
        processes = [self.start(*arguments, env=torchrun(rank, 2, port)) for rank in range(2)]
        told = [process.communicate(timeout=60)[0] for process in processes]
        made = json.loads(told[0])
        entries = list((self.folder / "cache").rglob("*.safetensors"))
        self.assertEqual(made["latents_made"] + made["captions_made"], len(entries))
        self.assertEqual(told[1], "")

    def test_more_ranks_than_devices(self):
        many = ('placement.kind="split"', 'placement.devices=["sim:0", "sim:1"]')
        variables = torchrun(3, 4, 1)
        self.expect(UNAVAILABLE, "start fewer processes", "check", SMALL, *settings(*many, **FOUR), env=variables)

    def test_a_resume_with_other_numbers_of_ranks(self):
        self.train(self.folder / "one", **FOUR)
        run = self.folder / "run"
        for ranks, steps in ((2, 2), (4, 4), (1, 6)):
            more = {"run__steps": steps}
            if ranks == 1:
                self.train(run, texts="going on after step 4", **FOUR, **more)
            else:
                self.train_ranks(run, ranks, **more)
        self.assert_same_steps(run, self.folder / "one")
        self.assertEqual([line["step"] for line in log_lines(run)], [1, 2, 3, 4, 5, 6])

    def test_environments_of_srun_and_mpirun(self):
        self.train_ranks(self.folder / "torchrun", 2, run__steps=2)
        for name, variables in {"srun": srun, "mpirun": mpirun}.items():
            told = self.train_ranks(self.folder / name, 2, variables=variables, run__steps=2)
            self.assertIn(f"2 ranks of {name}", told[0])
            self.assertEqual(self.result(self.folder / name, 2), self.result(self.folder / "torchrun", 2))

    def test_ranks_of_split_models(self):
        two_devices = ('placement.kind="split"', 'placement.devices=["sim:0", "sim:1"]', *ENCODERS)
        self.train_ranks(self.folder / "cpu", 2, run__steps=3)
        self.train_ranks(self.folder / "split", 2, *two_devices, run__steps=3)
        self.assertEqual(self.result(self.folder / "split", 3), self.result(self.folder / "cpu", 3))
        told = self.expect(
            0, "sim:2 prologue", "check", SMALL, *settings(*two_devices, **FOUR), env=torchrun(1, 2, 1)
        )
        self.assertNotIn("sim:0", told.out)

    def test_a_batch_that_cannot_be_shared_out(self):
        want = "train.batch_size = 6 cannot be shared out evenly among 4 ranks: set it to 4 or 8, or start 3 ranks"
        odd = settings(train__batch_size=6, train__micro_batch_size=1, cache__folder=self.cache)
        variables = torchrun(0, 4, free_port())
        self.expect(BAD_RECIPE, want, "check", SMALL, *odd, env=variables)

    def test_updates_in_backward_are_refused(self):
        fused = settings("optimizer.fused_backward=true", "train.max_grad_norm=0", train__micro_batch_size=2)
        self.expect(BAD_RECIPE, "optimizer.fused_backward", "check", SMALL, *fused, env=torchrun(1, 2, 1))

    def test_a_wrong_environment_is_named(self):
        self.expect(USAGE, "WORLD_SIZE is not set", "run", SMALL, env={"RANK": "0"})
        self.expect(USAGE, "RANK is 2", "run", SMALL, env=torchrun(2, 2, 1))

    def test_a_value_that_is_not_finite_stops_all_and_names_the_rank(self):
        extreme = {"optimizer__lr": 1000, "adapter__alpha": 1e38, "train__max_grad_norm": 0}
        told = self.ends(self.launch(self.folder / "run", 2, **extreme), NON_FINITE)
        detail = [err for err in told if "files:" in err]
        self.assertTrue(detail, told)
        for rank, err in enumerate(told):
            self.assertIn(f"error: rank {rank}: step ", err)
        self.assertEqual(list((self.folder / "run/ckpt").glob("step-*")), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
