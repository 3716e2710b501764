"""Train the decoder of plot_linear_decoder.py: ``python examples/recall_decoder/train.py``.

It stops when the loss of a batch falls below 0.004, after some hundred steps.
"""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

KEYS, VALUES, PAIRS = 8, 8, 6
STEPS, RATE, BATCH = 1600, 4e-3, 128


def texts(count: int) -> torch.Tensor:
    """Return texts (B, 24): pairs of a key and a value, and the same in another order."""
    keys = torch.rand(count, KEYS).argsort(-1)[:, :PAIRS]
    values = torch.randint(0, VALUES, (count, PAIRS)) + KEYS
    order = torch.rand(count, PAIRS).argsort(-1)
    asked = torch.stack([keys.gather(1, order), values.gather(1, order)], -1)
    told = torch.stack([keys, values], -1)
    return torch.cat([told.flatten(1), asked.flatten(1)], 1)


def main() -> None:
    """Train and save the decoder in half precision, beside this file."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=KEYS + VALUES,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for step in range(STEPS):
        tokens = texts(BATCH)
        labels = tokens.clone()
        labels[:, : 2 * PAIRS] = -100  # only the answers count
        labels[:, 2 * PAIRS :: 2] = -100
        loss = model(tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if loss.item() < 0.004:
            print(f"learned after {step + 1} steps")
            break
    model.half().save_pretrained(Path(__file__).parent)


if __name__ == "__main__":
    main()
