"""Training from recipes: read one, train, resume, evaluate, predict, sweep.

Everything here needs the extra ``train``; names are imported when first used, so that ``import
fredholm.training`` is cheap and a missing package is named together with the extra that brings it.
"""

from __future__ import annotations

from importlib import import_module

from ...errors import require

_PUBLIC = {
    "Recipe": (".recipe", "pydantic"),
    "load_recipe": (".recipe_files", "pydantic"),
    "imported_code": (".recipe_files", "pydantic"),
    "save_recipe": (".recipe_files", "pydantic"),
    "list_recipes": (".recipe_paths", "yaml"),
    "RunResult": (".folder", "pydantic"),
    "check_folder": (".folder", "pydantic"),
    "train": (".run", "lightning"),
    "check_alone": (".processes", "lightning"),
    "first_process": (".processes", "lightning"),
    "plan_run": (".planning", "lightning"),
    "RunPlan": (".planning", "lightning"),
    "evaluate": (".evaluation", "lightning"),
    "evaluate_files": (".new_files", "lightning"),
    "predict": (".prediction", "lightning"),
    "write_predictions": (".prediction", "lightning"),
    "explain": (".evaluation", "matplotlib"),
    "export_run": (".exporting", "lightning"),
    "export_run_steps": (".exporting", "lightning"),
    "push_to_hub": (".hub", "lightning"),
    "hub_folder": (".hub", "lightning"),
    "generate": (".generation", "lightning"),
    "compress_run": ("..distill.compress", "lightning"),
    "load_run": (".evaluation", "lightning"),
    "unpack_pretrained": (".shipped", "yaml"),
    "sweep": (".sweeps", "lightning"),
    "linearize": ("..distill.linearize", "lightning"),
    "linearize_source": ("..distill.sources", "lightning"),
    "fine_tune": ("..distill.linearize", "lightning"),
    "StageOptions": ("..distill.fit", "lightning"),
    "Conversion": ("..distill.linearize", "lightning"),
    "Interrupted": (".failures", "yaml"),
    "TrainingFailed": (".failures", "yaml"),
}

__all__ = list(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, package = _PUBLIC[name]
    require(package, "train", f"fredholm.training.{name}")
    value = getattr(import_module(module, __name__), name)
    globals()[name] = value
    return value
