"""The double-backward bug in PyTorch itself: a trained modulation that all blocks read, in each form in which it can reach
a recomputed block. Prints the PyTorch half of the first table of docs/double-backward.md, which tells the story.

The model is the miniature of tests/unit/sdk/toy.hpp: a modulation made once outside the blocks, four modulated blocks.
Each form runs with torch.utils.checkpoint in both ways, with blocks whose inputs need a gradient and whose inputs need
none, with one backward and with two of one graph. The judge is the same form without checkpointing.
"""

import itertools
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS, BLOCKS = 24, 6, 4
OUTER = {"Linear": "linear", "AddOnly": "add-only"}


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


# What PyTorch says -> what the table says.
MESSAGES = {
    "Trying to backward through the graph a second time": "backward through the graph a second time",
    "Unexpected keyword arguments": "keyword arguments",
    "A different number of tensors was saved": "a different number of tensors was saved",
}


def outcome(*case):
    """In the words of the table. `case`: form, outer, reentrant, input_grad, backwards."""
    form, outer, _, input_grad, backwards = case
    expected, once = gradients(form, outer, None, input_grad, backwards)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found, heard = gradients(*case)
        except (RuntimeError, ValueError) as error:
            return f"`{type(error).__name__}`: {next(short for long, short in MESSAGES.items() if long in str(error))}"
    if all(found[name] is not None and torch.equal(found[name], grad) for name, grad in expected.items()):
        text = "equal to the bit"
    else:
        zero = torch.zeros(())
        worst = max(float(((zero if found[name] is None else found[name]) - grad).abs().max() / grad.abs().max())
                    for name, grad in expected.items())  # fmt: skip
        lost = sum(grad is None for grad in found.values())
        warned = any("None of the inputs have requires_grad=True" in str(one.message) for one in caught)
        text = f"**wrong by {100 * worst:.0f} %**" if worst > 1e-5 else "equal to rounding"
        text += f", {lost} of {len(found)} tensors without a gradient" if lost else ""
        text += "" if worst <= 1e-5 else ", a warning" if warned else ", no warning"
    return text if heard == once else f"{text}; hooks fire {heard} times, not {once}"


def cell(form, outer, reentrant, input_grads):
    """What comes of one backward; of two, and of inputs with a gradient, only where that differs."""
    texts = []
    for input_grad, backwards in itertools.product(input_grads, (1, 2)):
        text = outcome(form, outer, reentrant, input_grad, backwards)
        # Each backward of the two fires the hooks: that alone is no difference.
        if not texts or text.split(";")[0] != texts[0].split(";")[0]:
            texts.append(text if backwards == 1 else f"twice: {text}")
    return "; ".join(dict.fromkeys(texts))


def main():
    torch.set_num_threads(1)
    for (name, form), (word, outer) in itertools.product(FORMS.items(), OUTER.items()):
        cells = cell(form, outer, True, [False]), cell(form, outer, True, [True]), cell(form, outer, False, [False, True])
        print(f"| `{name}{word}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
