"""
A decoder made linear, and what it remembers
============================================

Softmax attention keeps the keys and values of every token it has read. Linear attention keeps one
matrix of fixed size. Something has to be lost: but what, and how far back? Here a small decoder
that recalls what it was told is made linear, and asked again.
"""

import torch
from matplotlib import pyplot as plt
from transformers import LlamaForCausalLM

from fredholm import linearize
from fredholm.convert import replace_attention
from fredholm.training import StageOptions

torch.manual_seed(0)

# %%
# The task: six pairs of a key and a value, then the keys again in another order. After each key the
# decoder has to say the value that stood beside it.

KEYS, VALUES, PAIRS = 8, 8, 6
DISTANCES = range(2, 4 * PAIRS, 2)


def texts(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens (B, 24) and, for each question, how many tokens ago its answer was told."""
    keys = torch.rand(count, KEYS).argsort(-1)[:, :PAIRS]
    values = torch.randint(KEYS, KEYS + VALUES, (count, PAIRS))
    order = torch.rand(count, PAIRS).argsort(-1)
    told = torch.stack([keys, values], -1)
    asked = torch.stack([keys.gather(1, order), values.gather(1, order)], -1)
    distance = 2 * (PAIRS + torch.arange(PAIRS) - order)
    return torch.cat([told.flatten(1), asked.flatten(1)], 1), distance


tokens, _ = texts(1)
print("told :", *tokens[0, : 2 * PAIRS].tolist())
print("asked:", *tokens[0, 2 * PAIRS :].tolist())

# %%
# A decoder of two layers that has learned this; its weights lie beside this file.

teacher = LlamaForCausalLM.from_pretrained("recall_decoder", dtype=torch.float32).eval()


def recall(model: torch.nn.Module) -> torch.Tensor:
    """Return, for every distance, the share of questions answered rightly."""
    tokens, distance = texts(1000)
    with torch.no_grad():
        answers = model(tokens).logits[:, 2 * PAIRS :: 2].argmax(-1)
    right = (answers == tokens[:, 2 * PAIRS + 1 :: 2]).float()
    return torch.stack([right[distance == d].mean() for d in DISTANCES])


found = {"softmax": recall(teacher)}

# %%
# First the conversion alone: fixed features, nothing trained, with and without a window in which
# the last eight tokens keep softmax.

for name, window in {"linear": None, "linear, window of 8": 8}.items():
    converted = replace_attention(teacher, "elu", window=window, sinks=0).model
    found[name] = recall(converted.eval())

# %%
# Then :func:`fredholm.linearize`: its features learn to imitate the teacher's attention (*distil*),
# and the whole model to give the teacher's answers (*match*).

data = [(row[:-1], row[1:]) for row in texts(1000)[0]]
nothing = StageOptions(epochs=0)
match = StageOptions(epochs=3, lr=3e-3, batch_size=32)
for name, stage in {"features trained": nothing, "all trained": match}.items():
    conversion = linearize(
        teacher,
        to="hedgehog",
        data=(data[:900], data[900:]),
        task="tokens",
        window=None,
        distil=StageOptions(epochs=2, lr=1e-2, batch_size=32),
        match=stage,
        tune=nothing,
    )
    found[name] = recall(conversion.model.eval())

for name, shares in found.items():
    print(f"{name:20s} {shares.mean():.0%} of the questions answered rightly")

# %%

figure, axis = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for name, shares in found.items():
    axis.plot(DISTANCES, shares, "o-", label=name, alpha=0.8)
axis.axhline(1 / VALUES, color="gray", linestyle=":", label="guessing")
axis.set(xlabel="tokens since the answer was told", ylabel="right answers", ylim=(0, 1.05))
axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %%
# Fixed features hardly tell the keys apart. A window answers perfectly from what it holds, and
# knows nothing beyond it. Once the features have learned, six pairs fit into the state, whatever
# the distance. A language model has more to remember than that: :doc:`/results/smollm2` measures
# what a real one lost, and :doc:`/linearize` shows how to convert your own.
