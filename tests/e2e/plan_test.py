"""`trainer plan`: what is foretold against what a run reports, and FLUX.2-dev's shapes without its weights."""

import json
import pathlib
import re
import unittest

from headers import DOUBLE, SINGLE, dev_recipe, transformer, write_model, write_sparse
from program import PICTURES, QUICKSTART, ROOT, SMALL, Case, RunCase, log_lines, processor_time, settings


PHASES = ("cache", "load", "train", "sample", "save")
STRATEGIES = (
    [],
    ["full_checkpointing"],
    ["selective_checkpointing"],
    ["fp8_weight_only"],
    ["full_checkpointing", "fp8_weight_only"],
    ["selective_checkpointing", "fp8_weight_only"],
    ["int8_w8a8", "full_checkpointing"],
    ["fp8_w8a8"],
)


class Plan(RunCase):
    def plan(self, recipe, *pairs):
        result = self.expect(0, [], "plan", recipe, *settings(*pairs), "--json")
        return json.loads(result.out)

    def measured(self, run, *pairs):
        """Bytes of every phase of a run that makes its own cache, as log.jsonl says them at the end."""
        self.train(run, *pairs, "checkpoint.every=2", cache__folder=run / "cache")
        logged = log_lines(run)[-1]["bytes"]["cpu"]
        return {**{name: logged[name] for name in PHASES if name != "train"},
                "train": max(logged["first_step"], logged["later_steps"])}

    def test_a_run_needs_what_was_foretold(self):
        """No phase takes more than was foretold, and none a tenth less."""
        for strategies in STRATEGIES:
            pairs = (f"memory.strategies={json.dumps(strategies)}", "run.steps=3", 'sample.prompts=["a fox"]')
            plan = self.plan(SMALL, *pairs)
            phases = {phase["name"]: phase["device"] for phase in plan["phases"]}
            self.assertEqual(phases["train"], plan["devices"][0]["total"])
            run = self.folder / "-".join(["run", *strategies])
            for name, bytes_ in self.measured(run, *pairs).items():
                print(f"{strategies} {name}: {bytes_} of {phases[name]} ({bytes_ / phases[name]:.4f})")
                self.assertLessEqual(bytes_, phases[name], (strategies, name))
                self.assertGreaterEqual(bytes_, 0.9 * phases[name], (strategies, name))
            process = max(line["memory"] for line in log_lines(run) if "memory" in line)
            print(f"{strategies} process: {process} of {plan['ram']} ({process / plan['ram']:.4f})")
            self.assertLessEqual(process, plan["ram"], strategies)
            self.assertGreaterEqual(process, 0.6 * plan["ram"], strategies)

    def test_weights_in_8_bits_do_the_same_work(self):
        """Operations are counted by the shapes of products, in whatever numbers they are."""
        def blocks(strategies):
            plan = self.plan(SMALL, f"memory.strategies={json.dumps(strategies)}")
            return [{key: block[key] for key in ("type", "forward_flops", "backward_flops")} for block in plan["blocks"]]

        for more in ([], ["full_checkpointing"]):
            plain = blocks(more)
            self.assertTrue(all(block["backward_flops"] > 0 for block in plain), plain)
            for strategy in ("fp8_weight_only", "fp8_w8a8", "int8_w8a8"):
                self.assertEqual(blocks([strategy, *more]), plain, (strategy, more))

    def test_cuda_is_planned_by_what_it_allocates(self):
        """Rows in 8 bits and their sums there; on the CPU fp32 copies. The work is the same."""
        def plan(device, strategy):
            found = self.plan(SMALL, f"memory.strategies={json.dumps(strategy)}", f'placement.devices=["{device}"]',
                              'model.dtype="bf16"')
            return found["blocks"], found["devices"][0]["transient"]

        for strategy in ("fp8_weight_only", "fp8_w8a8", "int8_w8a8"):
            (here, on_cpu), (there, on_cuda) = (plan(device, [strategy]) for device in ("cpu", "cuda:0"))
            print(f"{strategy}: transient {on_cpu} on the CPU, {on_cuda} on CUDA")
            self.assertEqual([block["forward_flops"] for block in here], [block["forward_flops"] for block in there])
            if strategy != "fp8_weight_only":
                self.assertLess(on_cuda, on_cpu)

    def everything(self):
        """The quickstart without [adapter] and pictures drawn: all parameters are trained, in batches of 2."""
        text = re.sub(r"\[adapter\]\n(?:[^\[].*\n|\n)*", "", QUICKSTART.read_text()).replace("batch_size = 8", "batch_size = 2")
        text = re.sub(r"prompts = \[\n(?:  .*\n)*\]", "prompts = []", text)
        return self.write("all.toml", text.replace('"quickstart/', f'"{QUICKSTART.parent}/quickstart/'))

    def test_updates_in_backward_need_no_second_copy(self):
        """optimizer.fused_backward frees every gradient in backward, in a run and in its plan."""
        recipe, totals = self.everything(), {}
        for fused in ("false", "true"):
            pairs = ("run.steps=3", "train.max_grad_norm=0", f"optimizer.fused_backward={fused}")
            device = self.plan(recipe, *pairs)["devices"][0]
            run = self.folder / fused
            self.train(run, *pairs, recipe=recipe)
            logged = log_lines(run)[-1]["bytes"]["cpu"]
            measured = max(logged["first_step"], logged["later_steps"])
            print(f"fused_backward = {fused}: {measured} of {device['total']}")
            self.assertLessEqual(measured, device["total"])
            self.assertGreaterEqual(measured, 0.9 * device["total"])
            self.assertEqual(device["gradients"] == 0, fused == "true")
            totals[fused] = device["total"]
        self.assertLess(totals["true"], totals["false"] - 0.3 * device["weights"])

    def test_one_number_everywhere(self):
        """What a budget's plan says it needs is what the table, `check`, and the run's plan.json say."""
        for budget in ("40MB", "24MB"):
            run = self.folder / budget
            place = settings(cache__folder=self.cache, run__output=run, run__steps=1)
            told = self.expect(0, [], "plan", SMALL, *place, "--budget", budget).out
            table = json.loads(self.expect(0, [], "plan", SMALL, *place, "--budget", budget, "--json").out)
            checked = self.expect(0, [], "check", SMALL, *place, "--budget", budget).out
            self.train(run, options=["--budget", budget], run__steps=1)
            peak = json.loads((run / "plan.json").read_text())["peak"]
            self.assertEqual(table["devices"][0]["total"], peak)
            shown = [re.search(r"predicted peak ([\d.]+ MB)", text)[1] for text in (told, checked)]
            self.assertEqual(shown, [f"{peak / 1e6:.1f} MB"] * 2)

    def test_people_get_a_table(self):
        shown = ["weights", "kept activations", "transient", "phases, at most", "RAM", "--tflops"]
        self.expect(0, shown, "plan", SMALL)

    def test_without_encoders_it_says_what_it_can(self):
        result = self.expect(
            0,
            ["not known", "kept activations"],
            "plan",
            SMALL,
            *settings("text_encoder.path=/nowhere", "text_encoder.tokenizer=/nowhere", "data.0.folder=/nowhere"),
        )
        self.assertIn("/nowhere", result.out)
        for command in ("plan", "run"):
            self.expect(78, "model.path: no such file or folder: /nowhere", command, SMALL, *settings("model.path=/nowhere"))


class Dev(RunCase):
    """64 GB of weights that take no room, and no GPU."""

    def test_shapes_of_dev_are_planned_in_a_moment(self):
        weights = self.folder / "flux2-dev.safetensors"
        self.assertEqual(write_sparse(weights, transformer()), 2 * 32_223_281_152)
        recipe = self.write("dev.toml", dev_recipe(weights))
        seconds = []  # of processor time: a busy machine is not this program's fault
        for _ in range(3):
            begin = processor_time()
            plan = json.loads(self.expect(0, [], "plan", recipe, "--json").out)
            seconds.append(processor_time() - begin)
        device = plan["devices"][0]
        self.assertIn("FLUX.2 dev", plan["model"])
        self.assertGreater(device["total"], 32e9)
        self.assertLess(device["total"], 140e9)
        self.assertEqual(sum(block["count"] for block in plan["blocks"]), DOUBLE + SINGLE)
        print(f"planned in {min(seconds):.2f} s: {device}")
        self.assertLess(min(seconds), 2)  # a build without optimisation takes 0.95, more on a busy machine


class TwoGpus(Case):
    """recipes/flux2_dev_two_gpus.toml with nothing but the headers of its weights."""

    CARD = 24e9

    def setUp(self):
        super().setUp()
        model = write_model(self.folder / "flux2-dev")
        self.recipe = self.write("two.toml", f"""
extends = "{ROOT}/recipes/flux2_dev_two_gpus.toml"
[model]
path = "{model}/transformer"
[text_encoder]
path = "{model}/text_encoder"
tokenizer = "{model}/tokenizer"
[autoencoder]
path = "{model}/vae"
[[data]]
folder = "{PICTURES}"
resolution = 512
""")

    def test_the_plan_fits_two_cards_and_keeps_both_busy(self):
        plan = json.loads(self.expect(0, [], "plan", self.recipe, "--json").out)
        devices = plan["devices"]
        self.assertEqual([device["device"] for device in devices], ["cuda:0", "cuda:1"])
        self.assertIn("single.20 to single.47, epilogue", devices[1]["parts"])
        for device, weights in zip(devices, (19.2e9, 13.8e9)):
            self.assertAlmostEqual(device["weights"] / weights, 1, delta=0.02)
            self.assertLess(device["total"], self.CARD)
            self.assertGreater(device["total"], device["weights"] + device["adapter"] + device["optimizer"])
            self.assertAlmostEqual(device["busy"], 0.8, delta=0.03)
        self.assertGreaterEqual(plan["step"]["serial_over_step"], 1.55)
        for phase in plan["phases"]:
            self.assertIsNotNone(phase["bytes"], phase)
            for name in ("cuda:0", "cuda:1"):
                self.assertLess(phase["bytes"][name], self.CARD, phase)
        print("\n" + self.expect(0, ["cuda:0", "cuda:1", "busy"], "plan", self.recipe, "--tflops", "100").out)

    def test_budgets_are_of_everything_and_not_of_weights_alone(self):
        def refused(budgets, command="plan", *more):
            return self.expect(78, ["placement.budgets: cuda:0 takes "], command, self.recipe,
                               *settings(f"placement.budgets={budgets}", *more))

        told = refused('["24GB", "12GB"]')
        self.assertIn("No cut of the blocks fits", told.err)
        self.assertIn("of 12", told.err)
        told = refused('["20.5GB", "21GB"]')  # the weights alone keep to them, 19.2 and 13.8 GB
        cut = re.search(r"with placement.at = (\[.*?\]) everything fits", told.err).group(1)
        pairs = ('placement.budgets=["20.5GB", "21GB"]', f"placement.at={cut}")
        plan = json.loads(self.expect(0, [], "plan", self.recipe, *settings(*pairs), "--json").out)
        for device, most in zip(plan["devices"], (20.5e9, 21e9)):
            self.assertLess(device["total"], most)

    def test_the_pages_print_what_the_plan_says(self):
        """The table of docs/scaling.md, the pages' totals of the recipe: within 2 %."""
        rows = re.findall(r"^\| `(\[.*?\])`[^|]*\| ([\d.]+) GB[^|]*\| ([\d.]+) and ([\d.]+) GB \((\d+) %\)",
                          (ROOT / "docs/scaling.md").read_text(), re.M)
        self.assertEqual(len(rows), 4)
        for strategies, *printed in rows:
            chosen = f"memory.strategies={strategies}"
            one = self.expect(0, [], "plan", self.recipe, *settings("train.batch_size=8", chosen, 'placement={kind="single", devices=["cuda:0"]}'),
                              "--ranks", 2, "--json")
            two = self.expect(0, [], "plan", self.recipe, *settings("placement.budgets=[]", chosen), "--json")
            totals = [device["total"] / 1e9 for plan in (one, two) for device in json.loads(plan.out)["devices"]]
            busy = 100 * json.loads(two.out)["devices"][0]["busy"]
            print(strategies, *(f"{total:.1f}" for total in totals), f"{busy:.0f} %")
            for number, total in zip(map(float, printed), [*totals, busy], strict=True):
                self.assertAlmostEqual(number / total, 1, delta=0.02, msg=f"{strategies} {printed} {totals}")
            if strategies == rows[0][0]:
                stated = re.search(r"four micro-batches: ([\d.]+) and ([\d.]+) GB", (ROOT / "docs/placement.md").read_text())
                shown = re.search(r"^  total +([\d.]+) GB +([\d.]+) GB", (ROOT / "docs/memory-planning.md").read_text(), re.M)
                for numbers in (stated.groups(), shown.groups()):
                    for number, total in zip(map(float, numbers), totals[1:], strict=True):
                        self.assertAlmostEqual(number / total, 1, delta=0.02, msg=f"{numbers} {totals}")

    def test_many_captions_are_encoded_in_little_memory(self):
        """A call of the encoder takes no more of them than fit: with the layer at work (1.1 GB, mapped) under 4 GB."""
        plan = json.loads(self.expect(0, [], "plan", self.recipe, *settings("data.0.folder=/nowhere"), "--json").out)
        cache = {phase["name"]: phase["bytes"] for phase in plan["phases"]}["cache"]
        print(f"cache of many captions: {cache}")
        self.assertGreater(cache["cpu"], 1e9, "of 68 embeddings of 15.7 MB each")
        self.assertLess(cache["cpu"], 2.6e9)

    def test_more_micro_batches_keep_them_busier(self):
        more = json.loads(self.expect(0, [], "plan", self.recipe, "--json", "--set", "train.batch_size=8").out)
        self.assertGreaterEqual(more["step"]["serial_over_step"], 1.75)
        serial = json.loads(
            self.expect(0, [], "plan", self.recipe, "--json", "--set", 'placement.schedule="serial"').out
        )
        self.assertEqual(serial["step"]["serial_over_step"], 1)

    def test_a_budget_is_kept_on_each_card(self):
        plan = json.loads(self.expect(0, [], "plan", self.recipe, "--json", "--budget", "23GB").out)
        totals = [device["total"] for device in plan["devices"]]
        print(f"--budget 23GB: {totals}, {plan['step']}")
        self.assertLess(max(totals), 23e9)
        # The second card has room to keep more than the recipe's full checkpointing does.
        self.assertLess(plan["step"]["over_no_recomputation"], 1.45)
        refused = self.expect(78, ["memory.budget: 16GB is too small"], "plan", self.recipe, "--budget", "16GB")
        self.assertIn("the smallest budget that works", refused.err)

    def test_speeds_give_seconds(self):
        seconds = [
            json.loads(self.expect(0, [], "plan", self.recipe, "--json", "--tflops", speeds).out)["step"]["seconds"]
            for speeds in ("100", "200", "200,100")
        ]
        self.assertAlmostEqual(seconds[0], 2 * seconds[1], delta=1e-6 * seconds[0])
        self.assertTrue(seconds[1] < seconds[2] < seconds[0], seconds)
        self.expect(2, "--tflops", "plan", self.recipe, "--tflops", "1,2,3")
        for speeds in ("0", "-1", "nan", "inf", "-inf", "1e400", "1e-400", "100,nan", "fast"):
            self.expect(2, ["--tflops"], "plan", self.recipe, f"--tflops={speeds}")

    def test_processes_share_a_step(self):
        plans = {}
        for ranks in (1, 2, 4):
            told = self.expect(0, [], "plan", self.recipe, "--json", "--ranks", ranks, "--tflops", "100")
            plans[ranks] = json.loads(told.out)
        alone, two, four = plans.values()
        self.assertEqual([plan["rank"]["micro_batches"] for plan in plans.values()], [4, 2, 1])
        trained = sum(device["gradients"] for device in alone["devices"])
        self.assertEqual(alone["rank"]["sent_bytes"], 0)
        self.assertEqual(two["rank"]["reduced_bytes"], trained)
        self.assertEqual(two["rank"]["sent_bytes"], trained)
        self.assertEqual(four["rank"]["sent_bytes"], trained + trained // 2)
        for device, shared in zip(alone["devices"], two["devices"]):
            self.assertEqual(device["weights"], shared["weights"])
            self.assertAlmostEqual(device["step_flops"] / shared["step_flops"], 2, delta=1e-6)
            self.assertAlmostEqual(device["seconds"], device["step_flops"] / 100e12, delta=1e-6)
            self.assertAlmostEqual(device["busy"], device["seconds"] / alone["step"]["seconds"], delta=1e-6)
        for device, shared in zip(alone["devices"], two["devices"]):  # the means of all gradients, and four pieces of 32 MB
            self.assertEqual(device["exchange"], 0)
            self.assertEqual(shared["exchange"], shared["gradients"] + 4 * 4 * (8 << 20))
            parts = ("weights", "adapter", "optimizer", "ema", "gradients", "exchange")
            self.assertGreater(shared["total"], sum(shared[name] for name in parts))
        # Two micro-batches keep two devices busy for two thirds of a step, one of them for half.
        self.assertAlmostEqual(two["devices"][0]["busy"], 2 / 3, delta=0.03)
        self.assertAlmostEqual(four["devices"][0]["busy"], 1 / 2, delta=0.03)
        self.expect(78, "cannot be shared out evenly among 3 ranks", "plan", self.recipe, "--ranks", 3)
        self.expect(2, "--ranks", "plan", self.recipe, "--ranks", 0)
        text = self.expect(0, "one of 2 processes: 2 of the 4 samples of a step", "plan", self.recipe, "--ranks", 2)
        print("\n" + text.out)

    def test_the_recipe_is_ready_to_run(self):
        """`check` opens the devices, so simulated ones take the cards' places."""
        devices = ['placement.devices=["sim:0", "sim:1"]', f"run.output={self.folder}/run"]
        told = self.expect(
            0,
            ["FLUX.2 dev", "sim:0 prologue, double.0 to single.19", "busy 80 %", "1.60 x as fast", "ready to run"],
            "check",
            self.recipe,
            *settings(*devices),
        )
        print("\n" + told.out)

    def test_text_of_another_width_is_found_before_anything_is_encoded(self):
        self.expect(
            78,
            ["two.toml", "[512, 10240]", "[-1, 15360]"],
            "plan",
            self.recipe,
            *settings("text_encoder.layers=[10, 20]"),
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
