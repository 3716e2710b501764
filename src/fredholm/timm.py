"""Importing this module registers this library's models of pictures with timm.

``timm.create_model`` then makes any ``infvit_*`` and ``itnet_*`` preset of pictures, with
``features_only``, ``forward_intermediates`` and ``reset_classifier``::

    import fredholm.timm
    import timm

    model = timm.create_model("infvit_linear_pico", num_classes=5, in_chans=3, img_size=56)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from .configuration import image_sides
from .errors import OptionError, require
from .models import create_model, list_models, list_pretrained, model_config
from .models.bodies import ResidualBody
from .models.encoders import ImageConfig
from .models.shipped import pretrained_card

require("timm", "timm", "models in timm's registry")

from timm.models import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    build_model_with_cfg,
    generate_default_cfgs,
    register_model,
)

__all__ = ["VisionModel"]

PATTERNS = ("infvit_*", "itnet_*")
POOLS = {"token": "cls", "avg": "mean"}
"""timm's names of read-outs, and ours."""


class Blocks(NamedTuple):
    """The features that blocks leave.

    Attributes:
        last: those of the last block, before the final normalisation.
        taken: those of the blocks that were asked for.
        rows, columns: the patches along height and width.
    """

    last: Tensor
    taken: list[Tensor]
    rows: int
    columns: int


class VisionModel(nn.Module):
    """A :class:`fredholm.models.Model` of pictures with the methods that timm expects.

    Args:
        preset: its name, see :func:`fredholm.models.list_models`.
        num_classes: outputs of the classifier; 0 leaves it out.
        in_chans, img_size: of the pictures.
        global_pool: ``token``, ``avg``, or empty for the features of every point.
        drop_rate, drop_path_rate: dropout, and the stochastic depth of the last block.
        weights: the name of weights that come with the package, or None.
        parts: as in :func:`fredholm.models.model_config`: ``encoder``, ``body``, ``head``.

    Raises:
        OptionError: a preset of other data than pictures, or whose blocks are not a stack; another
            ``global_pool``.
    """

    def __init__(
        self,
        preset: str,
        *,
        num_classes: int | None = None,
        in_chans: int | None = None,
        img_size: int | Sequence[int] | None = None,
        global_pool: str | None = None,
        drop_rate: float | None = None,
        drop_path_rate: float | None = None,
        weights: str | None = None,
        **parts: Any,
    ):
        super().__init__()
        # What timm's caller leaves out is None, and stays as the preset has it.
        sizes = {"channels": in_chans, "image_size": img_size}
        rates = {"dropout": drop_rate, "drop_path": drop_path_rate}
        pool = None
        if global_pool:
            pool = _pool(global_pool)
        head = {"outputs": num_classes or None, "pool": pool}
        changes = {}
        own_parts = {
            "encoder": sizes,
            "body": rates,
            "head": head,
        }
        for name, own in own_parts.items():
            passed = parts.pop(name, {})
            fields = _given(own) | dict(passed)
            if fields:
                changes[name] = fields

        # The model keeps the preset's head, also where timm wants none: weights need their place.
        model = create_model(preset, pretrained=weights, **changes, **parts)
        encoder: Any = model.config.encoder
        if not isinstance(encoder, ImageConfig) or not isinstance(model.body, ResidualBody):
            raise OptionError(f"{preset}: expected a stack of blocks that reads pictures")

        # The names of the weights are those of the library's own model.
        self.encoder: Any = model.encoder
        self.body: Any = model.body
        self.head: Any = model.head
        self.offset = model.offset
        self.config = model.config
        self.pool = model.pool
        width = model.config.body.width
        self.num_features = width
        self.head_hidden_size = width
        self.embed_dim = width
        self.num_classes = model.config.head.outputs
        self.num_prefix_tokens = int(self.pool == "cls")
        self.patch = image_sides(encoder.patch)
        self.feature_info = []
        for number in range(len(self.body.blocks)):
            info = {
                "module": f"body.blocks.{number}",
                "num_chs": self.num_features,
                "reduction": self.patch[0],
            }
            self.feature_info.append(info)
        if num_classes == 0:
            self.reset_classifier(0)
        if global_pool == "":
            self.pool = ""

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the normalised features of every point, (B, N, D), a class token first."""
        blocks = self._blocks(x, ())
        return self.body.norm(blocks.last)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the answer to :meth:`forward_features`, or what the classifier reads."""
        pooled = self._pooled(x)
        return self._classified(pooled, pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return the normalised features of the last block and those of some blocks.

        Args:
            x: pictures (B, C, H, W).
            indices: the last so many blocks, or their numbers; None: all.
            return_prefix_tokens: give pairs of patches and class tokens.
            norm: normalise the intermediate features as the last ones.
            stop_early: leave out the blocks behind the last one that is taken.
            output_fmt: ``NCHW`` or ``NLC``.
            intermediates_only: give the list alone.

        Raises:
            OptionError: another format.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise OptionError(f"output_fmt: expected NCHW or NLC, got {output_fmt!r}")
        numbers = _numbers(len(self.body.blocks), indices)
        stop = None
        if stop_early:
            stop = max(numbers) + 1
        blocks = self._blocks(x, numbers, stop)
        features = blocks.taken
        if norm:
            features = [self.body.norm(u) for u in features]

        # A class token stands before the patches, and has no place in a map of them.
        prefix = self.num_prefix_tokens
        tokens = [u[:, :prefix] for u in features]
        features = [u[:, prefix:] for u in features]
        # (B, N, D) to maps (B, D, rows, columns): points are in the order of rows.
        if output_fmt == "NCHW":
            grid = (blocks.rows, blocks.columns)
            features = [u.transpose(1, 2).unflatten(2, grid).contiguous() for u in features]
        result: list[Any] = features
        if return_prefix_tokens and prefix:
            result = list(zip(features, tokens, strict=True))
        if intermediates_only:
            return result
        return self.body.norm(blocks.last), result

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] | None = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Drop the blocks behind the last of ``indices`` (None: all blocks), and return their
        numbers.
        """
        numbers = _numbers(len(self.body.blocks), indices)
        self.body.blocks = self.body.blocks[: max(numbers) + 1]
        if prune_norm:
            self.body.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return numbers

    def get_classifier(self) -> nn.Module:
        """Return the head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Take a fresh head with this number of classes; 0 takes none.

        Raises:
            OptionError: another ``global_pool``, or ``token`` of a model without a class token.
        """
        if global_pool is not None:
            pool = _pool(global_pool)
            if pool == "cls" and not self.num_prefix_tokens:
                raise OptionError("global_pool: expected avg of a model without a class token")
            self.pool = pool
        self.num_classes = num_classes
        self.head = nn.Identity()
        self.offset = None
        if num_classes:
            head = {"outputs": num_classes, "offset": ()}
            config = self.config.replace(head=head)
            self.head = config.head.build(self.num_features, 1)

    def no_weight_decay(self) -> set[str]:
        """Return the names of weights that should not decay: learned positions and class token."""
        names = {name for name, _ in self.named_parameters()}
        return names & {"encoder.table", "encoder.token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return the patterns by which timm groups weights layer by layer."""
        return {
            "stem": r"^encoder",
            "blocks": [(r"^body\.blocks\.(\d+)", None), (r"^body\.norm", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Refuse checkpoints, which the library's operators make by themselves.

        Raises:
            OptionError: ``enable``.
        """
        if enable:
            raise OptionError(
                "set_grad_checkpointing: expected False; operators bound their memory themselves, "
                "and body.chunk bounds that of feed-forward networks"
            )

    def _blocks(
        self,
        x: Tensor,
        numbers: Sequence[int],
        stop: int | None = None,
    ) -> Blocks:
        u, domain = self.encoder(x)
        domain = self.body.suited(domain.unpadded())

        taken = {}
        for i, block in enumerate(self.body.blocks[:stop]):
            u = block(u, domain)
            if i in numbers:
                taken[i] = u
        height, width = x.shape[-2:]
        rows = height // self.patch[0]
        columns = width // self.patch[1]
        return Blocks(
            u,
            [taken[i] for i in numbers],
            rows,
            columns,
        )

    def _pooled(self, features: Tensor) -> Tensor:
        if self.pool in ("", "every"):
            return features
        if self.pool == "cls":
            return features[:, 0]
        # Patches of a picture have equal masses. A class token is not averaged, as in timm.
        return features[:, self.num_prefix_tokens :].mean(1)

    def _classified(self, features: Tensor, pre_logits: bool) -> Tensor:
        if pre_logits or isinstance(self.head, nn.Identity):
            return features
        answers = self.head(features, self.encoder)
        if self.offset is None:
            return answers
        return self.offset(answers)


def _numbers(count: int, indices: int | Sequence[int] | None) -> list[int]:
    """Return the numbers of blocks: the last so many of ``count``, those named, or all.

    Raises:
        OptionError: no blocks, or others than there are.
    """
    if indices is None:
        indices = count
    if isinstance(indices, int):
        numbers = list(range(count - indices, count))
    else:
        numbers = []
        for index in indices:
            # Negative numbers count from the last block.
            if -count <= index < 0:
                index += count
            numbers.append(index)
    if not numbers or min(numbers) < 0 or max(numbers) >= count:
        raise OptionError(f"indices: expected some of {count} blocks, got {indices}")
    return numbers


def _pool(global_pool: str) -> str:
    """Return our name of timm's read-out.

    Raises:
        OptionError: another read-out.
    """
    if not global_pool:
        return ""
    if global_pool not in POOLS:
        raise OptionError(
            f"global_pool: expected token, avg, or empty for every point, got {global_pool!r}"
        )
    return POOLS[global_pool]


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _presets() -> list[str]:
    """Return the names of the presets of pictures."""
    names = [name for pattern in PATTERNS for name in list_models(pattern)]
    return [name for name in names if model_config(name).encoder.kind == "image"]


def _facts(preset: str) -> dict[str, Any]:
    """Return the facts that timm keeps of a model."""
    config = model_config(preset)
    return {
        "url": "",
        "num_classes": config.head.outputs,
        "input_size": tuple(config.input_shape),
        "mean": (0.5,) * config.input_shape[0],
        "std": (0.5,) * config.input_shape[0],
        "crop_pct": 1.0,
        "interpolation": "bilinear",
        "classifier": "head",
        "license": "apache-2.0",
    }


default_cfgs = generate_default_cfgs({name: _facts(name) for name in _presets()})


def _register(preset: str) -> None:
    """Make timm know a preset."""

    def entry(pretrained: bool = False, **options: Any) -> Any:
        tag = options.get("pretrained_cfg")
        weights = None
        if not isinstance(tag, str):
            tag = None
        if pretrained:
            weights = _weights(preset, tag)
        # The weights are the library's own, not files that timm would look for.
        options["pretrained_cfg"] = None
        if weights is not None:
            options = _of_weights(preset, weights, options)
        # All blocks, unless the caller chooses.
        getter = {"feature_cls": "getter", "out_indices": None}
        return build_model_with_cfg(
            lambda **given: VisionModel(preset, weights=weights, **given),
            preset,
            False,
            feature_cfg=getter,
            **options,
        )

    entry.__name__ = entry.__qualname__ = preset
    entry.__module__ = __name__
    entry.__doc__ = f"``{preset}`` of this library."
    register_model(entry)


def _weights(preset: str, tag: str | None) -> str:
    """Return the name of weights of a preset that come with the package and classify pictures.

    Raises:
        OptionError: there are none.
    """
    # Other weights of the same preset, such as those of a field, have no classes.
    known = [n for n in list_pretrained(preset) if pretrained_card(n)["metric"] == "accuracy"]
    if not known or (tag is not None and tag not in known):
        raise OptionError(
            f"pretrained: expected weights of {preset} ({', '.join(known) or 'none'}), got "
            f"{tag or 'True'}"
        )
    return tag or known[0]


def _of_weights(
    preset: str,
    weights: str,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Return the options with the sizes that the weights were trained at."""
    saved = create_model(preset, pretrained=weights)
    channels, *sides = saved.config.input_shape
    options.setdefault("in_chans", channels)
    options.setdefault("img_size", sides)
    options.setdefault("num_classes", saved.config.head.outputs)
    facts: Any = saved.extra
    overlay = {"input_size": (channels, *sides), "mean": facts["mean"], "std": facts["std"]}
    return options | {"pretrained_cfg_overlay": overlay}


for _preset in _presets():
    _register(_preset)
