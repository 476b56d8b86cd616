"""What tools/gpu_check runs: parts made of items, each a call of a few seconds to minutes that is judged by itself."""
import dataclasses
import json
import pathlib
import resource
import subprocess
import tempfile
import typing

UNAVAILABLE, OUT_OF_MEMORY = 69, 80  # docs/exit-codes.md
PARTS = ("loading", "kernels", "memory", "matrix", "bench")
CASES_A_CHUNK = 6


class Failed(Exception):
    """What was expected and what came."""


@dataclasses.dataclass
class Item:
    name: str
    part: str
    seconds: float  # it may take; an item that cannot end within the call is left for the next
    run: typing.Callable  # (Machine, timeout) -> dict of results; raises Failed


def require(condition, text):
    if not condition:
        raise Failed(text)


def error_of(done):
    """The first line of what the program says is wrong."""
    return next((line for line in done.stderr.splitlines() if line.startswith("error:")), done.stderr)


def small_run(machine, folder, *overrides, command=("run",), **more):
    """The program on tests/e2e/small.toml, on the device."""
    values = [f'placement.devices=["{machine.device}"]', f"cache.folder={machine.cache}", f"run.output={folder}/run",
              "run.steps=4", *overrides]
    words = [str(machine.program), "--json", *command, str(machine.root / "tests/e2e/small.toml")]
    for value in values:
        words += ["--set", value]
    return machine.call(words, **more)


def starts(machine, timeout):
    done = machine.call([str(machine.program), "--json", "doctor"], timeout=timeout)
    require(done.returncode == 0, done.stderr)
    facts = json.loads(done.stdout)
    require(not any("libtorch_cuda" in file for file in facts["mapped"]), "libtorch_cuda is open before it is asked for")
    return {"torch": facts["torch"], "libtorch": facts["libtorch"]}


def opens_on_demand(machine, timeout):
    with tempfile.TemporaryDirectory() as folder:
        done = small_run(machine, folder, timeout=timeout)
        require(done.returncode == 0, done.stderr)
        opened = "CUDA opened from" in done.stderr
        require(opened == machine.cuda, "CUDA was " + ("not opened" if machine.cuda else "opened for a run on the CPU"))
        return {"loss": json.loads(done.stdout)["loss"]}


def refuses_a_missing_device(machine, timeout):
    with tempfile.TemporaryDirectory() as folder:
        done = small_run(machine, folder, 'placement.devices=["cuda:63"]', timeout=timeout)
    require(done.returncode == UNAVAILABLE, f"exit code {done.returncode}, expected {UNAVAILABLE}: {done.stderr}")
    return {"message": error_of(done)}


def capped(machine, folder, timeout):
    """A run that may take too little: of the device by its allocator's own limit, on the CPU of the address space."""
    if machine.cuda:
        fraction = 32e6 / machine.device_bytes()
        return small_run(machine, folder, timeout=timeout,
                         env={"PYTORCH_ALLOC_CONF": f"per_process_memory_fraction:{fraction:.6f}"})
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
    rows = {}
    tried = ("[]", '["full_checkpointing"]', '["full_checkpointing", "fp8_weight_only"]')
    for strategies in tried[-1:] if machine.quick else tried:
        with tempfile.TemporaryDirectory() as folder:
            override = f"memory.strategies={strategies}"
            plan = small_run(machine, folder, override, command=("plan",), timeout=timeout)
            require(plan.returncode == 0, plan.stderr)
            done = small_run(machine, folder, override, timeout=timeout)
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
        done = machine.call([str(machine.build / program), f"--gtest_output=json:{out}", "--gtest_filter=" + ":".join(cases)],
                            timeout=timeout)
        require(out.exists(), f"{program} ended with {done.returncode} and left no results: {done.stderr[-2000:]}")
        result = json.loads(out.read_text())
    failures = [f"{suite['name']}.{case['name']}: {case['failures'][0]['failure'][:1500]}"
                for suite in result["testsuites"] for case in suite["testsuite"] if case.get("failures")]
    require(not failures and done.returncode == 0, "\n".join(failures) or f"{program} ended with {done.returncode}")
    return {"cases": result["tests"]}


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
    cases = cases_of(machine, program, ("All/Matrix.", "All/Rounding."))
    if machine.quick:
        cases = [case for case in cases if "CorrectnessAndParity" in case][:1]
    for begin in range(0, len(cases), CASES_A_CHUNK):
        chunk = cases[begin:begin + CASES_A_CHUNK]
        yield Item(f"matrix {begin + 1} to {begin + len(chunk)} of {len(cases)}", "matrix", 180,
                   lambda machine, timeout, chunk=chunk: gtest(machine, program, chunk, timeout))


def bench(machine, arguments, timeout):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "bench.json"
        words = [machine.python, str(machine.root / "tools/bench"), "--build", str(machine.build), "--device", machine.device,
                 "--json", str(out), *arguments]
        if machine.compares and "--python" not in arguments:
            words += ["--python", machine.python]
        done = machine.call(words, timeout=timeout)
        if not out.exists() and "out of memory" in (done.stdout + done.stderr).lower():
            return {"fits": False}
        require(done.returncode == 0 and out.exists(), done.stderr[-2000:] or done.stdout[-2000:])
        result = json.loads(out.read_text())["results"][0]
    if rate := result.get("matmul_rate"):
        work = result["ours"]["flops"] - max(0, result["ours"]["recomputed_flops"])
        result["utilisation"] = work / result["ours"]["seconds"] / rate
    return result


def bench_items(machine):
    def item(name, *arguments, seconds=300.0):
        return Item("bench " + name, "bench", seconds,
                    lambda machine, timeout: bench(machine, [str(a) for a in arguments], timeout))

    if machine.quick:
        yield item("a cut of klein4b", "--size", "klein4b", "--blocks", 1, "--heads", 1, "--height", 4, "--width", 4,
                   "--tokens", 8, "--pairs", 2, "--warmup", 1, "--rows", "full", seconds=60)
        return
    rows = ["full", "none", "full+fp8", "full+fp8w8a8", "full+int8w8a8"] + (["full+compile"] if machine.compares else [])
    for size in ("klein4b", "klein9b", "dev"):
        for resolution, batch in ((512, 1), (1024, 1), (512, 4), (1024, 4)):
            for row in rows if (resolution, batch) == (512, 1) else rows[:1]:
                yield item(f"{size} {resolution} batch {batch} {row}", "--size", size, "--resolution", resolution, "--batch",
                           batch, "--rows", row, "--rank", 32)


def items(machine):
    """All of them, in order."""
    yield Item("the program starts without CUDA", "loading", 30, starts)
    yield Item("a run opens its device on demand", "loading", 60, opens_on_demand)
    yield Item("a device that is not there is refused", "loading", 30, refuses_a_missing_device)
    yield Item("kernels and memory of the device", "kernels", 120,
               lambda machine, timeout: gtest(machine, "tests/gpu/gpu_test", ["*"], timeout))
    yield Item("too little memory fails clearly", "memory", 60, fails_clearly_at_a_cap)
    yield Item("a run keeps its plan", "memory", 120, keeps_the_plan)
    yield from matrix_items(machine)
    yield from bench_items(machine)
