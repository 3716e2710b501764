"""
What a vision transformer finds central
=======================================

Attention makes a graph of the patches of a picture: an edge says that one patch reads another.
On a graph one can ask which node is *central*. Here a small vision transformer learns to tell
three patterns apart, wherever they lie, and then shows which patches it found central, although
nobody told it where to look.
"""

import torch
from matplotlib import pyplot as plt

from fredholm.explain import image_maps
from fredholm.models import create_model

torch.manual_seed(0)

# %%
# Horizontal bars, vertical bars or a chessboard, twelve pixels wide, somewhere in a noisy picture.

SIZE, PATTERN = 32, 12
stripe = torch.arange(PATTERN) // 2 % 2
patterns = torch.stack(
    [
        stripe[:, None].expand(PATTERN, PATTERN),
        stripe[None].expand(PATTERN, PATTERN),
        (stripe[:, None] + stripe[None]) % 2,
    ]
).float()


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return pictures, their classes, and masks of where the patterns lie."""
    classes = torch.randint(0, 3, (count,))
    images = 0.4 * torch.rand(count, 1, SIZE, SIZE)
    masks = torch.zeros(count, SIZE, SIZE)
    corners = torch.randint(0, SIZE - PATTERN + 1, (count, 2)).tolist()
    for image, mask, name, (row, column) in zip(images, masks, classes, corners):
        place = (slice(row, row + PATTERN), slice(column, column + PATTERN))
        image[0][place] += patterns[name]
        mask[place] = 1
    return images, classes, masks


# %%
# A transformer of two layers on patches of 4 × 4 pixels. Its operator is InfSA, whose weights are
# those of a token graph; ``softmax`` would do as well.

model = create_model(
    "itnet_nano",
    encoder={"image_size": (SIZE, SIZE), "patch": 4, "positions": "learned", "token": "reader"},
    body={"dim": 32, "depth": 2, "heads": 2, "operator": "infsa"},
    head={"outputs": 3},
)
STEPS = 300
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
for _ in range(STEPS):
    images, classes, _ = pictures(32)
    loss = torch.nn.functional.cross_entropy(model(images), classes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

model.eval()
images, classes, masks = pictures(200)
with torch.no_grad():
    accuracy = (model(images).argmax(-1) == classes).float().mean()
print(f"accuracy on new pictures: {accuracy:.3f}")

# %%
# Three maps of the same pictures. *Attention* is what the read-out takes from each patch in the
# last layer. *Centrality* counts all walks that end at a patch, on the graph of that layer.
# *Rollout* follows what each patch passed on through both layers.

methods = {"attention": "attention", "centrality": "incoming", "rollout": "rollout"}
maps = {name: image_maps(model, images, method=method) for name, method in methods.items()}

share = masks.mean()
patches = torch.nn.functional.avg_pool2d(masks[:, None], 4)[:, 0]
print(f"the patterns cover {share:.0%} of the pictures")
for name, found in maps.items():
    print(f"{name:11s} {(found * patches).sum((1, 2)).mean():.0%} of the map lies on the pattern")

# %%

figure, axes = plt.subplots(4, 8, figsize=(9, 4.6), layout="constrained")
for column in range(8):
    axes[0, column].imshow(images[column, 0], cmap="gray_r")
    for row, found in enumerate(maps.values(), start=1):
        axes[row, column].imshow(found[column], cmap="magma")
for axis, name in zip(axes[:, 0], ["picture", *maps]):
    axis.set_ylabel(name)
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
plt.show()

# %%
# Some maps have a second bright patch where nothing is: the model uses a patch of background as a
# hub, and centrality shows that too. For a model of your own, or of transformers or timm,
# ``fredholm explain path/to/vit --data cifar10`` writes a page of them, and measures how faithful
# they are by blackening patches; see :doc:`/infsa`.
