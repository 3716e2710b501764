"""Reading folders of transformers: nothing is downloaded, and no code in them is executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import CheckpointError, TrustError, require
from ..files import read_json


def load_local(kind: Any, folder: str | Path, **options: Any) -> Any:
    """Call ``kind.from_pretrained(folder)`` without network access or code from the folder.

    A folder can name Python files in ``auto_map``. By default transformers asks on the terminal
    whether to run them, and blocks where nobody answers; ``trust_remote_code=False`` refuses.

    Args:
        kind: a class of transformers, such as ``AutoModel``.
        options: passed on to ``from_pretrained``.

    Raises:
        TrustError: the folder needs its own code, or names files that lie outside of it.
        CheckpointError: an index or a configuration that is not JSON.
    """
    # Imported here, because the file imports transformers, an extra.
    from .auto import register_config

    refuse_pointers(Path(folder))
    # The Auto classes then know the format of converted models.
    register_config()
    try:
        return kind.from_pretrained(
            str(folder),
            local_files_only=True,
            trust_remote_code=False,
            **options,
        )
    except ValueError as error:
        # transformers has no error class of its own for this; its message names the option.
        if "trust_remote_code" not in str(error):
            raise
        raise TrustError(
            f"{folder}: needs Python code that lies in it (auto_map in its JSON files), and that "
            "is never executed here; read it, load the model in a file of your own, and give that "
            "as package.module:factory"
        ) from error


def refuse_pointers(folder: Path) -> None:
    """Refuse a folder whose JSON files name weights that lie outside of it.

    The index of weights in several files can name any path, and an adapter names the model that it
    adapts. In a folder that somebody sent, either could be any file of its reader.

    Raises:
        TrustError: naming the file and what it points to.
        CheckpointError: an index or a configuration that is not JSON.
    """
    if not folder.is_dir():
        return

    for index in sorted(folder.glob("*.index.json")):
        names = _json_of(index).get("weight_map")
        if not isinstance(names, dict):
            continue
        for name in sorted({str(name) for name in names.values()}):
            if Path(name).name != name or name == "..":
                raise TrustError(
                    f"{index}: expected names of files beside it, got {name!r}, which is not read; "
                    "save the model again as one folder"
                )

    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        base = _json_of(adapter).get("base_model_name_or_path")
        if base is not None:
            raise TrustError(
                f"{adapter}: expected a whole model, got an adapter of {base!r}, which is not "
                "read; merge both (peft's merge_and_unload) and save the result"
            )


def _json_of(file: Path) -> dict[str, Any]:
    found = read_json(file, "copy it again")
    if isinstance(found, dict):
        return found
    return {}


def picture_scale(folder: str | Path) -> dict[str, Any]:
    """Return how a folder's image processor prepares pictures, as far as its files tell.

    ``mean`` and ``std`` normalise pictures in [0, 1]; ``picture_size`` is the (height, width) to
    which they are cut.

    Raises:
        CheckpointError: a file that is not JSON.
    """
    facts: dict[str, Any] = {}
    # Where both files exist, the values of the second hold.
    for name in ("processor_config.json", "preprocessor_config.json"):
        file = Path(folder) / name
        if not file.is_file():
            continue
        found = _json_of(file)
        # The processor of a model of texts and pictures has one for each.
        found = found.get("image_processor", found)
        crops = found.get("do_center_crop", "crop_size" in found)
        size_name = "size"
        if crops:
            size_name = "crop_size"
        size = _size(found.get(size_name))
        if size is not None:
            facts["picture_size"] = size
        if found.get("do_normalize") is False:
            facts |= {"mean": 0.0, "std": 1.0}
        elif {"image_mean", "image_std"} <= set(found):
            facts |= {"mean": found["image_mean"], "std": found["image_std"]}
    return facts


def _size(said: Any) -> tuple[int, int] | None:
    """Return height and width as image processors write them: one side, both, or None."""
    if isinstance(said, int):
        return said, said
    if isinstance(said, dict) and {"height", "width"} <= set(said):
        return int(said["height"]), int(said["width"])
    return None


def load_gguf(folder: str | Path) -> tuple[Any, Any]:
    """Return the language model in a folder's one GGUF file, with weights in float32, and its
    tokenizer.

    Raises:
        MissingExtraError: gguf or accelerate is not installed.
        CheckpointError: several such files, or one that transformers cannot read.
    """
    library: Any = require("transformers", "hf", "reading a GGUF file")
    for module in ("gguf", "accelerate"):
        require(module, "gguf", "reading a GGUF file")
    names = sorted(path.name for path in Path(folder).glob("*.gguf"))
    if len(names) != 1:
        raise CheckpointError(
            f"{folder}: holds {len(names)} GGUF files ({', '.join(names)}); needs one"
        )
    try:
        model = load_local(library.AutoModelForCausalLM, folder, gguf_file=names[0])
        tokenizer = load_local(library.AutoTokenizer, folder, gguf_file=names[0])
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(
            f"{Path(folder) / names[0]}: transformers cannot read it ({error})"
        ) from error
    # The weights are no longer quantised, and what is saved of them must not say so.
    vars(model.config).pop("quantization_config", None)
    model.hf_quantizer = None
    return model.eval(), tokenizer
