"""Converted models by transformers' Auto classes, which load the converted model; without fredholm
the library refuses the folder.
"""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fredholm.convert import load_linearized, replace_attention, save_linearized
from fredholm.errors import CheckpointError, ConversionError, OptionError

from . import models
from .library import library

transformers = pytest.importorskip("transformers")


def tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = {f"w{i}": i for i in range(models.VOCABULARY)}
    plain = Tokenizer(WordLevel(words, unk_token="w0"))
    plain.pre_tokenizer = Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="w0", pad_token="w0", eos_token="w1"
    )


@pytest.fixture(scope="module")
def llama():
    model = models.llama(eos_token_id=1, pad_token_id=0)
    model.generation_config.max_new_tokens = 3
    return replace_attention(model, "hedgehog", layers=["*.0.self_attn"])


@pytest.fixture(scope="module")
def folder(llama, tmp_path_factory):
    lines = ["data: words", "accuracy: 0.5"]
    place = tmp_path_factory.mktemp("auto") / "llama"
    return save_linearized(llama, place, processor=tokenizer(), lines=lines)


@torch.no_grad()
def logits(model):
    return model(**models.padded()).logits


FRESH = """
import sys, torch
from transformers import AutoModelForCausalLM, pipeline
folder = sys.argv[1]
try:
    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
except ValueError as error:
    assert "custom code" in str(error)
else:
    raise AssertionError("loaded without fredholm")
import fredholm.hf
model = AutoModelForCausalLM.from_pretrained(folder)
with torch.no_grad():
    torch.save(model(**torch.load(folder + "/../inputs.pt")).logits, folder + "/../logits.pt")
print(pipeline("text-generation", model=folder)("w5 w6 w7", do_sample=False)[0]["generated_text"])
"""


def test_auto_classes_and_pipelines_in_a_fresh_process(llama, folder):
    torch.save(models.padded(), folder.parent / "inputs.pt")
    command = [sys.executable, "-c", FRESH, str(folder)]
    quiet = {"text": True, "capture_output": True, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, **quiet)
    assert done.returncode == 0, done.stderr
    assert torch.load(folder.parent / "logits.pt").equal(logits(llama.model))
    words = tokenizer()("w5 w6 w7", return_tensors="pt")
    with torch.no_grad():
        ids = llama.model.generate(**words, do_sample=False)
    made = tokenizer().decode(ids[0])
    assert done.stdout.splitlines()[-1].replace(" ", "") == made.replace(" ", "")


@pytest.fixture
def forgotten(monkeypatch, tmp_path):
    """Put transformers into its state before ``import fredholm.hf``."""
    monkeypatch.delitem(transformers.CONFIG_MAPPING._extra_content, "fredholm_linear", False)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])


def test_transformers_without_fredholm_refuses_the_folder(forgotten, folder):
    with pytest.raises(ValueError, match="custom code"):
        transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        transformers.LlamaForCausalLM.from_pretrained(folder)


def test_trusted_remote_code_loads_the_converted_model(forgotten, llama, folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert logits(model).equal(logits(llama.model))
    assert len((folder / "fredholm_linear.py").read_text().splitlines()) <= 30


def test_a_folder_has_weights_card_and_configuration(folder):
    names = {path.name for path in folder.iterdir()}
    assert {"README.md", "config.json", "generation_config.json", "tokenizer.json"} < names
    assert [name for name in names if name.endswith("safetensors")] == [
        "fredholm_linear.safetensors"
    ]
    card = (folder / "README.md").read_text()
    assert "import fredholm.hf" in card
    assert "AutoModelForCausalLM.from_pretrained" in card
    assert "- data: words" in card
    assert json.loads((folder / "generation_config.json").read_text())["max_new_tokens"] == 3
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "fredholm_linear"
    assert config["source"]["architectures"] == ["LlamaForCausalLM"]


@pytest.fixture(scope="module")
def known():
    import fredholm.hf

    return fredholm.hf


def test_a_loaded_model_can_be_saved_copied_and_pickled(known, llama, folder, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(model, transformers.LlamaForCausalLM)
    assert type(model) is known.FredholmLinearLlamaForCausalLM
    model.save_pretrained(tmp_path)
    others = [load_linearized(tmp_path), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    assert all(logits(other).equal(logits(llama.model)) for other in others)


def test_a_base_model_loads_without_the_head(known, llama, folder):
    base = transformers.AutoModel.from_pretrained(folder)
    inputs = models.padded()
    with torch.no_grad():
        expected = llama.model.model(**inputs).last_hidden_state
        assert base(**inputs).last_hidden_state.equal(expected)


def test_loading_with_an_uninitialised_head_is_refused(known, folder):
    with pytest.raises(CheckpointError, match=r"score\.weight.*holds a converted LlamaForCausalLM"):
        transformers.AutoModelForTokenClassification.from_pretrained(folder)


def test_a_nested_model_is_converted_once(known, tmp_path):
    config = transformers.LlamaConfig(**models.llama(pad_token_id=0).config.to_dict())
    model = models.spread(transformers.LlamaForSequenceClassification(config))
    replaced = replace_attention(model, "performer")
    save_linearized(replaced, tmp_path)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert logits(loaded).equal(logits(replaced.model))
    built = transformers.AutoModelForSequenceClassification.from_config(loaded.config)
    assert len([m for m in built.modules() if hasattr(m, "linear_heads")]) == 2


def test_attn_implementation_cannot_switch_to_softmax(known, llama, folder):
    kept = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    torch.testing.assert_close(logits(kept), logits(llama.model))
    with pytest.raises(ConversionError, match="would run softmax"):
        kept.set_attn_implementation("sdpa")


def test_classes_by_name_build_and_load_the_converted_model(known, llama, folder):
    """A model is built from a configuration, whose fields are accepted as arguments."""
    config = known.FredholmLinearLlamaConfig.from_pretrained(folder)
    assert type(config) is known.FredholmLinearLlamaConfig
    assert "linear_attention" in config.to_json_string()
    built = known.FredholmLinearLlamaForCausalLM(config)
    names = built.state_dict().keys()
    assert names == llama.model.state_dict().keys()
    built.load_state_dict(llama.model.state_dict())
    assert logits(built.eval()).equal(logits(llama.model))
    options = {"use_cache": False, "dtype": torch.float64, "output_loading_info": True}
    loaded, info = known.FredholmLinearLlamaForCausalLM.from_pretrained(folder, **options)
    assert not loaded.config.use_cache
    assert loaded.dtype == torch.float64
    assert not info["missing_keys"]
    loaded = known.FredholmLinearLlamaForCausalLM.from_pretrained(folder, dtype="auto")
    assert loaded.config.use_cache
    assert logits(loaded).equal(logits(llama.model))
    with pytest.raises(TypeError, match="unknown_argument"):
        known.FredholmLinearLlamaForCausalLM.from_pretrained(folder, unknown_argument=1)


@pytest.mark.parametrize("seen", [False, True])
@torch.no_grad()
def test_encoder_decoder_models_load_by_their_auto_classes(known, tmp_path, seen):
    """Their configuration contains both, and transformers compares its class with a known one."""
    texts = models.bert().config
    parts = models.vit().config if seen else texts, copy.deepcopy(texts)
    parts[1].is_decoder = parts[1].add_cross_attention = True
    kind = "VisionEncoderDecoder" if seen else "EncoderDecoder"
    config = getattr(transformers, f"{kind}Config").from_encoder_decoder_configs(*parts)
    source = models.spread(getattr(transformers, f"{kind}Model")(config=config))
    first = {"pixel_values": torch.randn(3, 3, 8, 8)} if seen else models.padded()
    inputs = first | {"decoder_input_ids": models.tokens(n=4)}
    replaced = replace_attention(source, "hedgehog", inputs=inputs, keep_refused=True)
    assert len(replaced.layers) == 4
    save_linearized(replaced, tmp_path)
    expected = replaced.model(**inputs).logits
    auto = "AutoModelForImageTextToText" if seen else "AutoModelForSeq2SeqLM"
    loaded = getattr(transformers, auto).from_pretrained(tmp_path)
    assert loaded(**inputs).logits.equal(expected)
    assert load_linearized(tmp_path)(**inputs).logits.equal(expected)


@pytest.mark.parametrize("build", [models.vit, models.bert])
def test_classifiers_of_images_and_texts_load_by_their_auto_classes(known, build, tmp_path):
    replaced = replace_attention(build(), "luna")
    save_linearized(replaced, tmp_path)
    image = build is models.vit
    auto = f"AutoModelFor{'Image' if image else 'Sequence'}Classification"
    loaded = getattr(transformers, auto).from_pretrained(tmp_path)
    inputs = {"pixel_values": torch.randn(2, 3, 8, 8)} if image else models.padded()
    with torch.no_grad():
        assert loaded(**inputs).logits.equal(replaced.model(**inputs).logits)


def test_a_tokenizer_without_class_name_loads(known, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"]))
    plain = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    replaced = replace_attention(models.bert(), "elu")
    save_linearized(replaced, tmp_path / "bert", processor=plain)
    path = tmp_path / "bert" / "tokenizer_config.json"
    saved = json.loads(path.read_text())
    del saved["tokenizer_class"]
    path.write_text(json.dumps(saved))
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    assert type(found) is transformers.BertTokenizer
    assert found("a").input_ids == plain("a").input_ids


def test_unsupported_configurations_are_refused(known, folder, tmp_path):
    saved = json.loads((folder / "config.json").read_text())
    for change, error, message in (
        ({"linear_attention": None}, CheckpointError, "not what was converted"),
        ({"source": {"model_type": "newer"}}, ConversionError, "holds a converted newer"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(saved | change))
        with pytest.raises(error, match=message):
            transformers.AutoConfig.from_pretrained(tmp_path)


def test_a_trainer_loads_its_best_weights_and_resumes(known, tmp_path):
    pytest.importorskip("accelerate")
    ids = models.tokens(8)
    rows = [{"input_ids": row, "labels": row[0] % 2} for row in ids]
    source = models.bert()
    places = {"train_dataset": rows, "eval_dataset": rows}
    options = {"save_strategy": "steps", "eval_strategy": "steps", "report_to": []}
    options |= {"metric_for_best_model": "score", "load_best_model_at_end": True}
    options |= {"eval_steps": 1, "save_steps": 1, "use_cpu": True, "learning_rate": 0.1}

    def trained(steps, **more):
        scores = iter([3.0, 2.0, 1.0])  # the first step was the best
        model = replace_attention(source, "hedgehog").model
        places["compute_metrics"] = lambda found: {"score": next(scores)}
        chosen = transformers.TrainingArguments(str(tmp_path), max_steps=steps, **options)
        trainer = known.FredholmLinearTrainer(model, chosen, **places)
        trainer.train(**more)
        return model.eval(), trainer

    model, trainer = trained(2)
    auto = transformers.AutoModelForSequenceClassification
    first, last = (auto.from_pretrained(tmp_path / f"checkpoint-{n}") for n in (1, 2))
    assert logits(model).equal(logits(first))
    assert not logits(model).equal(logits(last))
    _, went_on = trained(2, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    went_on._load_from_checkpoint(str(tmp_path / "checkpoint-2"))
    assert logits(went_on.model).equal(logits(last))
    with pytest.raises(CheckpointError, match=r"the weights do not fit .*LlamaForCausalLM"):
        trainer._load_from_checkpoint(str(tmp_path / "checkpoint-1"), models.llama())


def test_pushing_to_the_hub_uploads_the_folder(known, llama, folder, monkeypatch, tmp_path):
    sent, branches = {}, []

    class Api:
        def __init__(self, token=None):
            sent["token"] = token

        def create_repo(self, repo_id, private, exist_ok):
            sent["private"] = private
            return type("Url", (), {"repo_id": f"me/{repo_id}"})

        def create_branch(self, repo_id, *, branch, exist_ok):
            branches.append((repo_id, branch))

        def upload_folder(self, repo_id, folder_path, **options):
            names = sorted(p.name for p in Path(folder_path).iterdir())
            sent.update(repo_id=repo_id, names=names, **options)

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    known.push_folder(folder, "linear", token="t", commit_message="first")
    assert sent["repo_id"] == "me/linear"
    assert sent["token"] == "t"
    assert sent["commit_message"] == "first"
    by_folder = sent["names"]
    llama.model.push_to_hub("linear", processor=tokenizer())
    assert sent["names"] == by_folder
    options = {"private": True, "token": "mine", "commit_message": "second", "revision": "dev"}
    llama.model.save_pretrained(tmp_path / "own", push_to_hub=True, repo_id="named", **options)
    assert sent == options | {"repo_id": "me/named", "names": sent["names"]}
    assert branches == [("me/named", "dev")]
    with pytest.raises(CheckpointError, match="no converted model"):
        known.push_folder(tmp_path, "linear")


def test_saving_a_variant_is_refused(known, llama, tmp_path):
    with pytest.raises(ConversionError, match="variant='fp16': a folder holds one converted"):
        llama.model.save_pretrained(tmp_path, variant="fp16")


@pytest.fixture
def no_network(monkeypatch):
    """Fail when a name is resolved or a socket opened."""
    asked = []

    def refuse(*arguments, **_):
        asked.append(arguments)
        raise OSError("no network in tests")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    yield
    assert not asked


@pytest.mark.parametrize("make", [models.llama, models.gpt2, models.bert])
def test_loading_from_a_state_dict_needs_no_network(make, no_network):
    model = replace_attention(make(), "hedgehog").model
    state = model.state_dict()
    twin = type(model).from_pretrained(None, config=model.config, state_dict=state)
    assert type(twin) is type(model)
    assert torch.equal(logits(twin), logits(model.eval()))
    again, info = type(model).from_pretrained(
        None, config=model.config, state_dict=state, output_loading_info=True, revision="main"
    )
    assert torch.equal(logits(again), logits(model))
    assert not any(info.values())

    name = next(name for name in state if "feature_map" in name)
    part = {key: value for key, value in state.items() if key != name}
    with pytest.raises(CheckpointError, match=rf"'{name}'.* missing"):
        type(model).from_pretrained(None, config=model.config, state_dict=part)
    with pytest.raises(CheckpointError, match=r"\['other'\] unknown"):
        type(model).from_pretrained(
            None, config=model.config, state_dict=state | {"other": torch.zeros(1)}
        )
    for options in ({}, {"config": model.config}, {"state_dict": state}):
        with pytest.raises(OptionError, match="expected a folder or a repository, got None"):
            type(model).from_pretrained(None, **options)
    with pytest.raises(OptionError, match="expected a folder or a repository, got None"):
        type(model.config).from_pretrained(None)


def parts_of(model) -> dict[str, torch.nn.Module]:
    """Return the library's models inside a converted one that have linear attention."""
    return {
        name: part
        for name, part in model.named_modules()
        if part is not model
        and isinstance(part, transformers.PreTrainedModel)
        and any(hasattr(module, "linear_heads") for module in part.modules())
    }


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "bart", "whisper"])
def test_parts_are_saved_as_converted_models_or_refused(name, tmp_path):
    """Plain weights of a part would load as softmax attention."""
    make = getattr(models, name, lambda: library(name))
    model = replace_attention(make(), "hedgehog", keep_refused=True).model.eval()
    parts = parts_of(model)
    saved = []
    for number, (place, part) in enumerate(parts.items()):
        folder = tmp_path / str(number)
        if part is not model.base_model:
            with pytest.raises(ConversionError, match=f"got its part {place!r}"):
                part.save_pretrained(folder)
            assert not folder.exists()
            continue
        part.save_pretrained(folder)
        saved.append(place)
        with pytest.raises(OSError, match=r"no file named model\.safetensors"):
            part.source_class.from_pretrained(folder)
        loaded = transformers.AutoModel.from_pretrained(folder)
        assert type(loaded) is type(part)
        state = part.state_dict()
        assert loaded.state_dict().keys() == state.keys()
        assert all(x.equal(state[key]) for key, x in loaded.state_dict().items())
        if name in ("llama", "gpt2", "bert"):
            found, expected = (x(**models.padded())[0] for x in (loaded, part))
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert parts
    assert saved or name not in ("llama", "gpt2", "bert")
    # Saving the parts does not change the model.
    model.save_pretrained(tmp_path / "whole")
    whole = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert whole["source"]["architectures"] == [model.source_class.__name__]
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert parts_of(twin).keys() == parts.keys()
