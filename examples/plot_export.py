"""
A model in one file, without PyTorch
====================================

A trained model often has to run where neither PyTorch nor this library is installed. Exported to
ONNX it is one file that carries its weights, and the facts of its training data with them. Before
the file is written, ONNX Runtime answers with it and is compared with the model.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fredholm.estimators import FredholmClassifier
from fredholm.export import export_onnx

# %%
# A small model of handwritten digits, eight by eight pixels each:

digits = load_digits()
images = (digits.images / 16).astype(np.float32)[..., None]
train, test, labels, truth = train_test_split(images, digits.target, train_size=900, random_state=0)

model = FredholmClassifier(dim=32, depth=1, epochs=18, lr=0.01, random_state=0)
model.fit(train, labels)
print(f"accuracy {model.score(test, truth):.3f}")

# %%
# Export. The classes' names travel inside the file:

path = Path(tempfile.mkdtemp()) / "digits.onnx"
export_onnx(model.model_, path, metadata={"classes": [str(name) for name in model.classes_]})
print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")

# %%
# From here on only NumPy and ONNX Runtime are needed. Pictures go in as (batch, channels, height,
# width), standardised as the training data were.

session = onnxruntime.InferenceSession(str(path))
classes = np.array(json.loads(session.get_modelmeta().custom_metadata_map["classes"]))
mean, std = model.facts_["mean"][0], model.facts_["std"][0]


def classify(pictures: np.ndarray) -> np.ndarray:
    """Return the classes of pictures (batch, height, width, 1), without PyTorch."""
    pixels = (pictures.transpose(0, 3, 1, 2) - mean) / std
    (outputs,) = session.run(None, {"inputs": pixels.astype(np.float32)})
    return classes[outputs.argmax(-1)]


found = classify(test)
same = found == model.predict(test).astype(str)
print(f"the same answers for {same.mean():.1%} of {len(test)} pictures")

# %%
# Ten test pictures with the class that the file gives them; wrong ones in red.

figure, axes = plt.subplots(1, 10, figsize=(9, 1.4), layout="constrained")
for axis, picture, name, label in zip(axes, test, found, truth):
    axis.imshow(picture[..., 0], cmap="gray_r")
    axis.set_title(name, color="black" if name == str(label) else "tab:red")
    axis.set(xticks=[], yticks=[])
plt.show()

# %%
# Number and size of the pictures are free in this file, and so are the lengths of texts and series.
# Causal text models are exported token by token, with their state: :doc:`/export`.
