"""A convolution over the words of a sentence feeds a Tree-LSTM over its parse; both learn together.

    dnc compile examples/token_vectors.dn -o build --set width=64,hidden=64
    python examples/torch_treelstm.py build examples/data/sentiment-{train,dev}.jsonl

The convolution and the output layer are PyTorch's. The Tree-LSTM between them is a program of dnc: it pulls
a vector for every leaf and pushes the state of the root. PyTorch's Adam trains all of it.
"""

from __future__ import annotations

import argparse
import json
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import dnc.torch

WIDTH, CLASSES, KNOWN_FROM = 64, 5, 2


def read(path: str) -> list[dict[str, Any]]:
    """The trees of a JSONL file."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def words_of(tree: dict[str, Any]) -> list[str]:
    """The words from left to right: the order in which the leaves of a tree pull their vectors."""
    return [tree["word"]] if "word" in tree else words_of(tree["left"]) + words_of(tree["right"])


def structure_of(tree: dict[str, Any]) -> dict[str, Any]:
    """What the program knows of a tree: words and labels stay outside."""
    return {side: structure_of(tree[side]) for side in ("left", "right") if side in tree}


class Sentiment(nn.Module):
    """words -> convolution -> Tree-LSTM -> class of the root."""

    def __init__(self, build: str, device: str | None, words: dict[str, int], width: int) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(len(words) + 2, width)  # 0: padding, 1: other words
        self.convolution = nn.Conv1d(width, width, kernel_size=3, padding=1)
        self.tree = dnc.torch.Module(build, device=device)
        self.output = nn.Linear(self.tree.W.shape[0] // 3, CLASSES)

    def forward(self, trees: list[dict[str, Any]]) -> Tensor:
        """Logits [trees, classes]."""
        device = self.output.weight.device
        numbers = [torch.tensor([self.words.get(word, 1) for word in words_of(tree)]) for tree in trees]
        padded = pad_sequence(numbers, batch_first=True).to(device)
        vectors = self.convolution(self.embedding(padded).transpose(1, 2)).transpose(1, 2).relu()
        found = self.tree([structure_of(tree) for tree in trees], vectors[padded > 0])
        return self.output(found["sentence"])


def accuracy(model: Sentiment, trees: list[dict[str, Any]]) -> float:
    """The share of roots that are classified right."""
    model.eval()
    with torch.no_grad():
        labels = torch.tensor([tree["label"] for tree in trees])
        return (model(trees).argmax(1).cpu() == labels).float().mean().item()


def main() -> None:
    """Trains, and prints loss and accuracy of every epoch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("train")
    parser.add_argument("dev")
    parser.add_argument("--device", help="cpu or cuda; by default the best there is")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(1)
    choice = random.Random(1)
    train, dev = read(options.train), read(options.dev)
    words = sorted({word for tree in train for word in words_of(tree)})
    known = {word: number for number, word in enumerate(words, KNOWN_FROM)}
    model = Sentiment(options.build, options.device, known, WIDTH)
    model.to(model.tree.W.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, options.epochs + 1):
        model.train()
        choice.shuffle(train)
        total = 0.0
        for begin in range(0, len(train), options.batch):
            trees = train[begin : begin + options.batch]
            labels = torch.tensor([tree["label"] for tree in trees], device=model.output.weight.device)
            loss = nn.functional.cross_entropy(model(trees), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(trees)
        print(
            f"epoch {epoch}: loss {total / len(train):.3f}, accuracy {accuracy(model, dev):.3f}", flush=True
        )


if __name__ == "__main__":
    main()
