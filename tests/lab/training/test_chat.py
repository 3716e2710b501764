"""Chat turns follow the template of the tokenizer."""

from __future__ import annotations

import pytest
import torch

from fredholm.training import generate

transformers = pytest.importorskip("transformers")


def test_the_chat_template_adds_the_beginning_of_the_text(tmp_path, monkeypatch):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<unk>", "<s>", "</s>", "hello", "[INST]", "[/INST]"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(["<s>", "</s>"])
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = (
        "{{ bos_token }} [INST] {% for m in messages %}{{ m['content'] }}{% endfor %} [/INST]"
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(vocab_size=6, num_attention_heads=2, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    seen = []
    whole = transformers.LlamaForCausalLM.generate

    def spy(self, ids, **options):
        seen.append(ids.tolist())
        return whole(self, ids, **options)

    monkeypatch.setattr(transformers.LlamaForCausalLM, "generate", spy)
    generate(tmp_path, "hello", length=2, temperature=0.0, chat=True)
    generate(tmp_path, "hello", length=2, temperature=0.0)
    assert seen == [[[1, 4, 3, 5]], [[1, 3]]]
