"""What tools/gpu_check runs: parts made of items, each a call of a few seconds to minutes that is judged by itself."""
import dataclasses
import gzip
import json
import os
import pathlib
import resource
import sys
import tempfile
import time
import typing

UNAVAILABLE, OUT_OF_MEMORY = 69, 80  # docs/exit-codes.md
PARTS = ("loading", "kernels", "memory", "matrix", "bench")
CASES_A_CHUNK = 3
KERNEL, FIGURE, SHAPE = "kernel_", "figure_", "shape_"  # how the test program's properties of kernels and of errors begin
MOST_TEXT = 6000  # characters of one message or table in the report
MOST_APART = 1e-3  # losses of a run on the CPU and on the device, relative
MOST_TRACE = 4 << 20  # bytes of a trace, compressed
# Products of 8-bit floats are for compute capabilities from here on; below, LibTorch refuses them.
FP8_PRODUCTS = 8.9


# Where bits or bytes are compared: cuBLAS gives equal bits every time, and takes nearly nothing beside the plan. Not
# where time is: its small workspace costs some.
EXACT = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}


class Failed(Exception):
    """What was expected and what came; results for the report, if there are some nevertheless."""
    def __init__(self, text, results=None):
        super().__init__(text)
        self.results = results


class Skipped(Exception):
    """Why this device cannot."""


@dataclasses.dataclass
class Item:
    name: str
    part: str
    seconds: float  # it may take; an item that cannot end within the call is left for the next
    run: typing.Callable  # (Machine, timeout) -> dict of results; raises Failed, Skipped
    compares: bool = False  # with Python's side, where that is there


def require(condition, text):
    if not condition:
        raise Failed(text)


def error_of(done):
    """The first line of what the program says is wrong."""
    return next((line for line in done.stderr.splitlines() if line.startswith("error:")), done.stderr)


def time_left(timeout):
    """Seconds that are left of it, whenever it is called."""
    end = time.monotonic() + timeout
    return lambda: max(end - time.monotonic(), 1)


def small_run(machine, folder, *overrides, command=("run",), **more):
    """The program on tests/e2e/small.toml, on the device."""
    values = [f'placement.devices=["{machine.device}"]', f"cache.folder={machine.cache}", f"run.output={folder}/run",
              f"data.0.folder={machine.pictures}", "run.steps=4", *overrides]
    words = [str(machine.program), "--json", *command, str(machine.root / "tests/e2e/small.toml")]
    for value in values:
        words += ["--set", value]
    return machine.call(words, **more)


def starts(machine, timeout):
    done = machine.call([str(machine.program), "--json", "doctor"], timeout=timeout)
    require(done.returncode == 0, done.stderr)
    facts = json.loads(done.stdout)
    early = any("libtorch_cuda" in file for file in facts["mapped"])
    require(not early, "libtorch_cuda is open before it is asked for")
    return {"torch": facts["torch"], "libtorch": facts["libtorch"]}


def opens_on_demand(machine, timeout):
    with tempfile.TemporaryDirectory() as folder:
        done = small_run(machine, folder, timeout=timeout)
        require(done.returncode == 0, done.stderr)
        opened = "CUDA opened from" in done.stderr
        require(opened == machine.cuda, "CUDA was " + ("not opened" if machine.cuda else "opened for a run on the CPU"))
        return {"loss": json.loads(done.stdout)["loss"]}


def trains_as_the_cpu(machine, timeout):
    """Losses of the first steps on the CPU and on the device. Noise and timesteps are keyed, so that both have the same inputs,
    and from the second step on a loss depends on gradients and optimizer."""
    left, sides = time_left(timeout), []
    for device in ("cpu", machine.device):
        with tempfile.TemporaryDirectory() as folder:
            done = small_run(machine, folder, f'placement.devices=["{device}"]', timeout=left(), env=EXACT)
            require(done.returncode == 0, done.stderr)
            log = (pathlib.Path(folder) / "run/log.jsonl").read_text().splitlines()
            sides.append([line["loss"] for line in map(json.loads, log) if "loss" in line])
    require(len(sides[0]) == len(sides[1]) > 1, f"losses of other steps: {sides}")
    apart = max((abs(there - here) / abs(here) for here, there in zip(*sides)), key=lambda off: (off != off, off))  # NaN is most
    require(apart <= MOST_APART, f"losses {apart:.1e} apart, allowed {MOST_APART}; the CPU's {sides[0]}, here {sides[1]}")
    return {"losses": sides[1], "apart": apart}


def refuses_a_missing_device(machine, timeout):
    with tempfile.TemporaryDirectory() as folder:
        done = small_run(machine, folder, 'placement.devices=["cuda:63"]', timeout=timeout)
    require(done.returncode == UNAVAILABLE, f"exit code {done.returncode}, expected {UNAVAILABLE}: {done.stderr}")
    return {"message": error_of(done)}


def capped(machine, folder, timeout):
    """A run that may take too little: of the device by its allocator's own limit, on the CPU of the address space."""
    if machine.cuda:
        require(machine.device_bytes(), "neither nvidia-smi nor torch says how much memory the device has")
        fraction = 16e6 / machine.device_bytes()
        return small_run(machine, folder, timeout=timeout,
                         env={**EXACT, "PYTORCH_ALLOC_CONF": f"per_process_memory_fraction:{fraction:.6f}"})
    limit = 3 << 30
    return small_run(machine, folder, "train.batch_size=20000", "train.micro_batch_size=20000", timeout=timeout,
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))


def fails_clearly_at_a_cap(machine, timeout):
    with tempfile.TemporaryDirectory() as folder:
        done = capped(machine, folder, timeout)
    require(done.returncode == OUT_OF_MEMORY, f"exit code {done.returncode}, expected {OUT_OF_MEMORY}: {done.stderr}")
    require("train.micro_batch_size" in done.stderr, f"no advice: {done.stderr}")
    return {"message": error_of(done)[:300]}


def keeps_the_plan(machine, timeout):
    """The highest use of the device in training, by its allocator, against `trainer plan`."""
    rows, left = {}, time_left(timeout)
    tried = ("[]", '["full_checkpointing"]', '["full_checkpointing", "fp8_weight_only"]')
    for strategies in tried[-1:] if machine.quick else tried:
        with tempfile.TemporaryDirectory() as folder:
            override = f"memory.strategies={strategies}"
            plan = small_run(machine, folder, override, command=("plan",), timeout=left())
            require(plan.returncode == 0, plan.stderr)
            done = small_run(machine, folder, override, timeout=left(), env=EXACT)
            require(done.returncode == 0, done.stderr)
        planned = {phase["name"]: phase["device"] for phase in json.loads(plan.stdout)["phases"]}["train"]
        use = next(iter(json.loads(done.stdout)["bytes"].values()))  # of the first device
        rows[strategies] = {"planned": planned, "measured": max(use["first_step"], use["later_steps"])}
    far = {name: row for name, row in rows.items() if abs(row["measured"] / row["planned"] - 1) > 0.1}
    require(not far, f"more than 10 % from the plan: {far}")
    return rows


def gtest(machine, program, cases, timeout):
    """Runs these cases of a program; an end without results is a failure, too."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "result.json"
        words = [str(machine.build / program), f"--gtest_output=json:{out}", "--gtest_filter=" + ":".join(cases)]
        done = machine.call(words, timeout=timeout, env=EXACT)
        require(out.exists(), f"{program} ended with {done.returncode} and left no results: {done.stderr[-2000:]}")
        result = json.loads(out.read_text())
    failures = [f"{suite['name']}.{case['name']}: {case['failures'][0]['failure'][:1500]}"
                for suite in result["testsuites"] for case in suite["testsuite"] if case.get("failures")]
    results = {"cases": result["tests"]}
    for key, prefix in (("kernels", KERNEL), ("figures", FIGURE), ("shapes", SHAPE)):
        said = {name.removeprefix(prefix): value for suite in result["testsuites"] for case in suite["testsuite"]
                for name, value in case.items() if name.startswith(prefix)}
        if said:
            results[key] = said
    if failures or done.returncode != 0:
        raise Failed("\n".join(failures) or f"{program} ended with {done.returncode}", results)
    return results


def cases_of(machine, program, wanted):
    """Full names of the program's cases that begin with `wanted`."""
    done = machine.call([str(machine.build / program), "--gtest_list_tests"], timeout=120)
    require(done.returncode == 0, done.stderr)
    names, suite = [], ""
    for line in done.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            names.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return [name for name in names if name.startswith(wanted)]


def matrix_items(machine):
    program = "tests/equivalence/equivalence_test"
    try:
        cases = cases_of(machine, program, ("All/Matrix.", "All/Rounding."))
    except Exception:  # what is wrong with it is the item's to say
        yield Item("the cases of the matrix", "matrix", 60,
                   lambda machine, timeout: {"cases": len(cases_of(machine, program, ("All/",)))})
        return
    if machine.quick:
        cases = [case for case in cases if "CorrectnessAndParity" in case][:1]
    for begin in range(0, len(cases), CASES_A_CHUNK):
        chunk = cases[begin:begin + CASES_A_CHUNK]
        yield Item(f"matrix {begin + 1} to {begin + len(chunk)} of {len(cases)}", "matrix", 120,
                   lambda machine, timeout, chunk=chunk: gtest(machine, program, chunk, timeout))


def kernels_of_ours(machine, timeout):
    """What each family of our CUDA kernels is on this device; on a GPU none may be missing or distrusted."""
    kernels = gtest(machine, "tests/gpu/gpu_test", ["Kernels.*"], timeout).get("kernels")
    require(kernels, "the test program does not say which kernels were used")
    require(not machine.cuda or set(kernels.values()) == {"used"}, f"not all kernels of ours are used: {kernels}")
    return {"kernels": kernels}


def kernel_items(machine):
    yield Item("kernels of ours that are used", "kernels", 60, kernels_of_ours)
    yield Item("kernels and memory of the device", "kernels", 120,
               lambda machine, timeout: gtest(machine, "tests/gpu/gpu_test", ["*", "-*RealShapes*"], timeout))
    yield Item("kernels at real shapes", "kernels", 90,
               lambda machine, timeout: gtest(machine, "tests/gpu/gpu_test", ["*RealShapes*"], timeout))


def loading_items(machine):
    yield Item("the program starts without CUDA", "loading", 30, starts)
    yield Item("a run opens its device on demand", "loading", 60, opens_on_demand)
    yield Item("a device that is not there is refused", "loading", 30, refuses_a_missing_device)
    yield Item("a run's losses are the CPU's", "loading", 90, trains_as_the_cpu)


def memory_items(machine):
    yield Item("too little memory fails clearly", "memory", 60, fails_clearly_at_a_cap)
    yield Item("a run keeps its plan", "memory", 120, keeps_the_plan)


def ran_alone(entry):
    """Whether this entry of a report is of ours where Python had its turn to come, or of what only Python could do."""
    results = entry.get("results") or {}
    if "python_error" in results or not results.get("fits", True):
        return False
    rows = results.get("phases") or [results]
    return entry.get("status") == "skipped" or entry.get("status") == "passed" and any("ratio" not in row for row in rows)


def bench_call(machine, folder, arguments, timeout):
    """Rows of tools/bench, and what it said where not all are there."""
    out = folder / "bench.json"
    out.unlink(missing_ok=True)
    done = machine.call_python([str(machine.root / "tools/bench"), "--build", str(machine.build), "--device", machine.device,
                                "--library-path", machine.libraries, "--json", str(out), *arguments], timeout=timeout)
    rows = json.loads(out.read_text())["results"] if out.exists() else []
    said = (done.stdout + done.stderr)[-MOST_TEXT:] or f"tools/bench ended with {done.returncode}"
    return rows, said if done.returncode != 0 else ""


def is_too_much(said):
    return "out of memory" in said.lower()


def bench_rows(machine, folder, words, count, timeout, compare):
    """`count` rows: with Python; if that ends early one side after the other; then ours alone, with what Python said."""
    left, python = time_left(timeout), ["--python", machine.python] if compare and machine.compares else []
    rows, said = bench_call(machine, folder, words + python, left())
    if len(rows) < count and python and "--apart" not in words and "--phases" not in words:
        rows, said = bench_call(machine, folder, [*words, "--apart", *python], left())  # both at once may be too much
    if len(rows) < count and python and not is_too_much(said):
        problem = said
        rows, said = bench_call(machine, folder, words, left())
        rows = [{**row, "python_error": problem} for row in rows]
    return (rows, "") if len(rows) >= count else ([], said or f"tools/bench measured {len(rows)} of {count}")


def bench(machine, arguments, timeout, compare=True, profile=False, trace=None):
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        words = [*arguments, *(["--profile", str(folder / "profile")] if profile else [])]
        rows, said = bench_rows(machine, folder, words, 1, timeout, compare)
        if not rows and is_too_much(said):
            return {"fits": False}
        require(rows, said)
        result = rows[0]
        if "python_error" in result:
            result["python_error"] = result["python_error"][-MOST_TEXT:]
        if profile:
            keep_trace(machine, folder / "profile/trace.json", trace)
            result["profile"] = result.get("profile", "")[:MOST_TEXT]
    ours = result["ours"]
    # Without elision the engine says nothing of what it recomputes when that is all.
    if (rate := result.get("matmul_rate")) and ours.get("recomputed_flops", -1) >= 0:
        result["utilisation"] = (ours["flops"] - ours["recomputed_flops"]) / ours["seconds"] / rate
        result["busy_with_operations"] = ours["flops"] / ours["seconds"] / rate
    return result


def keep_trace(machine, trace, name):
    """For https://ui.perfetto.dev, beside the report, if it is not too large to travel."""
    if not name or not trace.exists():
        return
    packed = gzip.compress(trace.read_bytes(), 6)
    if len(packed) <= MOST_TRACE:
        machine.report.mkdir(parents=True, exist_ok=True)
        (machine.report / f"trace-{name}.json.gz").write_bytes(packed)


def phases(machine, timeout):
    """The parts of a run besides its steps. Pictures are decoded by libvips, which is not carried."""
    named = "load,captions,sample,save" if machine.carried else "load,captions,pictures,sample,save"
    words = ["--phases", named, "--pairs", *(["2", "--warmup", "0"] if machine.quick else ["9", "--warmup", "2"])]
    with tempfile.TemporaryDirectory() as folder:
        rows, said = bench_rows(machine, pathlib.Path(folder), words, named.count(",") + 1, timeout, compare=True)
    require(rows, said)
    error = next((row["python_error"] for row in rows if "python_error" in row), None)
    return {"phases": rows, **({"python_error": error} if error else {})}


DEV = "dev 512 batch 1 "
WHOLE = "full+elision"  # full checkpointing as recipes have it: what nothing reads is not recomputed
OF_PYTHON = (WHOLE + "+compile", WHOLE + "+lorabf16")  # ours is the same as without


def dev_item(row, seconds, compare=False, profile=True, warmup=2):
    arguments = ["--size", "dev", "--resolution", "512", "--batch", "1", "--rows", row, "--rank", "32", "--apart",
                 "--warmup", str(warmup)]

    def run(machine, timeout):
        if "fp8w8a8" in row and machine.capability() < FP8_PRODUCTS:
            raise Skipped(f"compute capability {machine.capability()}; products of 8-bit floats need {FP8_PRODUCTS}")
        if row in OF_PYTHON and not machine.compares:
            raise Skipped(f"not possible: {machine.sides[1]}")
        return bench(machine, arguments, timeout, compare, profile, "dev" if row == WHOLE else None)  # one is enough

    return Item(f"bench {DEV}{row}", "bench", seconds, run, compare)


def dev_items(machine):
    """What the targets of the report are read from, the shortest way first."""
    if machine.quick:
        yield Item(f"bench {DEV}plan", "bench", 30, plan_of_dev)
        return
    yield dev_item(WHOLE, 150, compare=True)
    yield Item(f"bench {DEV}plan", "bench", 30, plan_of_dev)
    yield dev_item(WHOLE + "+fp8", 60)
    yield dev_item(WHOLE + "+fp8w8a8", 60)
    yield dev_item(WHOLE + "+fp8w8a8fast", 60, profile=False)
    yield dev_item(WHOLE + "+compile", 300, compare=True, profile=False, warmup=3)
    yield dev_item(WHOLE + "+lorabf16", 150, compare=True, profile=False)
    yield dev_item(WHOLE + "+int8w8a8", 60)
    yield dev_item("full", 60, profile=False)
    yield dev_item(WHOLE + "+plain", 60)


def plan_of_dev(machine, timeout):
    """`trainer plan` for what the bench measures: headers of dev's shapes, nothing else of it."""
    os.environ.update(TRAINER_PROGRAM=str(machine.program), TRAINER_SOURCE_ROOT=str(machine.root))
    sys.path.insert(0, str(machine.root / "tests/e2e"))
    import headers
    with tempfile.TemporaryDirectory() as text:
        weights, recipe = pathlib.Path(text) / "dev.safetensors", pathlib.Path(text) / "dev.toml"
        headers.write_sparse(weights, headers.transformer())
        recipe.write_text(headers.dev_recipe(weights))
        changes = ['memory.strategies=["full_checkpointing"]', "sample.prompts=[]", "train.batch_size=1",
                   "train.micro_batch_size=1", "train.caption_dropout=0", "adapter.rank=32", "data.0.resolution=[512]"]
        words = [str(machine.program), "--json", "plan", str(recipe)]
        for change in changes:
            words += ["--set", change]
        done = machine.call(words, timeout=timeout)
    require(done.returncode == 0, done.stderr)
    plan = json.loads(done.stdout)
    device, step = plan["devices"][0], plan["step"]
    parts = ("weights", "adapter", "optimizer", "data", "gradients", "kept_activations", "transient")
    return {"planned": device["total"] - device["first_step"], "first_step": device["total"], "flops": step["flops"],
            "parts": {part: device[part] for part in parts},
            "flops_without_recomputation": step["flops"] / step["over_no_recomputation"]}


def other_bench_items(machine):
    def item(name, *arguments, seconds=90.0, **more):
        return Item("bench " + name, "bench", seconds,
                    lambda machine, timeout: bench(machine, [str(a) for a in arguments], timeout, **more), compares=True)

    yield Item("bench phases", "bench", 60 if machine.quick else 120, phases, compares=True)
    if machine.quick:
        yield item("a cut of klein4b", "--size", "klein4b", "--blocks", 1, "--heads", 1, "--height", 4, "--width", 4,
                   "--tokens", 8, "--pairs", 2, "--warmup", 1, "--rows", WHOLE, seconds=60, profile=True, trace="cut")
        return
    shapes = [(size, *shape) for size in ("klein4b", "klein9b", "dev")
              for shape in ((512, 1), (1024, 1), (512, 4), (1024, 4)) if (size, *shape) != ("dev", 512, 1)]
    for size, resolution, batch in sorted(shapes, key=lambda shape: shape[1] * shape[1] * shape[2]):
        for row in ["none", WHOLE] if (resolution, batch) == (512, 1) else [WHOLE]:
            yield item(f"{size} {resolution} batch {batch} {row}", "--size", size, "--resolution", resolution,
                       "--batch", batch, "--rows", row, "--rank", 32, *(["--apart"] if size == "dev" else []),
                       seconds=150 if size == "dev" else 90)


def items(machine, parts):
    """Those of these parts, in order: a device's time is short, and what the targets need comes first."""
    matrix = list(matrix_items(machine)) if "matrix" in parts else []
    groups = [("loading", loading_items(machine)), ("kernels", kernel_items(machine)), ("matrix", matrix[:1]),
              ("bench", dev_items(machine)), ("memory", memory_items(machine))]
    first = [item for part, group in groups if part in parts for item in group]
    others, rest = list(other_bench_items(machine)) if "bench" in parts else [], matrix[1:]
    each = -(-len(rest) // len(others)) if others else len(rest)  # in turns, so that a short time shows some of both
    for number, item in enumerate(others):
        first += [item, *rest[number * each:(number + 1) * each]]
    return first + (rest if not others else [])
