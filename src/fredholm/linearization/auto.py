"""Converted models as transformers' own: a configuration that says what they are, classes that its
Auto classes find, a folder of one safetensors file.

This file imports transformers, and is imported when a model of the library is given.

A converted ``LlamaForCausalLM`` is a ``FredholmLinearLlamaForCausalLM``: the same class with other
ways to disk. Its configuration is the source's, and writes itself with ``model_type:
fredholm_linear`` around it, so that a library without fredholm refuses the folder. The file of
weights has a name of its own for the same reason: asked for a ``LlamaForCausalLM`` by name, the
library would read it otherwise, and run softmax with these weights.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, modeling_utils
from transformers.models.auto import modeling_auto
from transformers.utils.hub import cached_file

from ..errors import CheckpointError, ConversionError, OptionError
from ..files import digest_json, read_json, write_text
from ..integral import inference
from ..registry import qualified_name
from ..tensor_files import read_tensors, write_tensors
from .card import CODE, code_file, model_card
from .description import (
    ADAPTER,
    FIX,
    check_classes,
    describe,
    write_description,
)
from .hub import push_folder
from .interface import MIXED, NAME, SLOT
from .replace import restore
from .rollback import record_past

MODEL_TYPE = "fredholm_linear"
PREFIX = "FredholmLinear"
WEIGHTS = "fredholm_linear.safetensors"

# The module in which pickle finds the classes that are made here.
HOME = "fredholm.hf"

# What the configuration of a conversion must hold.
FACTS = ("to", "options", "tied", "layers", "refused")

# Arguments of from_pretrained that choose files, and those that change no configuration.
HUB = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
LOADING = ("dtype", "torch_dtype", "quantization_config")

# Arguments of save_pretrained that belong to an upload.
PUSHED = (
    *("repo_id", "private", "token"),
    *("commit_message", "commit_description", "revision", "create_pr"),
)


# --- configurations -------------------------------------------------------------------------------


class LinearConfig:
    """Mixin of a converted model's configuration: it is written with the conversion, under a model
    type that only fredholm knows.
    """

    linear_attention: dict[str, Any]
    _output_attentions: Any

    @property
    def output_attentions(self) -> Any:
        """Whether calls give attention weights: converted layers have them in every call that sees
        all tokens, where the library would ask for its own implementation.
        """
        return self._output_attentions

    @output_attentions.setter
    def output_attentions(self, value: Any) -> None:
        self._output_attentions = value

    def validate(self) -> None:
        """Check what the library checks, except the attention weights, which it would refuse."""
        shown = self._output_attentions
        self._output_attentions = False
        try:
            super().validate()  # type: ignore[misc]
        finally:
            self._output_attentions = shown

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        """Read the configuration of a folder or a repository: see :class:`FredholmLinearConfig`."""
        return FredholmLinearConfig.from_pretrained(pretrained_model_name_or_path, **kwargs)

    def to_json_string(self, use_diff: bool = True) -> str:
        if use_diff:
            source: dict[str, Any] = self.to_diff_dict()  # type: ignore[attr-defined]
        else:
            source = self.to_dict()  # type: ignore[attr-defined]
        facts = source.pop("linear_attention")
        names = [name.removeprefix(PREFIX) for name in source.get("architectures") or ()]
        source["architectures"] = names
        written = {
            "model_type": MODEL_TYPE,
            "architectures": [PREFIX + name for name in names],
            "auto_map": {"AutoConfig": f"{CODE.removesuffix('.py')}.FredholmLinearConfig"},
            "linear_attention": facts,
            "source": source,
            "transformers_version": transformers.__version__,
        }
        return json.dumps(written, indent=2, sort_keys=True) + "\n"


class FredholmLinearConfig:
    """Reads ``config.json`` of a converted model, and gives the source's configuration with the
    conversion in ``linear_attention``: what ``AutoConfig`` knows as ``fredholm_linear``.
    """

    model_type = MODEL_TYPE

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        """Return the configuration of a folder or a repository.

        Raises:
            CheckpointError: a file that does not describe a conversion.
            ConversionError: a model that the installed transformers does not know.
            OptionError: None for the folder.
        """
        if pretrained_model_name_or_path is None:
            raise OptionError(
                "pretrained_model_name_or_path: expected a folder or a repository, got None"
            )
        result = PreTrainedConfig.get_config_dict(pretrained_model_name_or_path, **kwargs)
        return cls.from_dict(result[0], **result[1])

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: the file for remote code is written with every folder."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return the configuration from the content of its file."""
        facts = config_dict.get("linear_attention")
        source = config_dict.get("source")
        if not isinstance(source, dict):
            source = {}
        kind = str(source.get("model_type"))
        if not isinstance(facts, dict) or set(FACTS) - facts.keys():
            raise CheckpointError(
                f"config.json says {MODEL_TYPE}, and not what was converted; {FIX}"
            )
        try:
            result = transformers.CONFIG_MAPPING[kind]
        except KeyError as error:
            raise ConversionError(
                f"config.json holds a converted {kind}, which the installed transformers "
                f"{transformers.__version__} does not know; install the version that wrote it, "
                f"{config_dict.get('transformers_version')}"
            ) from error
        names = {k: v for k, v in config_dict.items() if k == "_commit_hash"}
        register_models(result)
        return linear_config(result).from_dict(
            source | names | {"linear_attention": facts}, **kwargs
        )


@cache
def linear_config(source: type) -> Any:
    """Return the configuration class of a conversion of ``source``."""
    return type(PREFIX + source.__name__, (LinearConfig, source), {"__module__": HOME})


def _source_config(config: Any) -> tuple[Any, dict[str, Any]]:
    """Return the source's configuration, and the facts of the conversion.

    A model is built by its source's configuration, since its parts may ask an Auto class for
    theirs. Linear attention comes in at the end.
    """
    plain = copy.deepcopy(config)
    facts = vars(plain).pop("linear_attention")
    plain.__class__ = type(config).__mro__[2]
    return plain, facts


# --- models ---------------------------------------------------------------------------------------


class LinearModel:
    """Mixin of a converted model's class: how it is saved and loaded."""

    source_class: type
    config: Any

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        # `from_pretrained` passes the source's configuration, and adds linear attention later.
        plain, facts = config, None
        if isinstance(config, LinearConfig):
            plain, facts = _source_config(config)
        # Models that consist of two models compare the configuration with this class.
        vars(self)["config_class"] = self.source_class.config_class  # type: ignore[attr-defined]
        super().__init__(plain, *args, **kwargs)  # type: ignore[call-arg]
        del vars(self)["config_class"]
        if facts is not None:
            restore(self, facts, None, Path())

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        config: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return the converted model of a folder or a repository, with every weight from there.
        Arguments that its configuration has change the configuration.

        With None for the folder, build it from a converted model's ``config`` and ``state_dict``,
        without files or network.

        Raises:
            CheckpointError: weights that are damaged, missing, unknown or of other shapes.
            OptionError: None without a configuration and weights.
        """
        if pretrained_model_name_or_path is None:
            return cls._from_state(config, **kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        hub = {key: kwargs[key] for key in HUB if key in kwargs}
        if not isinstance(config, LinearConfig):
            kept = {key: kwargs.pop(key) for key in (*HUB, *LOADING) if key in kwargs}
            config, kwargs = FredholmLinearConfig.from_pretrained(
                pretrained_model_name_or_path,
                return_unused_kwargs=True,
                **hub,
                **kwargs,
            )
            kwargs |= kept
        plain, facts = _source_config(config)
        place = Path(str(cached_file(pretrained_model_name_or_path, WEIGHTS, **hub)))
        tensors = read_tensors(place, FIX)
        check_configuration(place.parent)
        plain.transformers_weights = WEIGHTS
        model, info = super().from_pretrained(  # type: ignore[misc]
            pretrained_model_name_or_path,
            *args,
            config=plain,
            output_loading_info=True,
            **kwargs,
        )
        del model.config.transformers_weights
        maps = {name: value for name, value in tensors.items() if f".{SLOT}." in name}
        _check_info(model, info, place.parent)
        restore(model, facts, maps, place.parent)
        if wants_info:
            return model, info
        return model

    @classmethod
    def _from_state(cls, config: Any, state_dict: Any = None, **options: Any) -> Any:
        """Return the model of a configuration with the weights in ``state_dict``."""
        if state_dict is None or not isinstance(config, LinearConfig):
            raise OptionError(
                "pretrained_model_name_or_path: expected a folder or a repository, got None; give "
                "one, or the config= and state_dict= of a converted model"
            )
        wants_info = options.pop("output_loading_info", False)
        # They choose files, and none is read.
        for name in HUB:
            options.pop(name, None)

        model = cls._from_config(config, **options)
        try:
            found = model.load_state_dict(state_dict, strict=False)
        except RuntimeError as error:
            # torch raises it for shapes.
            raise CheckpointError(f"state_dict: {' '.join(str(error).split())}") from error
        missing = set(found.missing_keys) - set(model.all_tied_weights_keys)
        if missing or found.unexpected_keys:
            raise CheckpointError(
                f"state_dict: expected the weights of a {cls.__name__}, got {sorted(missing)} "
                f"missing and {sorted(found.unexpected_keys)} unknown; give its state_dict()"
            )
        model.eval()
        if not wants_info:
            return model
        faults = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
        return model, {name: set() for name in faults}

    @classmethod
    def _from_config(cls, config: Any, **kwargs: Any) -> Any:
        plain, facts = _source_config(config)
        model = super()._from_config(plain, **kwargs)  # type: ignore[misc]
        # Outside the precision in which the model was built: maps are in float32.
        restore(model, facts, None, Path())
        return model

    def _assisted_decoding(self, *args: Any, **kwargs: Any) -> Any:
        """Decode with candidates that another model or the prompt proposes: the library asks the
        cache to record its past before there is a state in it.
        """
        record_past(kwargs.get("past_key_values"))
        return super()._assisted_decoding(*args, **kwargs)  # type: ignore[misc]

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Make a cache; as an assistant, one that records its past."""
        super()._prepare_cache_for_generation(  # type: ignore[misc]
            generation_config,
            model_kwargs,
            *args,
            **kwargs,
        )
        if generation_config.is_assistant:
            record_past(model_kwargs.get("past_key_values"))

    def save_pretrained(
        self,
        save_directory: Any,
        is_main_process: bool = True,
        state_dict: dict[str, torch.Tensor] | None = None,
        *,
        push_to_hub: bool = False,
        processor: Any = None,
        lines: list[str] | tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        """Write configuration, one file of weights, the model card and the file for remote code.

        Args:
            processor: a tokenizer or image processor, saved beside the model.
            lines: what the model card says of the conversion.
            options: of the library's ``save_pretrained``; with ``push_to_hub`` also
                ``repo_id``, ``private``, ``token``, ``commit_message``, ``revision`` and others of
                :func:`fredholm.hf.push_folder`.

        Raises:
            ConversionError: a variant, or parts that the folder would not bring back.
        """
        folder, this = Path(save_directory), self
        if options.get("variant") is not None:
            raise ConversionError(
                f"variant={options['variant']!r}: a folder holds one converted model, {WEIGHTS}; "
                "leave it out, and save into another folder"
            )
        pushed = {name: options.pop(name) for name in PUSHED if name in options}
        check_classes(this, this.source_class)  # type: ignore[arg-type]
        if state_dict is None:
            state_dict = this.state_dict()  # type: ignore[attr-defined]
        state: dict[str, torch.Tensor] = dict(state_dict)  # type: ignore[arg-type]
        maps = {name: state.pop(name) for name in list(state) if f".{SLOT}." in name}
        folder.mkdir(parents=True, exist_ok=True)
        if not is_main_process:
            return
        options = options | {"max_shard_size": "100000GB", "save_original_format": False}
        # The library writes the source's part, to which the maps are added in one file.
        with TemporaryDirectory(dir=folder) as scratch:
            super().save_pretrained(scratch, state_dict=state, **options)  # type: ignore[misc]
            whole = read_tensors(Path(scratch) / "model.safetensors", FIX)
            write_tensors(folder / WEIGHTS, whole | maps)
            for path in Path(scratch).glob("*.json"):
                write_text(folder / path.name, path.read_text(encoding="utf-8"))
        if processor is not None:
            processor.save_pretrained(folder)
        write_text(folder / CODE, code_file())
        write_card(this, folder, lines)
        kind, facts = this.source_class, this.config.linear_attention
        described = {"ecosystem": "transformers", "class": qualified_name(kind)}
        described |= facts | {"configuration": digest_json(read_json(folder / "config.json", FIX))}
        write_description(folder, described)
        if push_to_hub:
            push_folder(folder, pushed.pop("repo_id", folder.name), **pushed)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        processor: Any = None,
        **options: Any,
    ) -> Any:
        """Save the model and upload the folder by ``huggingface_hub``; see
        :func:`fredholm.hf.push_folder`.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, processor=processor)
            return push_folder(folder, repo_id, **options)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        source: Any = cls.source_class
        return source._can_set_attn_implementation()

    def set_attn_implementation(
        self,
        attn_implementation: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Refuse another attention function than that of the conversion.

        Raises:
            ConversionError: for any other.
        """
        if attn_implementation not in (NAME, MIXED):
            raise ConversionError(
                f"a converted {self.source_class.__name__} computes linear attention, and with "
                f"attn_implementation={attn_implementation!r} would run softmax; choose that on "
                "the model before it is converted"
            )
        super().set_attn_implementation(attn_implementation, *args, **kwargs)  # type: ignore[misc]


def write_card(
    model: Any,
    folder: Path,
    lines: Sequence[str] = (),
) -> None:
    """Write the model card of a converted model; ``lines`` are of its conversion."""
    facts = model.config.linear_attention
    write_text(folder / "README.md", model_card(model.source_class, model.config, facts, lines))


def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Generate as the library does, inside :class:`fredholm.inference`, so that work on weights
    alone is done once.
    """
    with inference(self):
        return super(LinearModel, self).generate(*args, **kwargs)  # type: ignore[misc]


@cache
def linear_model(source: Any) -> Any:
    """Return the class of a converted model."""
    ignored = [*(source._keys_to_ignore_on_load_unexpected or ()), rf"\.{SLOT}\."]
    fields = {
        "__module__": HOME,
        "source_class": source,
        "config_class": linear_config(source.config_class),
        "_keys_to_ignore_on_load_unexpected": ignored,
    }
    if source.can_generate():
        fields["generate"] = generate
    return type(PREFIX + source.__name__, (LinearModel, source), fields)


def become_linear(model: Any, facts: dict[str, Any]) -> None:
    """Give a model with linear attention inside the class and configuration of a conversion."""
    if not isinstance(model, LinearModel):
        model.__class__ = linear_model(type(model))
        _records(model)
    if not isinstance(model.config, LinearConfig):
        model.config.__class__ = linear_config(type(model.config))
    model.config.linear_attention = facts
    _protect_parts(model)


def _protect_parts(model: Any) -> None:
    """Let every model inside a converted one be saved as what it is, or refuse to be saved: the
    library would write its weights as those of softmax.

    A base model is a converted model too, since a folder's layers are also found without the
    prefix of a head. Any other part is refused.
    """
    for name, part in model.named_modules():
        inside = part is not model and isinstance(part, transformers.PreTrainedModel)
        if not inside or not any(hasattr(module, SLOT) for module in part.modules()):
            continue
        if part is model.base_model:
            if not isinstance(part, LinearModel):
                part.__class__ = linear_model(type(part))
                _records(part)
        else:
            part.save_pretrained = SavedWithTheWhole(type(model).source_class.__name__, name)


class SavedWithTheWhole:
    """The ``save_pretrained`` of a part of a converted model: a ConversionError.

    Args:
        whole: the class of the model around it.
        name: of the part in it.
    """

    def __init__(self, whole: str, name: str):
        self.whole, self.name = whole, name

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise ConversionError(
            f"expected the whole converted {self.whole} to be saved, got its part {self.name!r}, "
            "whose weights would load as softmax; save the whole model, or convert the part by "
            "itself"
        )


def _records(model: Any) -> None:
    """Tell the library which outputs a model's class records, hidden states and attentions.

    The library registers them when a model is built, and this one was built as another class.
    """
    registry = getattr(modeling_utils, "_CAN_RECORD_REGISTRY", None)
    if registry is None:
        return
    # Some versions key a plain dict by the class's name, others a weak one by the model.
    key = model
    if type(registry) is dict:
        key = str(type(model))
    registry[key] = model._can_record_outputs


def _check_info(
    model: Any,
    info: dict[str, Any],
    folder: Path,
) -> None:
    """Check that every weight had its place; a base model leaves out those of a head.

    Raises:
        CheckpointError: weights that are missing, unknown or of other shapes.
    """
    prefix = f"{model.base_model_prefix}."
    faults = {
        key: sorted(map(str, info.get(key) or ()))
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
    }
    if model.base_model is model:
        faults["unexpected_keys"] = [x for x in faults["unexpected_keys"] if x.startswith(prefix)]
    if any(faults.values()):
        names = ", ".join(model.config.architectures or ())
        raise CheckpointError(
            f"{folder}: the weights do not fit {type(model).source_class.__name__}: {faults}; the "
            f"folder holds a converted {names}"
        )


def check_configuration(folder: Path) -> None:
    """Check that ``config.json`` is what was saved with the weights.

    Raises:
        CheckpointError: its checksum differs.
    """
    if not (folder / ADAPTER).is_file():
        return
    saved = read_json(folder / ADAPTER, FIX)
    if saved.get("configuration") not in (
        None,
        digest_json(read_json(folder / "config.json", FIX)),
    ):
        raise CheckpointError(
            f"{folder / 'config.json'} is not as it was saved (it does not match its checksum in "
            f"{ADAPTER}); {FIX}"
        )


def facts_of(replaced: Any) -> dict[str, Any]:
    """Return what a configuration stores of a conversion."""
    return {
        "to": replaced.to,
        "options": replaced.options,
        "tied": replaced.tied,
        "window": replaced.window,
        "sinks": replaced.sinks,
        "store": replaced.store,
        "decay": replaced.decay,
        "keep": {name: list(groups) for name, groups in replaced.keep.items()},
        "layers": [describe(layer) for layer in replaced.layers],
        "refused": replaced.refused,
    }


# --- the library's Auto classes ------------------------------------------------------------------


def register_config() -> None:
    """Let ``AutoConfig``, and so every Auto class, know ``model_type: fredholm_linear``."""
    kind: Any = FredholmLinearConfig
    AutoConfig.register(MODEL_TYPE, kind, exist_ok=True)


@cache
def register_models(source: type) -> None:
    """Register the converted classes of a model with each of transformers' Auto classes that knows
    the source model, so that these load a folder of the converted one.

    Repeated calls do nothing.

    Args:
        source: the configuration class of the source model, such as ``LlamaConfig``.
    """
    converted = linear_config(source)
    for auto in vars(modeling_auto).values():
        # Of all names in the module only Auto classes of models have a mapping, from a
        # configuration class to one model class or several.
        mapping = getattr(auto, "_model_mapping", None)
        if not isinstance(auto, type) or mapping is None or source not in mapping:
            continue
        kinds = mapping[source]
        if not isinstance(kinds, tuple | list):
            kinds = (kinds,)
        for kind in kinds:
            # A few entries name a model class with another configuration. The first one with this
            # configuration is registered.
            is_model = isinstance(kind, type) and issubclass(kind, PreTrainedModel)
            if is_model and kind.config_class is source:
                auto.register(converted, linear_model(kind), exist_ok=True)
                break

    # AutoTokenizer goes by the configuration where a folder's tokenizer does not name its class.
    tokenizer = transformers.TOKENIZER_MAPPING.get(source, None)
    if tokenizer is not None:
        transformers.AutoTokenizer.register(converted, tokenizer, exist_ok=True)
