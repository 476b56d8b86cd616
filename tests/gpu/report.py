"""The report of tools/gpu_check as text: what passed, the bench, and how far the targets are met."""
import json

from checks import DEV, WHOLE

BENCH = "bench " + DEV
STAYS = ("weights", "adapter", "optimizer", "data")  # parts of the plan that are there between steps


def result_of(items, name):
    """The results of an item that ran to its end on a device that can, or nothing."""
    found = items.get(name, {})
    return found.get("results") if found.get("status") == "passed" and found.get("results", {}).get("fits", True) else None


def faster(items, row):
    """How many times as fast ours is as Python's side of the same row."""
    found = result_of(items, BENCH + row)
    return 1 / found["ratio"]["median"] if found and "ratio" in found else None


def over_weight_only(items, row):
    plain, packed = result_of(items, BENCH + WHOLE + "+fp8"), result_of(items, BENCH + row)
    return plain["ours"]["seconds"] / packed["ours"]["seconds"] if plain and packed else None


def utilisation(items, key="utilisation"):
    found = result_of(items, BENCH + WHOLE)
    return found.get(key) if found else None


def off_the_plan(items):
    found, plan = result_of(items, BENCH + WHOLE), result_of(items, BENCH + "plan")
    if not found or not plan or "peak_bytes" not in found["ours"]:
        return None
    return found["ours"]["peak_bytes"] / plan["planned"] - 1


def targets(items):
    """Rows of: what, what is wanted, the value as text, whether it is met (None: not measured), whose profile says why."""
    def at_least(what, wanted, value, row, form="{:.2f} x"):
        text = form.format(value) if value is not None else "-"
        return what, "at least " + form.format(wanted), text, None if value is None else value >= wanted, row

    off = off_the_plan(items)
    return [
        at_least("bf16 against diffusers + peft", 1.25, faster(items, WHOLE), WHOLE),
        at_least("bf16 against torch.compile of its blocks", 1.0, faster(items, WHOLE + "+compile"), WHOLE),
        at_least("fp8_w8a8 against fp8_weight_only", 2.0, over_weight_only(items, WHOLE + "+fp8w8a8"), WHOLE + "+fp8w8a8"),
        at_least("the model's operations, of the card's bf16 matmul rate", 0.6, utilisation(items), WHOLE, "{:.1%}"),
        ("peak memory against the plan", "within 3 %", "-" if off is None else f"{off:+.2%}",
         None if off is None else abs(off) <= 0.03, WHOLE)]


def kernel_lines(items):
    """Which of our CUDA kernels ran: they are tried against the CPU's when a device is met, and LibTorch's operators take
    the place of those that fail. An item that failed still says it in its text."""
    found = [r["results"]["kernels"] for r in items.values() if r.get("results", {}).get("kernels")]
    if not found:
        return []
    rows = [f"| {name} | {state} |" for name, state in found[0].items()]
    return ["", "## CUDA kernels of ours", "", "used: carried, and computes here what the CPU computes; distrusted: computes "
            "something else, or fails; missing: not carried or not to be opened. Of the last two LibTorch's operators are used.",
            "", "| kernels | |", "|---|---|", *rows]


def figure_lines(items):
    """Errors that the test program measured."""
    found = {name: value for r in items.values() for name, value in ((r.get("results") or {}).get("figures") or {}).items()}
    rows = [f"| {name.replace('_', ' ')} | {value} |" for name, value in found.items()]
    return ["", "## Errors of products in 8 bits", "", "Against exact sums of the same 8-bit numbers, as a part of the "
            "result's norm, with 6,144 numbers in a sum.", "", "| sums | error |", "|---|---|", *rows] if rows else []


def shape_lines(items):
    """Kernels at FLUX.2-dev's sizes: error, and time as the test program says them; a backward only where there is one."""
    found = {name: value.split() for r in items.values() for name, value in ((r.get("results") or {}).get("shapes") or {}).items()}
    rows = [f"| {name.replace('_', ' ')} | {' | '.join(said + ['-'] * (5 - len(said)))} |" for name, said in found.items()]
    return ["", "## Kernels at real shapes", "", "Rows of width 6,144 in bf16, their number behind the name. Error: the largest of "
            "result and gradients against fp64, as a part of the largest number. Rate: bytes that must be read and written, of what "
            "a copy does in the time.", "", "| operation | error | forward, ms | rate | backward, ms | rate |", "|---|---|---|---|---|---|",
            *rows] if rows else []


def memory_lines(items):
    """Where the bytes are: what the plan counts, beside what the allocator held between steps and at most."""
    ours, plan = result_of(items, BENCH + WHOLE)["ours"], result_of(items, BENCH + "plan")
    parts, live = plan["parts"], ours["live_bytes"]
    stays = sum(parts[name] for name in STAYS)

    def row(what, planned, measured):
        return f"| {what} | {planned / 1e6:,.1f} | {measured if measured == '' else f'{measured / 1e6:,.1f}'} |"

    rows = [row(f"stays: {', '.join(STAYS)}", stays, live), *(row(f"- {name}", parts[name], "") for name in STAYS),
            row("above it in a step", plan["planned"] - stays, ours["peak_bytes"] - live),
            *(row(f"- {name}", size, "") for name, size in parts.items() if name not in STAYS),
            row("peak", plan["planned"], ours["peak_bytes"])]
    return ["", "Where the memory of a step is, in MB:", "", "| part | planned | by the allocator |", "|---|---|---|",
            *(line.replace("_", " ") for line in rows)]


def why_not(items, row):
    """Of a target that was not measured."""
    entry = items.get(BENCH + row, {})
    said = "not possible" in entry.get("detail", "") or "python_error" in (entry.get("results") or {})
    return "not possible, see below" if said else "not measured"


def target_lines(items):
    rows = targets(items)
    if all(met is None for *_, met, _ in rows):
        return []
    lines = ["", "## Targets", "", "FLUX.2-dev's shapes, LoRA of rank 32, 512 squared, batch 1, full checkpointing (ours leaves "
             "out what nothing reads, as recipes do).", "", "| target | wanted | value | |", "|---|---|---|---|"]
    lines += [f"| {what} | {wanted} | {value} | {why_not(items, row) if met is None else 'met' if met else '**missed**'} |"
              for what, wanted, value, met, row in rows]
    more = [("bf16 against diffusers + peft with LoRA weights in bf16", faster(items, WHOLE + "+lorabf16"), "{:.2f} x"),
            ("fp8_w8a8 with fast_accumulation against fp8_weight_only", over_weight_only(items, WHOLE + "+fp8w8a8fast"), "{:.2f} x"),
            ("int8_w8a8 against fp8_weight_only", over_weight_only(items, WHOLE + "+int8w8a8"), "{:.2f} x"),
            ("operations with recomputed ones, of the card's rate", utilisation(items, "busy_with_operations"), "{:.1%}")]
    lines += [f"| {what} | - | {form.format(value)} | |" for what, value, form in more if value is not None]
    *times, (*_, memory_met, _) = rows
    if memory_met is False:
        lines += memory_lines(items)
    for row in dict.fromkeys(row for *_, met, row in times if met is False):
        profile = (result_of(items, BENCH + row) or {}).get("profile")
        lines += ["", f"Where a step of `{row}` goes:", "", "```", profile or "no profile was taken", "```"]
    return lines


def bench_row(name, r):
    if not r.get("ours"):
        return f"| {name} | does not fit | | | | |"
    both = [f"{r[side]['seconds']:.4f}" for side in ("ours", "python") if side in r]
    ratio = "Python failed" if "python_error" in r else "-"
    if "ratio" in r:
        ratio = f"{r['ratio']['median']:.3f} ({r['ratio']['quartiles'][0]:.3f}-{r['ratio']['quartiles'][1]:.3f})"
    peaks = [f"{r[side]['peak_bytes'] / 1e6:.1f}" for side in ("ours", "python") if "peak_bytes" in r.get(side, {})]
    rate = f"{r['matmul_rate'] / 1e12:.1f}" if "matmul_rate" in r else "-"
    use = f"{r['utilisation']:.1%}" if "utilisation" in r else "-"
    return f"| {name} | {' / '.join(both)} | {ratio} | {' / '.join(peaks) or '-'} | {rate} | {use} |"


def phase_lines(items):
    """Seconds of the parts of a run besides its steps, and how many captions or pictures a second."""
    rows = [row for r in items.values() for row in r.get("results", {}).get("phases", ())]
    if not rows:
        return []
    lines = ["", "| phase (the quickstart's model) | seconds, ours / Python | a second | ratio |", "|---|---|---|---|"]
    for row in rows:
        sides = [row[name]["seconds"] for name in ("ours", "python") if name in row]
        rates = " / ".join(f"{row['count'] / seconds:.1f}" for seconds in sides) if row["count"] > 1 else "-"
        ratio = f"{row['ratio']['median']:.3f}" if "ratio" in row else "-"
        lines.append(f"| {row['phase']} | {' / '.join(f'{seconds:.4f}' for seconds in sides)} | {rates} | {ratio} |")
    return lines


def markdown(report, left):
    facts, done = report["facts"], report["items"]
    count = {kind: sum(r["status"] == kind for r in done.values()) for kind in ("passed", "failed", "skipped")}
    lines = ["# Report of the GPU suite", "", *(f"* {key}: {value}" for key, value in facts.items()), "",
             f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped, {left} not run yet.",
             *target_lines(done), *kernel_lines(done), *figure_lines(done),
             *shape_lines(done), "", "## Items", "", "| part | item | result | seconds |", "|---|---|---|---|"]
    lines += [f"| {r['part']} | {name} | {r['status']} | {r['seconds']} |" for name, r in done.items()]
    rows = [bench_row(name, r["results"]) for name, r in done.items()
            if r["part"] == "bench" and ("ours" in r.get("results", {}) or "fits" in r.get("results", {}))]
    if rows:
        lines += ["", "| bench | seconds, ours / Python | ratio | peak of tensors, MB | bf16 matmul, TFLOP/s | utilisation |",
                  "|---|---|---|---|---|---|", *rows]
    lines += phase_lines(done)
    for name, r in done.items():
        if r["status"] in ("failed", "unfinished", "skipped"):
            lines += ["", f"## {r['status'].capitalize()}: {name}", "", "```", r["detail"], "```"]
        elif r["part"] in ("loading", "memory"):
            lines += ["", f"{name}: `{json.dumps(r['results'])}`"]
        if error := (r.get("results") or {}).get("python_error"):
            lines += ["", f"## Python failed: {name}", "", "```", error.strip(), "```"]
    return "\n".join(lines) + "\n"
