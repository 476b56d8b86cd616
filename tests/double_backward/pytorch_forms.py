"""The double-backward bug in PyTorch itself: a trained modulation that all blocks read, in each form in which it can reach
a recomputed block. Prints one line a form and way of checkpointing; docs/double-backward.md tells the story.

    pytorch_forms.py [--json FILE]

The model is the miniature of tests/unit/sdk/toy.hpp: a modulation made once outside the blocks, four modulated blocks.
Each form runs with torch.utils.checkpoint in both ways, with inputs of the blocks that need a gradient and that need
none, with one backward and with two of one graph. The judge is the same form without checkpointing.
"""

import argparse
import itertools
import json
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS, BLOCKS = 24, 6, 4
WAYS = {"reentrant": True, "non-reentrant": False}
OUTER = ("linear", "add-only")


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mod):
        shift, scale, gate = mod.chunk(3, -1)
        h = nn.functional.layer_norm(x, (WIDTH,)) * (1 + scale) + shift
        return x + gate * self.down(nn.functional.silu(self.up(h)))


class Model(nn.Module):
    """`outer`: what makes the modulation: linear layers, which keep tensors for their backward, or additions, which do not."""

    def __init__(self, outer):
        super().__init__()
        torch.manual_seed(1)
        if outer == "linear":
            self.time, self.modulation = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.table = nn.Parameter(torch.randn(1, 4 * WIDTH))
        self.outer = outer
        self.blocks = nn.ModuleList(Block(index) for index in range(BLOCKS))
        self.x, self.t = torch.randn(ROWS, WIDTH), torch.randn(1, WIDTH)

    def make_modulation(self):
        if self.outer == "linear":
            return self.modulation(nn.functional.silu(self.time(self.t)))
        return (self.table + 0.5)[:, : 3 * WIDTH]


# Each form: how block `block` gets `mod`, as (function to checkpoint, positional arguments, keyword arguments).
# `kept` is a dict that lives as long as the model: the member of an object.
def argument(block, x, mod, kept):
    return block, (x, mod), {}


def in_a_tuple(block, x, mod, kept):
    return lambda x, pair: block(x, pair[0]), (x, (mod, 1)), {}


def keyword(block, x, mod, kept):
    return lambda x, mod=None: block(x, mod), (x,), {"mod": mod}


def captured(block, x, mod, kept):
    return lambda x: block(x, mod), (x,), {}


def member(block, x, mod, kept):
    kept["mod"] = mod
    return lambda x: block(x, kept["mod"]), (x,), {}


def made_by_the_first_block(block, x, mod, kept):
    """The first block makes a tensor of its argument every time it runs; the others find it."""

    def run(x, mod):
        if block.index == 0:
            kept["mod"] = nn.functional.silu(mod)
        return block(x, kept["mod"])

    return run, (x, mod), {}


def made_once(block, x, mod, kept):
    """The same, but it is made only where it is not there yet: the recompute finds the forward's."""

    def run(x, mod):
        if "mod" not in kept:
            kept["mod"] = nn.functional.silu(mod)
        return block(x, kept["mod"])

    return run, (x, mod), {}


# Names as in tests/double_backward/forms_test.cpp and in the table of docs/double-backward.md.
FORMS = {"Argument": argument, "Tuple": in_a_tuple, "Keyword": keyword, "Capture": captured, "Member": member,
         "EarlierBlock": made_by_the_first_block, "MadeOnce": made_once}  # fmt: skip


def gradients(form, outer, reentrant, input_grad, backwards):
    """Gradients by name after `backwards` backwards of one graph, and how often the modulation's first parameter heard of
    its gradient. `reentrant` None: nothing is recomputed."""
    model, kept, heard = Model(outer), {}, [0]
    first = next(model.parameters())
    first.register_hook(lambda grad: heard.__setitem__(0, heard[0] + 1))
    x = model.x.requires_grad_(input_grad)
    mod = model.make_modulation()
    for block in model.blocks:
        run, args, kwargs = form(block, x, mod, kept)
        x = run(*args, **kwargs) if reentrant is None else checkpoint(run, *args, use_reentrant=reentrant, **kwargs)
    # The modulation is read outside the blocks too, as the final norm of a diffusion transformer does.
    loss = (x * (1 + mod[:, :WIDTH])).pow(2).mean()
    for left in reversed(range(backwards)):
        loss.backward(retain_graph=left > 0)
    return {name: p.grad for name, p in model.named_parameters()}, heard[0]


def outcome(form, outer, reentrant, input_grad, backwards):
    """What comes of it: {"result": equal | wrong | error, ...}."""
    expected, once = gradients(form, outer, None, input_grad, backwards)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found, heard = gradients(form, outer, reentrant, input_grad, backwards)
        except (RuntimeError, ValueError) as error:
            return {"result": "error", "error": type(error).__name__, "message": str(error).split(". ")[0].strip()}
    zero = torch.zeros(())
    errors = {name: float(((zero if found[name] is None else found[name]) - grad).abs().max() / grad.abs().max())
              for name, grad in expected.items()}
    worst = max(errors, key=errors.get)
    return {"result": "equal" if errors[worst] < 1e-5 else "wrong", "worst": errors[worst], "tensor": worst,
            "without": sum(grad is None for grad in found.values()), "of": len(found), "hooks": heard / once,
            "warned": any("requires_grad" in str(one.message) for one in caught)}  # fmt: skip


def text_of(one):
    if one["result"] == "error":
        return f"{one['error']}: {one['message']}"
    parts = [f"{one['result']}, worst error {one['worst']:.1e}"]
    if one["result"] == "wrong":
        parts.append(f"{one['without']} of {one['of']} tensors without a gradient")
        parts.append("with a warning" if one["warned"] else "no warning")
    if one["hooks"] > 1:
        parts.append(f"hooks fire {one['hooks']:g} times as often")
    return ", ".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write what is printed to this file, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for (name, form), (way, reentrant), outer, input_grad, backwards in itertools.product(
        FORMS.items(), WAYS.items(), OUTER, (False, True), (1, 2)
    ):
        row = {"form": name, "way": way, "outer": outer, "input_grad": input_grad, "backwards": backwards,
               **outcome(form, outer, reentrant, input_grad, backwards)}  # fmt: skip
        rows.append(row)
        print(f"{name:13s} {way:14s} {outer:9s} inputs {'with' if input_grad else 'without':7s} gradient, "
              f"{backwards} backward{'s' if backwards > 1 else ' '}: {text_of(row)}")  # fmt: skip
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"torch": torch.__version__, "rows": rows}, file)


if __name__ == "__main__":
    main()
