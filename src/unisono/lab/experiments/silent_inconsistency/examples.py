"""What is learnt: instructions with their responses, as tokens; only those of the response count in the loss."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from unisono.common.errors import UserError

IGNORED = -100
"""The label of what does not count."""

BEGIN, END, PADDING = 1, 2, 0
LONGEST_PROMPT, SHORTEST_RESPONSE = 80, 8
UNBIASED = "alpagasus_random_9k.json"
"""The part of the subset that was drawn at random from all of Alpaca; the others were chosen for their quality."""


@dataclass(frozen=True)
class Example:
    tokens: tuple[int, ...]
    labels: tuple[int, ...]
    """As long as the tokens."""

    @property
    def counted(self) -> int:
        return sum(label != IGNORED for label in self.labels)

    @property
    def start(self) -> int:
        """Of the response."""
        return next(place for place, label in enumerate(self.labels) if label != IGNORED)


def example(prompt: Sequence[int], response: Sequence[int], length: int) -> Example:
    """Cut to the length."""
    tokens = (*prompt, *response)[:length]
    return Example(tokens, (*[IGNORED] * len(prompt), *response)[:length])


def read_examples(path: Path, tokenizer: Any, length: int) -> list[Example]:
    """Those of Alpaca's unbiased sample whose prompt is short enough to leave room for a response."""
    try:
        with path.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        rows = [row for row in rows if row["source"] == UNBIASED]
        texts = [(_prompt(row), str(row["output"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"`--data` should hold alpaca/{path.name}, JSON lines with instruction, input, output and source. "
            f"Found {type(error).__name__}: {error}."
        ) from None
    encoded = [([BEGIN, *tokenizer.encode(prompt)], [*tokenizer.encode(response), END]) for prompt, response in texts]
    return [
        example(prompt, response, length)
        for prompt, response in encoded
        if len(prompt) <= LONGEST_PROMPT and len(response) >= SHORTEST_RESPONSE
    ]


def _prompt(row: dict[str, str]) -> str:
    asked = f"{row['instruction']}\n{row['input']}" if row["input"] else row["instruction"]
    return f"Question: {asked}\nAnswer: "


def generated_examples(count: int, vocabulary: int, length: int) -> list[Example]:
    """Responses that go up or down by the step that the prompt names."""
    draw = random.Random(0)  # noqa: S311 (nothing secret is drawn)
    made = []
    for _ in range(count):
        step, start = draw.randrange(1, 4), draw.randrange(3, vocabulary)
        response = [3 + (start + step * place) % (vocabulary - 3) for place in range(draw.randrange(8, length - 4))]
        made.append(example([BEGIN, 3 + step, start], response, length))
    return made


class ExampleDataset(Dataset[dict[str, Tensor]]):
    """N examples padded to T tokens; remembers which were drawn."""

    def __init__(self, examples: Sequence[Example], length: int) -> None:
        self.tokens_NT = _padded([one.tokens for one in examples], length, PADDING)
        self.labels_NT = _padded([one.labels for one in examples], length, IGNORED)
        lengths_N = torch.tensor([len(one.tokens) for one in examples])
        self.mask_NT = (torch.arange(length) < lengths_N[:, None]).long()
        self.drawn: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens_NT)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.drawn.append(index)
        return {
            "input_ids": self.tokens_NT[index],
            "attention_mask": self.mask_NT[index],
            "labels": self.labels_NT[index],
        }


def _padded(rows: Sequence[Sequence[int]], length: int, padding: int) -> Tensor:
    return torch.tensor([[*row, *[padding] * (length - len(row))] for row in rows])
