"""Models of this library as transformers' own: a configuration, two classes of models, an image
processor.

This file imports transformers, and is imported by :mod:`fredholm.hf`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers import BatchFeature, PreTrainedConfig, PreTrainedModel
from transformers.image_processing_utils import BaseImageProcessor
from transformers.modeling_outputs import ImageClassifierOutput, SequenceClassifierOutput

from ..errors import OptionError, ShapeError
from ..models import Model, ModelConfig
from ..models.heads import Offset
from ..pictures import (
    CHANNELS,
    COVER,
    FITS,
    STRETCH,
    covered,
    fit_of,
    in_shares,
    stretched,
    unknown_range,
)

MODEL_TYPE = "fredholm"


class FredholmConfig(PreTrainedConfig):
    """The configuration of a :class:`fredholm.models.Model` where transformers looks for one.

    Args:
        model: the parts of a :class:`fredholm.models.ModelConfig`, as its ``to_dict`` gives them.
        options: of every configuration, such as ``id2label``. Another ``num_labels`` than the
            head's makes a head with as many outputs.

    Example:
        >>> from fredholm.models import model_config
        >>> config = FredholmConfig(model=model_config("itnet_nano").to_dict())
        >>> config.num_labels, config.model_config.body.operator
        (10, 'itnet')
    """

    model_type = MODEL_TYPE

    def __init__(
        self,
        model: dict[str, Any] | None = None,
        **options: Any,
    ):
        # transformers also makes configurations without arguments, to find their defaults.
        self.model = model or ModelConfig().to_dict()

        # id2label fixes the number of labels, and transformers warns of another num_labels.
        if options.get("id2label") is None:
            options.setdefault("num_labels", self.model["head"]["outputs"])
        super().__init__(**options)

    @property
    def model_config(self) -> ModelConfig:
        """The library's own configuration, with a head of ``num_labels`` outputs."""
        config = ModelConfig.from_dict(self.model)
        if config.head.outputs == self.num_labels:
            return config
        return config.replace(head={"outputs": self.num_labels})

    @classmethod
    def from_fredholm(cls, model: Model, **options: Any) -> FredholmConfig:
        """The configuration of a model, with the names of its classes where it knows them."""
        extra = getattr(model, "extra", None) or {}
        # A regression has no classes, and saves an empty list.
        classes = extra.get("classes")
        if classes:
            names = dict(enumerate(classes))
            numbers = {name: i for i, name in names.items()}
            options.setdefault("id2label", names)
            options.setdefault("label2id", numbers)
        if model.config.encoder.data == "text":
            options.setdefault("pad_token_id", 0)
        return cls(model=model.config.to_dict(), **options)


class FredholmModel(PreTrainedModel):
    """Base of both classes: a :class:`fredholm.models.Model` under ``model``."""

    config_class = FredholmConfig
    base_model_prefix = "model"
    data: ClassVar[str] = ""
    """The kind of data that the model's encoder must read."""

    def __init__(self, config: FredholmConfig):
        super().__init__(config)
        own = config.model_config
        if own.encoder.data != self.data or own.pool == "every":
            raise OptionError(
                f"{type(self).__name__}: expected an encoder of {self.data} and one answer per "
                f"sample, got {own.encoder.kind} with pool={own.pool!r}"
            )
        self.num_labels = config.num_labels
        self.model = Model(own)
        self.post_init()

    @classmethod
    def from_fredholm(cls, model: Model, **options: Any) -> Any:
        """Wrap a model: the result shares its weights.

        Args:
            model: of this library, such as ``fredholm.training.load_run(run)[0]``.
            options: of :class:`FredholmConfig`.
        """
        result = cls(FredholmConfig.from_fredholm(model, **options))
        # In the place of the model of fresh weights that the constructor made.
        result.model = model
        return result.train(model.training)

    def _init_weights(self, module: nn.Module) -> None:
        """Set what a file of weights did not: the head's offset, and parameters that were missing.

        transformers calls this per module, after loading too: it builds a model without values, and
        what is not in the file has none afterwards.
        """
        if isinstance(module, Offset):
            # The offset comes from the configuration: its buffer is not persistent.
            offset = torch.tensor(self.config.model_config.head.offset)
            module.values.data = offset.to(module.values)
        for name, part in self.model.named_modules():
            if part is module:
                self._draw_missing(name)

    def _draw_missing(self, name: str) -> None:
        """Draw the parameters of one module that the file lacked, such as those of a head for other
        labels, as a new model draws them.
        """
        # transformers marks the parameters that it has loaded. A new model has none of them, and
        # its constructor has drawn everything.
        if not any(map(_is_loaded, self.model.parameters())):
            return
        module = self.model.get_submodule(name)
        parameters = dict(module.named_parameters(recurse=False))
        missing = [key for key, parameter in parameters.items() if not _is_loaded(parameter)]
        if not missing:
            return

        drawn = Model(self.config.model_config).get_submodule(name)
        for key in missing:
            values = drawn.get_parameter(key).data
            parameters[key].data.copy_(values)

    def _loss(self, logits: Tensor, labels: Tensor | None) -> Tensor | None:
        """The loss that transformers' classifiers choose by ``problem_type``."""
        if labels is None:
            return None
        problem = self.config.problem_type
        if problem is None:
            problem = "regression" if self.num_labels == 1 else "single_label_classification"
        if problem == "regression":
            predicted = logits.squeeze(-1)
            targets = labels.to(logits.dtype).view_as(predicted)
            return functional.mse_loss(predicted, targets)
        if problem == "multi_label_classification":
            return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        return functional.cross_entropy(logits, labels)


class FredholmForImageClassification(FredholmModel):
    """A model of pictures, found by ``AutoModelForImageClassification``.

    Example:
        >>> from fredholm.models import create_model
        >>> model = FredholmForImageClassification.from_fredholm(create_model("itnet_nano"))
        >>> model(torch.zeros(2, 1, 28, 28)).logits.shape
        torch.Size([2, 10])
    """

    main_input_name = "pixel_values"
    data = "image"

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> Any:
        """Return the logits (B, classes) and, where labels are passed, the loss.

        Args:
            pixel_values: normalised pictures, (B, C, H, W).
            labels: (B,) classes or numbers, or (B, classes), as ``config.problem_type`` requires.
            return_dict: False returns a plain tuple, else an ``ImageClassifierOutput``.
            _: further arguments of transformers' callers, which are ignored.
        """
        logits = self.model(pixel_values)
        loss = self._loss(logits, labels)
        result = ImageClassifierOutput(loss=loss, logits=logits)
        if return_dict is False:
            return result.to_tuple()
        return result


class FredholmForSequenceClassification(FredholmModel):
    """A model of texts, found by ``AutoModelForSequenceClassification``.

    Number 0 is padding, whichever tokenizer made the numbers: where ``attention_mask`` is 0 a token
    becomes 0, and a real token 0 is refused.
    """

    main_input_name = "input_ids"
    data = "text"

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> Any:
        """Return the logits of token numbers (B, N), and a loss beside labels."""
        if attention_mask is not None:
            input_ids = self._padded(input_ids, attention_mask)
        logits = self.model(input_ids)
        loss = self._loss(logits, labels)
        result = SequenceClassifierOutput(loss=loss, logits=logits)
        if return_dict is False:
            return result.to_tuple()
        return result

    def _padded(self, numbers: Tensor, mask: Tensor) -> Tensor:
        # Traced code reads no values, so that only eager code finds such a token.
        if not torch.compiler.is_compiling() and bool(((numbers == 0) & (mask != 0)).any()):
            raise ShapeError(
                "input_ids: expected 0 at padding only, got it at a token that attention_mask "
                "shows; use a tokenizer whose padding is token 0"
            )
        return numbers * (mask != 0)


class FredholmImageProcessor(BaseImageProcessor):
    """Read pictures as ``fredholm predict`` does: upright, in [0, 1], at the model's size, and
    normalised. ``AutoImageProcessor`` finds it.

    Args:
        size: height and width.
        channels: 1 for grey pictures, 3 for RGB, 4 for RGB and opacity.
        image_mean, image_std: one number per channel, on the scale of pixels in [0, 1]; by default
            0 and 1, which change nothing.
        fit: how a picture gets the size. ``cover``: resized (bicubic) until it just covers the
            size, then centre-cropped, as runs on picture files do. ``stretch``: bilinear, to grey
            or RGB.
        form: of ``cover``: ``rgb``, ``rgba``, ``rgb16`` or ``rgba16``. ``a`` keeps opacity, ``16``
            keeps the depth of grey pictures of 16 bits.

    Example:
        >>> processor = FredholmImageProcessor(size={"height": 4, "width": 4})
        >>> white = np.full((2, 2), 255, dtype=np.uint8)
        >>> processor(white)["pixel_values"].shape
        torch.Size([1, 1, 4, 4])
    """

    model_input_names: ClassVar[list[str]] = ["pixel_values"]

    # Processors that earlier versions saved have neither fit nor form, and stretch.
    def __init__(
        self,
        size: dict[str, int] | None = None,
        channels: int = 1,
        image_mean: list[float] | None = None,
        image_std: list[float] | None = None,
        fit: str = STRETCH,
        form: str = "rgb",
        **options: Any,
    ):
        super().__init__(**options)
        _check_reading(channels, fit, form)
        default_size = {"height": 28, "width": 28}
        self.size = dict(size or default_size)
        self.channels = channels
        self.image_mean = list(image_mean or [0.0] * channels)
        self.image_std = list(image_std or [1.0] * channels)
        self.fit = fit
        self.form = form

    @classmethod
    def from_fredholm(cls, model: Model) -> FredholmImageProcessor:
        """Return the processor of a model of pictures: the size and channels of its encoder, and
        the fit, form, mean and standard deviation per channel of its training data.

        The latter are read from the model's attribute ``extra``. Where it has none, pictures are
        stretched and pixels stay in [0, 1].

        Raises:
            OptionError: a model that does not read pictures, or not in channels of a known form.
        """
        encoder: Any = model.config.encoder
        if encoder.data != "image":
            raise OptionError(
                f"model: expected a model of pictures, got an encoder of {encoder.kind}; texts "
                "have a tokenizer instead"
            )
        channels, height, width = encoder.input_shape
        facts = getattr(model, "extra", None) or {}
        size = {"height": height, "width": width}
        return cls(
            size,
            channels,
            facts.get("mean"),
            facts.get("std"),
            fit=fit_of(facts),
            form=facts.get("form", "rgb"),
        )

    def preprocess(
        self,
        images: Any,
        return_tensors: str | None = "pt",
        **_: Any,
    ) -> BatchFeature:
        """Return ``pixel_values`` (B, channels, height, width), float32 and normalised: pixels in
        [0, 1] minus the mean and over the deviation of their channel.

        Args:
            images: a Pillow image or an array of uint8, (H, W) or (H, W, 1) for grey, (H, W, 3) for
                RGB or (H, W, 4) with an alpha channel, which is dropped unless the form has one; or
                a list of such, of any sizes. An array is one image, never a batch. Images are
                converted to the processor's channels, and fitted to its size.
            return_tensors: ``pt`` or ``np``, as in transformers.
            _: further arguments of transformers' callers, which are ignored.

        Raises:
            OptionError: pixels of an unknown range, or a single pixel with ``fit="cover"``.
        """
        batch = images if isinstance(images, list | tuple) else [images]
        pictures = [self._read(image) for image in batch]
        pixels = torch.stack(pictures)

        # One mean and one deviation per channel, (C, 1, 1).
        mean = torch.tensor(self.image_mean)[:, None, None]
        std = torch.tensor(self.image_std)[:, None, None]
        values = ((pixels - mean) / std).numpy()
        return BatchFeature({"pixel_values": values}, tensor_type=return_tensors or "pt")

    def _read(self, image: Any) -> Tensor:
        """Return one picture in [0, 1], (C, H, W)."""
        # Imported here, because Pillow is an extra, and tensors need none.
        from PIL import Image

        if not isinstance(image, Image.Image):
            array = np.asarray(image)
            if array.dtype != np.uint8:
                raise OptionError(
                    f"images: expected bytes (uint8), got {array.dtype}; multiply values in [0, 1] "
                    "by 255 and round them"
                )
            # Pillow has no grey images of three dimensions.
            if array.ndim == 3 and array.shape[2] == 1:
                array = array[..., 0]
            image = Image.fromarray(array)

        if (found := unknown_range(image)) is not None:
            raise OptionError(
                f"images: expected 8 or 16 bits per channel, got {found}; scale them to 0 to 255 "
                "and convert them to bytes"
            )
        size = (self.size["height"], self.size["width"])
        if self.fit == COVER:
            # Resized, a single pixel would become a uniform area that passes for a picture.
            if max(image.size) < 2:
                raise OptionError(
                    "images: expected pictures of 2 pixels or more, got 1 x 1, often the "
                    "placeholder of a failed download; replace or remove it"
                )
            return in_shares(covered(image, size, self.form))
        return stretched(image, size, self.channels)


def _check_reading(channels: int, fit: str, form: str) -> None:
    """Check that pictures can be read so.

    Raises:
        OptionError: an unknown fit or form, or another number of channels than they give.
    """
    if fit not in FITS:
        raise OptionError(f"fit: expected one of {', '.join(FITS)}, got {fit!r}")
    if form not in CHANNELS:
        raise OptionError(f"form: expected one of {', '.join(CHANNELS)}, got {form!r}")
    if fit == COVER and channels != CHANNELS[form]:
        raise OptionError(
            f"channels: expected {CHANNELS[form]} beside fit='cover' and form={form!r}, got "
            f"{channels}"
        )
    if fit == STRETCH and form != "rgb":
        raise OptionError(f"form: expected 'rgb' beside fit='stretch', got {form!r}")
    if fit == STRETCH and channels not in (1, 3):
        raise OptionError(
            f"channels: expected 1 (grey) or 3 (RGB) beside fit='stretch', got {channels}"
        )


def register() -> None:
    """Let transformers' Auto classes know the classes of this file."""
    transformers.AutoConfig.register(MODEL_TYPE, FredholmConfig, exist_ok=True)
    transformers.AutoModelForImageClassification.register(
        FredholmConfig,
        FredholmForImageClassification,
        exist_ok=True,
    )
    transformers.AutoModelForSequenceClassification.register(
        FredholmConfig,
        FredholmForSequenceClassification,
        exist_ok=True,
    )
    transformers.AutoImageProcessor.register(
        FredholmConfig,
        image_processor_classes={"pil": FredholmImageProcessor},
        exist_ok=True,
    )


def _is_loaded(parameter: nn.Parameter) -> bool:
    """Whether transformers has read the parameter from a file."""
    return getattr(parameter, "_is_hf_initialized", False)
